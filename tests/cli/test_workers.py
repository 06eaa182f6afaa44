"""Workers and duties from a command line."""

from datetime import timedelta
from uuid import uuid4

import psycopg

from holdfast import Holdfast, schema
from holdfast.operations import claiming, workers
from holdfast.testing import Clock
from tests.cli.programs import Command
from tests.fixtures import Login


def _register(hf: Holdfast, name: str) -> str:
    return hf.carrier.run(
        workers.register(
            name=name,
            queues=["mail", "default"],
            tasks=["a"],
            lease_time=timedelta(seconds=30),
            host="ship",
            pid=42,
            version="0",
        )
    )


def test_workers_are_listed_and_those_that_left_on_request(holdfast: Command, hf: Holdfast) -> None:
    _register(hf, "anchor")
    hf.carrier.run(workers.leave(_register(hf, "buoy")))
    (row,) = holdfast("workers").rows
    assert row[:5] == ["anchor", "idle", "0", "ship", "42"]
    assert row[7:] == ["mail,default", "1"]
    everyone = holdfast("workers", "--all", "--json").json
    assert [(worker["name"], worker["status"]) for worker in everyone] == [
        ("buoy", "left"),
        ("anchor", "idle"),
    ]
    assert everyone[1]["queues"] == ["mail", "default"]


def test_recover_takes_back_the_jobs_of_a_lost_worker(holdfast: Command, hf: Holdfast, clock: Clock) -> None:
    job = hf.enqueue("a")
    worker = _register(hf, "anchor")
    hf.carrier.run(claiming.claim(worker=worker, lease=str(uuid4()), queues=None, tasks=None, amount=1))
    assert holdfast("recover", "--timeout", "10m").out == "Took back 0 jobs.\n"
    clock.advance(minutes=5)
    assert holdfast("recover", "--timeout", "2m").out == "Took back 1 job.\n"
    assert job.refresh().state == "pending"
    assert holdfast("recover", "--json").json == {"recovered": 0}
    assert holdfast("workers").rows[0][1] == "lost"


def test_tick_runs_every_duty(holdfast: Command) -> None:
    answer = holdfast("tick")
    assert answer.code == 0
    assert [row[1:] for row in answer.rows] == [["done", "-"]] * len(answer.rows)
    duties = [duty["duty"] for duty in holdfast("tick", "--json").json]
    assert {"promote", "recover"} <= set(duties)


def test_tick_does_not_mind_a_timeout_of_the_role(holdfast: Command, holdfast_dsn: str, login: Login) -> None:
    with psycopg.connect(holdfast_dsn, autocommit=True) as owner:
        schema.apply(owner, roles=True)
        dsn = login("worker")
        role = psycopg.conninfo.conninfo_to_dict(dsn)["user"]
        owner.execute(f"alter role {role} set statement_timeout = '50ms'")
        owner.execute("alter function holdfast.settle_lanes() rename to settle_lanes_at_once")
        owner.execute(
            "create function holdfast.settle_lanes() returns integer language sql as "
            "$$ select pg_sleep(0.3); select holdfast.settle_lanes_at_once() $$"
        )
    assert holdfast("tick", "--dsn", dsn).code == 0


def test_tick_tells_of_a_duty_that_failed(holdfast: Command, holdfast_dsn: str) -> None:
    with psycopg.connect(holdfast_dsn, autocommit=True) as connection:
        connection.execute(
            "create or replace function holdfast.upkeep(rest interval default null) "
            "returns integer language plpgsql "
            "as $$ begin raise 'no room left'; end $$"
        )
    answer = holdfast("tick")
    assert answer.code == 1
    assert ["upkeep", "failed", "no", "room", "left"] in answer.rows
    assert ["promote", "done", "-"] in answer.rows

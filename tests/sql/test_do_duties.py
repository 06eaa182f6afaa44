"""One call runs the frequent duties for the whole fleet and returns what else is due."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from holdfast import embedded, schema
from holdfast.testing import SETTINGS, Clock
from tests.sql.sessions import (
    PATIENCE,
    Connect,
    Refused,
    Session,
    Together,
    copied_database,
    sessions_on,
)

HERE = ["advance", "fold_stats", "recover"]
ELSEWHERE = ["fire", "promote", "upkeep", "sweep"]
ALL = [*HERE, *ELSEWHERE, "do_duties"]


@pytest.fixture
def holdfast_dsn(holdfast_server: str, holdfast_template: str) -> Iterator[str]:
    with copied_database(holdfast_server, holdfast_template) as dsn:
        yield dsn


@pytest.fixture(autouse=True)
def rested(clock: Clock) -> None:
    """Let the time of the template's last duties pass."""
    clock.advance(minutes=1)


def called(sql: Session) -> dict[str, timedelta | None]:
    """Call it. Returns how long to wait for each duty."""
    return {row.duty: row.wait for row in sql.rows("do_duties")}


def seconds(wait: timedelta | None) -> int:
    assert wait is not None
    return round(wait.total_seconds())


def runs(sql: Session) -> bool:
    """Call it. Returns whether this call did the work."""
    return list(called(sql)) == ALL


# Once per period.


def test_the_first_call_does_the_work_and_the_next_ones_only_return(sql: Session, other: Session) -> None:
    assert runs(sql)
    for session in (sql, other, sql):
        waits = called(session)
        assert list(waits) == ["do_duties"]
        assert seconds(waits["do_duties"]) == 2


def test_a_call_that_comes_too_early_waits_until_the_next_run_is_due(sql: Session, clock: Clock) -> None:
    assert runs(sql)
    clock.advance(seconds=1)
    assert seconds(called(sql)["do_duties"]) == 1


def test_the_next_call_after_the_period_does_the_work_whoever_makes_it(
    sql: Session, other: Session, clock: Clock
) -> None:
    assert runs(sql)
    clock.advance(seconds=1)
    assert not runs(other)
    clock.advance(seconds=1)
    assert runs(other)
    assert not runs(sql)


def test_many_calls_at_once_share_the_work_without_waiting(
    sql: Session, connect: Connect, together: Together, clock: Clock
) -> None:
    sql.enqueue_many(10)
    sql.claim_all(worker=sql.value("register", lease_time="1 second"))
    for _ in range(3):
        clock.advance(seconds=2)
        sessions = [connect() for _ in range(6)]
        ran = together(*[lambda s=s: runs(s) for s in sessions])
        assert any(ran)
        assert not runs(sql)
    assert sql("select name, error from holdfast.duty where error is not null") == []
    assert sql.one("select count(*) from holdfast.live where state = 'claimed'") == 0


def test_a_look_at_the_workers_is_not_repeated_at_once(sql: Session, clock: Clock) -> None:
    """Otherwise the next look would seem late, and a dead worker with a short lease would get more time."""
    worker = sql.value("register", lease_time="1 second")
    for _ in range(4):
        clock.advance(seconds=2)
        sql.value("recover")
        assert runs(sql)
    assert sql.one("select lost_at from holdfast.worker where id = %s", worker)


def test_a_call_that_stays_open_delays_no_other(sql: Session, other: Session, clock: Clock) -> None:
    with sql.connection.transaction():
        waits = called(sql)
        assert waits["upkeep"] == timedelta(0)
        clock.advance(seconds=2)
        other("set statement_timeout = '5s'")
        waits = called(other)
        assert list(waits) == ALL
        assert waits["upkeep"] is None, "the first call has its lock"
    assert other("select name, error from holdfast.duty where error is not null") == []


def test_a_call_that_is_rolled_back_counts_as_a_run(sql: Session, clock: Clock) -> None:
    with sql.connection.transaction(force_rollback=True):
        assert runs(sql)
    assert not runs(sql)
    clock.advance(seconds=2)
    assert runs(sql)


@pytest.mark.parametrize("hours", [-1, -100_000, 1, 100_000])
def test_after_the_clock_was_moved_the_duties_run_at_once(sql: Session, clock: Clock, hours: int) -> None:
    assert runs(sql)
    clock.advance(hours=hours)
    assert runs(sql)
    assert not runs(sql)


def test_a_call_with_nothing_to_do_writes_nothing(sql: Session) -> None:
    runs(sql)
    with sql.connection.transaction():
        assert not runs(sql)
        assert sql.one("select pg_current_xact_id_if_assigned()") is None


def test_the_time_of_the_last_run_is_not_written_to_the_log(sql: Session) -> None:
    with sql.connection.transaction():
        sql("select setval('holdfast.duties_at', 12345)")
        sql("select setval('holdfast.sweep_at', 12345)")
        assert sql.one("select pg_current_xact_id_if_assigned()") is None


def test_after_a_crash_of_the_server_the_duties_are_due(server_home: Path) -> None:
    with embedded.start(server_home, settings=SETTINGS) as server:
        with sessions_on(server.dsn) as connect:
            sql, bystander = connect(), connect()
            schema.apply(sql.connection)
            assert runs(sql)
            assert not runs(sql)
            os.kill(sql.pid, signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                bystander.until(lambda: bystander("select false")[0][0])
        with sessions_on(server.dsn) as connect:
            assert runs(reached(connect))


def reached(connect: Connect) -> Session:
    """Return a session on a server that is about to be back."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return connect()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline


def test_an_old_snapshot_is_refused(sql: Session, refused: Refused) -> None:
    with refused("HF009") as error, sql.transaction("repeatable read"):
        sql.rows("do_duties")
    assert "do_duties" in error.message


# The work.


def test_jobs_of_lost_workers_come_back(sql: Session, clock: Clock) -> None:
    ids = sql.enqueue_many(3)
    sql.claim_all(worker=sql.value("register", lease_time="1 second"))
    done = 0
    for _ in range(3):
        clock.advance(seconds=2)
        done += sum(row.done for row in sql.rows("do_duties") if row.duty == "recover")
    assert done == 3
    assert {sql.state(job_id) for job_id in ids} == {"pending"}


def test_it_asks_for_another_advance_soon_while_heads_move(sql: Session, clock: Clock) -> None:
    sql.enqueue_many(2000)
    assert called(sql)["advance"] is None
    sql.finish(sql.claim_all(), "completed")
    clock.advance(seconds=2)
    assert called(sql)["advance"] == timedelta(seconds=0.25)
    clock.advance(seconds=2)
    assert called(sql)["advance"] is None


def test_it_folds_the_statistics(sql: Session, clock: Clock) -> None:
    sql.enqueue_many(5)
    sql.finish(sql.claim_all(), "completed")
    called(sql)
    assert sql.one("select sum(completed) from holdfast.stat where span = 'minute'") == 5
    assert sql("select from holdfast.stat_delta") == []


# The result.


def test_it_returns_when_jobs_and_schedules_are_due(sql: Session, clock: Clock) -> None:
    waits = called(sql)
    assert (waits["promote"], waits["fire"]) == (None, None)
    sql.enqueue(delay="1 hour")
    sql.value("add_schedule", name="s", task="task", every="2 hours")
    clock.advance(seconds=2)
    waits = called(sql)
    assert minutes(waits["promote"]) == 60
    assert waits["fire"] is not None
    assert timedelta(0) < waits["fire"] <= timedelta(hours=2)
    clock.advance(hours=3)
    waits = called(sql)
    assert minutes(waits["promote"]) == -120
    assert waits["fire"] is not None
    assert waits["fire"] <= timedelta(0)


def minutes(wait: timedelta | None) -> int:
    return round(seconds(wait) / 60)


def test_upkeep_is_due_once_a_minute(sql: Session, clock: Clock) -> None:
    assert called(sql)["upkeep"] == timedelta(0)
    sql.value("upkeep", rest="45 s")
    clock.advance(seconds=30)
    assert called(sql)["upkeep"] is None
    clock.advance(seconds=40)
    assert called(sql)["upkeep"] == timedelta(0)


def test_an_upkeep_that_fails_is_due_again_after_30_seconds(sql: Session, clock: Clock) -> None:
    assert called(sql)["upkeep"] == timedelta(0)
    clock.advance(seconds=20)
    assert called(sql)["upkeep"] is None
    clock.advance(seconds=11)
    assert called(sql)["upkeep"] == timedelta(0)
    clock.advance(days=-1)
    assert called(sql)["upkeep"] == timedelta(0), "the clock was set back"


@pytest.mark.parametrize("duty", ["upkeep", "sweep"])
def test_a_duty_that_runs_is_not_due(sql: Session, other: Session, clock: Clock, duty: str) -> None:
    expire_a_job(sql, clock)
    with other.connection.transaction():
        assert other.one("select holdfast.try_duty(%s)", duty)
        assert called(sql)[duty] is None
    clock.advance(seconds=2)
    assert called(sql)[duty] == timedelta(0)


def expire_a_job(sql: Session, clock: Clock) -> None:
    sql.value("configure", queue="mail", settings='{"retention": "1 hour"}')
    sql.enqueue(queue="mail")
    sql.finish([sql.claim_one()], "completed")
    clock.advance(hours=2)


def test_the_search_for_expired_rows_takes_place_every_30_seconds(sql: Session, clock: Clock) -> None:
    assert called(sql)["sweep"] is None
    expire_a_job(sql, clock)
    clock.advance(hours=-2, seconds=10)
    assert called(sql)["sweep"] is None, "it was not searched"
    clock.advance(hours=2)
    assert called(sql)["sweep"] == timedelta(0)
    sql.value("sweep")
    clock.advance(seconds=31)
    assert called(sql)["sweep"] is None


@pytest.mark.parametrize(("workers", "expected"), [(1, 2), (25, 2), (50, 4), (100, 8), (5000, 10)])
def test_the_more_workers_there_are_the_less_often_each_calls(
    sql: Session, workers: int, expected: int
) -> None:
    sql(
        "insert into holdfast.worker (id, name, started_at, heartbeat_at, left_at, lost_at, channel) "
        "select gen_random_uuid(), 'w', now(), now(), e.left_at, e.lost_at, e.channel "
        "from generate_series(1, %s), "
        "(values (null::timestamptz, null::timestamptz, 'w'), (now(), null, 'w'), (null, now(), 'w'), "
        "  (null, null, null)) e (left_at, lost_at, channel)",
        workers,
    )
    assert runs(sql)
    waits = called(sql)
    assert list(waits) == ["do_duties"]
    assert seconds(waits["do_duties"]) == expected


# Failures.

PARTS = {
    "advance": "advance() returns integer",
    "fold_stats": "fold_stats(all_of_them boolean default true) returns integer",
    "recover": "recover(timeout interval default null, also_fold boolean default true) returns integer",
    "fire": "next_tick(now_at timestamptz) returns timestamptz",
    "promote": "next_due() returns timestamptz",
    "upkeep": "upkeep_due(now_at timestamptz) returns boolean",
    "sweep": "sweep_due_now(now_at timestamptz) returns boolean",
    "do_duties": "wake_missed() returns void",
}


@pytest.fixture
def break_part(sql: Session) -> Callable[[str], None]:
    def replace(duty: str) -> None:
        sql(
            f"create or replace function holdfast.{PARTS[duty]} "
            "language plpgsql as $$ begin raise exception 'broken'; end $$"
        )

    return replace


@pytest.mark.parametrize("duty", ALL)
def test_a_part_that_fails_undoes_no_other(
    sql: Session, clock: Clock, break_part: Callable[[str], None], duty: str
) -> None:
    sql.enqueue_many(2000)
    sql.finish(sql.claim_all(), "completed")
    held = sql.enqueue()
    sql.claim_one(worker=sql.value("register", lease_time="1 second"))
    sql.enqueue(delay="1 hour")
    break_part(duty)
    for _ in range(4):
        clock.advance(seconds=2)
        waits = called(sql)
    assert list(waits) == ALL
    assert sql("select name, error from holdfast.duty where error is not null") == [(duty, "broken")]
    done = {
        "advance": sql.one("select max(head) from holdfast.lane") > 0,
        "fold_stats": sql.one("select count(*) from holdfast.stat_delta") == 0,
        "recover": sql.state(held) == "pending",
        "promote": waits["promote"] is not None,
        "do_duties": waits["do_duties"] is not None,
    }
    assert {part for part in done if not done[part]} == {duty} & (done.keys() - {"do_duties"})


def test_an_error_is_logged_once_a_minute(
    sql: Session, clock: Clock, break_part: Callable[[str], None]
) -> None:
    warnings: list[str] = []
    sql.connection.add_notice_handler(lambda notice: warnings.append(notice.message_primary or ""))
    break_part("recover")
    for _ in range(10):
        clock.advance(seconds=2)
        called(sql)
    assert warnings == ["duty recover failed: broken"]
    clock.advance(minutes=2)
    called(sql)
    assert len(warnings) == 2


def test_a_part_waits_a_second_for_a_lock_and_the_others_run(
    sql: Session, other: Session, clock: Clock
) -> None:
    with other.connection.transaction():
        other("lock table holdfast.stat_delta")
        assert list(called(sql)) == ALL
    ((name, error),) = sql("select name, error from holdfast.duty where error is not null")
    assert name == "fold_stats"
    assert "lock timeout" in error


def test_a_worker_can_report_that_the_whole_call_failed(sql: Session) -> None:
    sql.value("report_duty", duty="do_duties", error="canceling statement due to statement timeout")
    assert sql.one("select error from holdfast.duty where name = 'do_duties'")

"""Consumers come, prove that they live, and leave; one that was declared lost never comes back."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import psycopg.sql
import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Refused, Session


@pytest.fixture
def worker(sql: Session) -> UUID:
    return sql.value("register", name="w", queues=["a"], tasks=["t"], host="h", pid=42, version="1.0")


def test_a_registration_is_new_each_time_and_the_name_only_a_label(sql: Session, worker: UUID) -> None:
    again = sql.value("register", name="w")
    assert again != worker
    rows = {row.id: row for row in sql.rows("list_workers")}
    first = rows[worker]
    assert (first.name, first.host, first.pid, first.queues, first.tasks) == ("w", "h", 42, ["a"], ["t"])
    assert (first.status, first.holds, first.recovered) == ("idle", 0, 0)
    assert rows[again].name == "w"


def test_a_worker_without_a_name_gets_one(sql: Session) -> None:
    sql.value("register")
    assert sql.rows("list_workers")[0].name.startswith("worker-")


@pytest.mark.parametrize("lease_time", ["0.5 seconds", "25 hours", "-1 second", None])
def test_a_lease_time_outside_its_range_is_refused(
    sql: Session, lease_time: str | None, refused: Refused
) -> None:
    with refused("HF008") as error:
        sql.value("register", lease_time=lease_time)
    assert error.detail["field"] == "lease_time"


@pytest.mark.parametrize("channel", ["w", "holdfast_0123456789abcdef", "c" * 63, 'Größe; "drop"', None])
def test_a_worker_may_have_a_channel_of_its_own(sql: Session, other: Session, channel: str | None) -> None:
    worker = sql.value("register", channel=channel)
    assert sql.one("select channel from holdfast.worker where id = %s", worker) == channel
    sql.value("sleep", worker=worker)
    if channel is not None:
        other(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(channel)).as_string())
    sql.enqueue()
    other("select 1")
    heard = [it.channel for it in other.connection.notifies(timeout=0)]
    assert heard == ([] if channel is None else [channel])


@pytest.mark.parametrize("channel", ["", "c" * 64, "ü" * 32])
def test_a_channel_that_notify_would_refuse_is_refused(sql: Session, channel: str, refused: Refused) -> None:
    with refused("HF008") as error:
        sql.value("register", channel=channel)
    assert error.detail["field"] == "channel"
    assert "1 to 63 bytes" in error.message


def test_a_worker_of_an_earlier_release_registers_without_a_channel(sql: Session) -> None:
    worker = sql.one(
        "select holdfast.register(name => 'w', queues => '{a}', tasks => '{t}', lease_time => '30 s', "
        "host => 'h', pid => 1, version => '0.2.0')"
    )
    assert sql.one("select channel is null from holdfast.worker where id = %s", worker)


def test_a_heartbeat_touches_the_worker_and_returns_the_databases_time(
    sql: Session, worker: UUID, clock: Clock
) -> None:
    clock.advance(days=3)
    now = sql.value("heartbeat", worker=worker)
    assert sql.one("select heartbeat_at from holdfast.worker") == now
    assert abs(now - sql.one("select holdfast.clock()")) < timedelta(minutes=1)


def test_an_unknown_consumer_is_registered_by_its_claim(sql: Session) -> None:
    consumer = uuid4()
    sql.enqueue(queue="q")
    sql.claim(worker=consumer, queues=["q"], tasks=None)
    (row,) = sql.rows("list_workers")
    assert (row.id, row.queues, row.tasks, row.holds) == (consumer, ["q"], None, 1)
    assert row.name.startswith("consumer-")
    assert sql.one("select lease_time from holdfast.worker") == timedelta(seconds=30)


def test_a_worker_declared_lost_is_refused_everywhere(sql: Session, worker: UUID, refused: Refused) -> None:
    sql.lose(worker)
    calls: dict[str, dict[str, Any]] = {
        "heartbeat": {},
        "claim": {"amount": 1},
        "sleep": {},
        "leave": {},
        "disown": {"held": [], "in_flight": [], "before": "2020-01-01 00:00+00"},
    }
    for function, arguments in calls.items():
        with refused("HF006") as error:
            sql.rows(function, worker=worker, **arguments)
        assert error.detail == {"worker": str(worker)}
        assert "declared lost" in error.message
        assert "Register again" in error.hint
    assert sql.rows("list_workers")[0].status == "lost"


def test_a_worker_that_left_is_refused_but_may_leave_twice(
    sql: Session, worker: UUID, refused: Refused
) -> None:
    assert sql.value("leave", worker=worker) == 0
    assert sql.value("leave", worker=worker) == 0
    for function in ("heartbeat", "claim", "sleep"):
        with refused("HF006") as error:
            sql.rows(function, worker=worker)
        assert "left at" in error.message


def test_an_unknown_worker_has_no_heart(sql: Session, refused: Refused) -> None:
    for function in ("heartbeat", "leave", "sleep"):
        with refused("HF006") as error:
            sql.rows(function, worker=uuid4())
        assert "is not registered" in error.message


def test_who_leaves_gives_back_what_it_holds(sql: Session, worker: UUID) -> None:
    ids = sql.enqueue_many(3, "t", queues=["a"] * 3)
    jobs = sql.claim(worker=worker)
    sql.rows("start", ids=[jobs[0].id], leases=[jobs[0].lease])
    assert sql.value("leave", worker=worker) == 3
    assert [sql.job(job_id).attempt for job_id in ids] == [1, 0, 0]
    again = sql.claim()
    assert [job.id for job in again] == ids
    assert not any(job.suspect for job in again), "nobody died"
    assert sql.rows("list_workers")[-1].status == "left"


def test_a_claim_that_commits_after_its_worker_left_is_taken_back(
    sql: Session, other: Session, worker: UUID
) -> None:
    sql.enqueue()
    with other.connection.transaction():
        other.claim_one(worker=worker)
        assert sql.value("leave", worker=worker) == 0
    assert sql.value("recover") == 1
    assert sql.claim_one().attempt == 1


def test_what_is_held_in_a_workers_name_without_its_knowledge_is_given_back(
    sql: Session, worker: UUID, clock: Clock
) -> None:
    sql.enqueue_many(6)
    known, lost, flying, new = uuid4(), uuid4(), uuid4(), uuid4()
    mine = sql.claim(2, worker=worker, lease=known)
    vanished = sql.claim(2, worker=worker, lease=lost)
    sql.claim(1, worker=worker, lease=flying)
    clock.advance(seconds=1)
    before = sql.value("heartbeat", worker=worker)
    clock.advance(seconds=1)
    sql.claim(1, worker=worker, lease=new)
    given = {"worker": worker, "held": [job.id for job in mine], "in_flight": [flying], "before": before}
    assert sql.value("disown", **given) == 2
    assert sql.value("disown", **given) == 0
    assert [(sql.state(job.id), sql.job(job.id).attempt) for job in vanished] == [("pending", 0)] * 2
    assert sql.one("select count(*) from holdfast.job where worker_id = %s", worker) == 4


def test_a_tombstone_stays_for_a_day(sql: Session, worker: UUID, clock: Clock, refused: Refused) -> None:
    sql.lose(worker)
    clock.advance(hours=23)
    sql.value("upkeep")
    with refused("HF006") as error:
        sql.value("heartbeat", worker=worker)
    assert "declared lost" in error.message
    clock.advance(hours=2)
    sql.value("upkeep")
    assert sql.rows("list_workers") == []


def test_idle_and_busy_workers_can_be_told_apart(sql: Session, worker: UUID) -> None:
    sql.enqueue()
    assert sql.rows("list_workers")[0].status == "idle"
    job = sql.claim_one(worker=worker)
    row = sql.rows("list_workers")[0]
    assert (row.status, row.holds) == ("busy", 1)
    sql.finish([job])
    assert sql.rows("list_workers")[0].status == "idle"


def test_a_worker_that_is_silent_for_its_lease_time_is_called_neither_idle_nor_busy(
    sql: Session, worker: UUID, clock: Clock
) -> None:
    sql.enqueue()
    sql.claim_one(worker=worker)
    clock.advance(seconds=29)
    assert sql.rows("list_workers")[0].status == "busy"
    clock.advance(seconds=2)
    assert sql.rows("list_workers")[0].status == "silent"
    sql.value("heartbeat", worker=worker)
    assert sql.rows("list_workers")[0].status == "busy"


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_worker_that_leaves_does_not_wait_for_an_open_cancel(
    sql: Session, other: Session, worker: UUID, clock: Clock, end: str
) -> None:
    sql.enqueue_many(3)
    asked, *rest = sql.claim(worker=worker)
    sql("set lock_timeout = '1ms'")
    with other.transaction():
        other.value("cancel", id=asked.id)
        assert sql.value("leave", worker=worker) == 2
        assert [sql.state(job.id) for job in rest] == ["pending"] * 2
        if end == "rollback":
            raise psycopg.Rollback
    sql("reset lock_timeout")
    clock.advance(seconds=1)
    sql.value("recover")
    assert sql.state(asked.id) == ("cancelled" if end == "commit" else "pending")
    assert sql("select from holdfast.death") == []

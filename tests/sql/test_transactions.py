"""Our functions inside the caller's own transaction, at every isolation level."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Refused, Session

FROZEN = ["repeatable read", "serializable"]


@pytest.mark.parametrize("isolation", ["read committed", *FROZEN])
def test_a_job_is_there_if_and_only_if_its_transaction_commits(
    sql: Session, other: Session, isolation: str
) -> None:
    with sql.transaction(isolation):
        job_id = sql.enqueue()
        assert sql.state(job_id) == "pending"
        assert other.rows("job", id=job_id) == []
        assert other.claim() == []
    assert [job.id for job in other.claim()] == [job_id]

    with sql.connection.transaction(force_rollback=True):
        sql(f"set transaction isolation level {isolation}")
        gone = sql.enqueue()
    assert other.rows("job", id=gone) == []
    assert other.claim() == []


def test_a_job_of_a_savepoint_that_was_rolled_back_is_gone(sql: Session, other: Session) -> None:
    with sql.connection.transaction():
        kept = sql.enqueue()
        with sql.connection.transaction(force_rollback=True):
            sql.enqueue()
        also_kept = sql.enqueue()
    assert [job.id for job in other.claim()] == [kept, also_kept]


def test_the_first_users_of_a_lane_do_not_wait_for_each_other(sql: Session, other: Session) -> None:
    other("set lock_timeout = '1s'")
    with sql.connection.transaction(), other.connection.transaction():
        mine = sql.enqueue("new", queue="new", priority=42)
        theirs = other.enqueue("new", queue="new", priority=42)
        more = other.enqueue_many(3, "new", queues=["new"] * 3, priorities=[42] * 3)
    assert [job.id for job in sql.claim()] == [mine, theirs, *more]


def test_the_first_to_return_jobs_to_a_lane_do_not_wait_for_each_other(sql: Session, other: Session) -> None:
    other("set lock_timeout = '1s'")
    sql.enqueue_many(2)
    mine, theirs = sql.claim_one(), sql.claim_one()
    with sql.connection.transaction(), other.connection.transaction():
        sql.value("release", id=mine.id, lease=mine.lease)
        other.value("release", id=theirs.id, lease=theirs.lease)
    assert {job.id for job in sql.claim()} == {mine.id, theirs.id}


@pytest.mark.parametrize("isolation", FROZEN)
def test_what_must_see_the_newest_refuses_a_frozen_snapshot(
    sql: Session, isolation: str, refused: Refused
) -> None:
    for function in ("claim", "advance", "promote", "recover", "upkeep", "check_heads", "tick"):
        with refused("HF009") as error, sql.transaction(isolation):
            sql.rows(function)
        assert error.detail == {"level": isolation}
        assert f"holdfast.{function}" in error.message
        assert "READ COMMITTED" in error.hint


@pytest.mark.parametrize("isolation", FROZEN)
def test_a_job_can_be_enqueued_and_reported_under_a_frozen_snapshot(sql: Session, isolation: str) -> None:
    for outcome, state in [
        ("completed", "completed"),
        ("failed", "scheduled"),
        ("released", "pending"),
        ("snoozed", "scheduled"),
        ("interrupted", "pending"),
        ("cancelled", "cancelled"),
    ]:
        with sql.transaction(isolation):
            job_id = sql.enqueue(outcome)
        job = sql.claim_one(tasks=[outcome])
        sql.value("progress", id=job.id, lease=job.lease, percent=50)
        with sql.transaction(isolation):
            assert sql.finish([job], outcome) == []
        assert sql.state(job_id) == state


@pytest.mark.parametrize("isolation", FROZEN)
def test_progress_written_meanwhile_does_not_break_a_handler_that_finishes_in_its_own_transaction(
    sql: Session, other: Session, isolation: str
) -> None:
    job_id = sql.enqueue()
    job = sql.claim_one()
    other.value("progress", id=job.id, lease=job.lease, percent=10)
    with sql.transaction(isolation):
        sql("select 1")  # takes the snapshot
        other.value("progress", id=job.id, lease=job.lease, percent=20, stage="late")
        sql.value("complete", id=job.id, lease=job.lease, result='"done"')
    done = sql.job(job_id)
    assert (done.state, done.result, done.progress) == ("completed", "done", 100)
    assert done.started_at is not None


def test_what_such_a_handler_leaves_behind_is_swept(
    sql: Session, other: Session, clock: Clock, refused: Refused
) -> None:
    sql.enqueue()
    job = sql.claim_one()
    other.value("progress", id=job.id, lease=job.lease, percent=10)
    with sql.transaction("repeatable read"):
        sql.value("complete", id=job.id, lease=job.lease)
    with refused("HF003"):
        other.value("progress", id=job.id, lease=job.lease, percent=20)
    clock.advance(minutes=2)
    sql.value("upkeep")
    assert sql("select from holdfast.running") == []


def test_a_result_is_there_if_and_only_if_the_handlers_transaction_commits(
    sql: Session, other: Session
) -> None:
    job_id = sql.enqueue()
    job = sql.claim_one()
    sql("create table public.effect (job uuid)")
    with sql.connection.transaction(force_rollback=True):
        sql("insert into public.effect values (%s)", job_id)
        sql.value("complete", id=job.id, lease=job.lease)
        assert other.state(job_id) == "claimed"
    assert other.state(job_id) == "claimed"
    with sql.connection.transaction():
        sql("insert into public.effect values (%s)", job_id)
        sql.value("complete", id=job.id, lease=job.lease)
    assert other.state(job_id) == "completed"
    assert other.one("select count(*) from public.effect") == 1
    sql("drop table public.effect")


@pytest.fixture
def effect(sql: Session) -> Iterator[Callable[[], int]]:
    """`effect()`: how much was written to the table of this name."""
    sql("create table public.effect (job uuid)")
    yield lambda: sql.one("select count(*) from public.effect")
    sql("drop table public.effect")


REPORTS = [("complete", {}), ("fail", {"error": "no"}), ("snooze", {"delay": "0"}), ("release", {})]


@pytest.mark.parametrize(("verb", "options"), REPORTS)
def test_a_transaction_that_is_repeated_with_its_report_writes_nothing_twice(
    sql: Session, effect: Callable[[], int], refused: Refused, verb: str, options: dict[str, Any]
) -> None:
    """The reply to its commit was lost, and its caller cannot know."""
    sql.enqueue()
    job = sql.claim_one()

    def work() -> None:
        with sql.transaction():
            sql("insert into public.effect values (%s)", job.id)
            sql.value(verb, id=job.id, lease=job.lease, **options)

    work()
    with refused("HF003") as error:
        work()
    assert "already" in error.message
    assert error.detail["shown"] == str(job.lease)
    assert effect() == 1
    sql.value(verb, id=job.id, lease=job.lease, **options)  # repeated alone, it is a repetition


def test_two_transactions_that_complete_the_same_job_write_once(
    sql: Session, other: Session, effect: Callable[[], int], background: Background, refused: Refused
) -> None:
    """The first is about to commit, but its caller has lost sight of it and tries again."""
    sql.enqueue()
    job = sql.claim_one()

    def again() -> None:
        with other.transaction():
            other("insert into public.effect values (%s)", job.id)
            other.value("complete", id=job.id, lease=job.lease)

    with sql.transaction():
        sql("insert into public.effect values (%s)", job.id)
        sql.value("complete", id=job.id, lease=job.lease)
        late = background(again)
        sql.until(lambda: sql.is_waiting(other))
    with refused("HF003"):
        late()
    assert effect() == 1


def test_many_jobs_are_reported_in_one_transaction(sql: Session, effect: Callable[[], int]) -> None:
    sql.enqueue_many(3)
    with sql.transaction():
        for job in sql.claim():
            sql("insert into public.effect values (%s)", job.id)
            sql.value("complete", id=job.id, lease=job.lease)
    assert effect() == 3

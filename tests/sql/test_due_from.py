"""The mark from which promote reads the scheduled jobs: never behind one that is, or will be, scheduled."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Session


def due_from(sql: Session) -> int:
    return sql.one("select due_from from holdfast.writer_watch")


@pytest.fixture
def flow(sql: Session, clock: Clock) -> Callable[..., None]:
    """Jobs fall due and are promoted, and the mark moves on."""

    def flow(session: Session = sql) -> None:
        for _ in range(2):
            session.enqueue_many(100, delays=["1 s"] * 100)
            clock.advance(seconds=2)
            session.value("promote")
            session.value("advance")
            clock.advance(seconds=2)
            session.value("advance")

    return flow


def test_the_mark_moves_past_what_was_promoted_and_stops_at_what_is_scheduled(
    sql: Session, flow: Callable[..., None], clock: Clock
) -> None:
    flow()
    first = due_from(sql)
    flow()
    assert due_from(sql) > first
    job_id = sql.enqueue(delay="1 s")
    scheduled = sql.live(job_id).run_at
    for _ in range(3):
        clock.advance(seconds=10)
        sql.enqueue_many(200)
        sql.value("advance")
    assert due_from(sql) == scheduled
    sql.value("promote")
    assert sql.state(job_id) == "pending"


def test_a_transaction_that_stays_open_does_not_hold_the_mark_back(
    sql: Session, other: Session, flow: Callable[..., None]
) -> None:
    other("begin")
    other.enqueue()
    flow()
    first = due_from(sql)
    flow()
    assert due_from(sql) > first


def test_a_job_that_comes_late_is_found_although_the_mark_has_passed_it(
    sql: Session, other: Session, flow: Callable[..., None], clock: Clock
) -> None:
    flow()
    other("begin")
    late = other.enqueue(delay="1 s")
    due = other.live(late).run_at
    flow()
    flow()
    assert due_from(sql) > due, "else it would prove nothing"
    other("commit")
    sql.value("promote")
    assert sql.state(late) == "scheduled", "the mark has passed it"
    sql.value("advance")
    sql.value("promote")
    assert sql.state(late) == "pending"


def test_a_prepared_job_that_comes_late_is_found_too(
    sql: Session, other: Session, flow: Callable[..., None]
) -> None:
    flow()
    other("set holdfast.notify = off")
    other("begin")
    late = other.enqueue(delay="1 s")
    flow()
    other("prepare transaction 'late'")
    flow()
    sql("commit prepared 'late'")
    sql.value("advance")
    sql.value("promote")
    assert sql.state(late) == "pending"


def test_what_stands_behind_the_mark_is_found_once_a_minute_and_reported(
    sql: Session, flow: Callable[..., None]
) -> None:
    flow()
    job_id = sql.enqueue(delay="1 hour")
    sql("update holdfast.job set run_at = holdfast.clock() - interval '1 hour' where id = %s", job_id)
    sql.value("promote")
    assert sql.state(job_id) == "scheduled"
    assert sql.value("check_heads") == 1
    sql.value("promote")
    assert sql.state(job_id) == "pending"
    assert sql.one("select action from holdfast.audit where target = 'due_from'") == "repair"


@pytest.mark.parametrize("back", [{"hours": -1}, {"seconds": -10}])
def test_a_clock_that_was_set_back_starts_it_over(
    sql: Session, flow: Callable[..., None], clock: Clock, back: dict[str, Any]
) -> None:
    flow()
    clock.advance(**back)
    job_id = sql.enqueue(delay="1 s")
    assert sql.live(job_id).run_at < due_from(sql), "else it would prove nothing"
    clock.advance(seconds=3)  # for this long nobody has advanced
    sql.value("advance")
    clock.advance(seconds=20)
    sql.value("promote")
    assert sql.state(job_id) == "pending"


def test_a_job_that_comes_late_after_the_clock_was_set_back_is_found(
    sql: Session, other: Session, flow: Callable[..., None], clock: Clock
) -> None:
    flow()
    clock.advance(seconds=-20)
    other("begin")
    late = other.enqueue(delay="1 s")
    sql.value("advance")
    flow()
    assert due_from(sql) > other.live(late).run_at, "else it would prove nothing"
    other("commit")
    sql.value("advance")
    sql.value("promote")
    assert sql.state(late) == "pending"

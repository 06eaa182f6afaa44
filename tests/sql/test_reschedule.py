"""A scheduled job can be given another time; any other is refused, and stays as it is."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Refused, Session

Now = Callable[[], datetime]


@pytest.fixture
def now(sql: Session) -> Now:
    return lambda: sql.one("select holdfast.clock()")


def pending(sql: Session) -> list[UUID]:
    sql.value("promote")
    return [row.id for row in sql.rows("list_jobs", state="pending")]


def test_a_later_time_is_waited_for(sql: Session, clock: Clock) -> None:
    job = sql.enqueue(delay="1 hour")
    due = sql.value("reschedule", id=job, delay="3 hours")
    assert sql.job(job).run_at == due
    clock.advance(hours=2)
    assert pending(sql) == []
    clock.advance(hours=1)
    assert pending(sql) == [job]


def test_an_earlier_time_is_kept(sql: Session, clock: Clock, now: Now) -> None:
    sql.enqueue(delay="1 hour")
    clock.advance(minutes=90)
    pending(sql)
    sql.value("advance")  # the low-water mark has gone ahead
    job = sql.enqueue(delay="10 hours")
    sql.value("reschedule", id=job, run_at=now() + timedelta(minutes=10))
    clock.advance(minutes=11)
    assert job in pending(sql)


def test_a_time_that_has_come_makes_it_pending(sql: Session, now: Now) -> None:
    job = sql.enqueue(delay="1 hour")
    assert sql.value("reschedule", id=job, run_at=now() - timedelta(days=1)) <= now()
    assert sql.job(job).state == "pending"


def test_a_backoff_can_be_cut_short_or_drawn_out(sql: Session, clock: Clock) -> None:
    job = sql.enqueue()
    sql.finish(sql.claim(), "failed", errors=["no"])
    sql.value("reschedule", id=job, delay="2 days")
    clock.advance(days=1)
    assert pending(sql) == []
    sql.value("reschedule", id=job, delay="1 second")
    clock.advance(seconds=2)
    assert pending(sql) == [job]


def test_a_job_that_does_not_wait_for_its_time_is_refused(sql: Session, refused: Refused) -> None:
    job = sql.enqueue()
    with refused("HF010") as error:
        sql.value("reschedule", id=job, delay="1 hour")
    assert "is pending: only a scheduled job" in error.message
    assert sql.job(job).state == "pending"


def test_a_job_that_there_is_not_is_refused(sql: Session, refused: Refused) -> None:
    with refused("HF002"):
        sql.value("reschedule", id="01890a5d-ac96-774b-bcce-b302099a8057", delay="1 hour")


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"delay": "-1 second"},
        {"delay": "101 years"},
        {"run_at": "infinity"},
        {"run_at": "2050-01-01Z", "delay": "1 s"},
    ],
)
def test_a_time_that_is_none_is_refused(sql: Session, refused: Refused, times: dict[str, Any]) -> None:
    job = sql.enqueue(delay="1 hour")
    before = sql.job(job).run_at
    with refused("HF008"):
        sql.value("reschedule", id=job, **times)
    assert sql.job(job).run_at == before


def test_who_did_it_is_written_down(sql: Session) -> None:
    job = sql.enqueue(delay="1 hour")
    sql.value("reschedule", id=job, delay="2 hours")
    assert sql("select action, target from holdfast.audit order by at desc limit 1") == [
        ("reschedule", str(job))
    ]


def test_a_time_that_passes_while_the_job_is_locked_has_come(
    sql: Session, other: Session, clock: Clock, background: Background, now: Now
) -> None:
    job = sql.enqueue(delay="1 hour")
    soon = now() + timedelta(minutes=1)
    with other.transaction():
        other("select from holdfast.job where id = %s for update", job)
        due = background(lambda: sql.value("reschedule", id=job, run_at=soon))
        other.until(lambda: other.is_waiting(sql))
        clock.advance(minutes=10)
    assert due() == sql.job(job).run_at
    assert sql.state(job) == "pending"


def test_who_is_hurried_is_due_now(sql: Session, now: Now) -> None:
    job = sql.enqueue(delay="1 hour")
    sql.value("run_now", id=job)
    assert sql.job(job).run_at <= now()

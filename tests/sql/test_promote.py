"""Scheduled jobs become pending when they are due, in order, and bit by bit."""

from datetime import timedelta

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Connect, Refused, Session, Together


def test_due_jobs_become_pending_in_the_order_they_fell_due(sql: Session, clock: Clock) -> None:
    delays = [5, 3, 9, 1, 7, 3]
    tasks = ["a", "b", "c", "a", "b", "c"]
    ids = [row[0] for row in sql.rows("enqueue_many", tasks=tasks, delays=[f"{each} s" for each in delays])]
    pending = sql.enqueue()
    clock.advance(seconds=8)
    sql.value("promote")
    due = [job_id for _, _, job_id in sorted(zip(delays, range(6), ids, strict=True)) if job_id != ids[2]]
    # Delayed jobs take their place at the end when they fall due.
    assert [job.id for job in sql.claim()] == [pending, *due]
    assert sql.state(ids[2]) == "scheduled"


def test_the_answer_is_how_long_it_is_until_the_next_one(sql: Session, clock: Clock) -> None:
    assert sql.value("promote") is None
    sql.enqueue(delay="10 minutes")
    wait = sql.value("promote")
    assert timedelta(minutes=9) < wait <= timedelta(minutes=10)
    clock.advance(minutes=11)
    sql.enqueue(delay="1 hour")
    assert timedelta(minutes=59) < sql.value("promote") <= timedelta(hours=1)


def test_a_flood_is_let_in_bit_by_bit(sql: Session, clock: Clock) -> None:
    sql.enqueue_many(25, delays=["1 s"] * 25)
    clock.advance(seconds=2)
    pending = "select count(*) from holdfast.job where state = 'pending'"
    for expected in (10, 20):
        assert sql.value("promote", amount=10) < timedelta(0), "more are waiting already"
        assert sql.one(pending) == expected
    assert sql.value("promote", amount=10) is None
    assert sql.one(pending) == 25


@pytest.mark.parametrize("amount", [0, -1, 100_001, None])
def test_an_amount_outside_its_range_is_refused(sql: Session, amount: int | None, refused: Refused) -> None:
    with refused("HF008"):
        sql.value("promote", amount=amount)


def test_a_retry_goes_before_fresh_jobs_of_its_priority_but_not_before_more_urgent_ones(
    sql: Session, clock: Clock
) -> None:
    first, second = sql.enqueue("a"), sql.enqueue("b")
    for job in sql.claim():
        sql.value("fail", id=job.id, lease=job.lease, error="no", retry_in=f"{5 if job.id == first else 1} s")
    fresh, urgent = sql.enqueue("a"), sql.enqueue("a", priority=150)
    clock.advance(seconds=6)
    sql.value("promote")
    assert [job.id for job in sql.claim()] == [urgent, second, first, fresh]


def test_many_retries_of_many_tasks_keep_the_order_in_which_they_fell_due(sql: Session, clock: Clock) -> None:
    tasks = [f"task{n % 7}" for n in range(210)]
    ids = [row[0] for row in sql.rows("enqueue_many", tasks=tasks)]
    sql.finish(sql.claim_all(), "failed", delays=[f"{300 - n} s" for n in range(210)])
    clock.advance(seconds=301)
    sql.value("promote")
    assert [job.id for job in sql.claim_all()] == ids[::-1]


def test_a_promotion_steps_over_a_job_that_is_being_changed(
    sql: Session, other: Session, clock: Clock
) -> None:
    first, second = sql.enqueue(delay="1 s"), sql.enqueue(delay="1 s")
    clock.advance(seconds=2)
    with other.connection.transaction():
        other.value("cancel", id=first)
        sql.value("promote")
    assert [sql.state(first), sql.state(second)] == ["cancelled", "pending"]


def test_a_promotion_beside_another_leaves_the_work_to_it(sql: Session, other: Session, clock: Clock) -> None:
    sql.enqueue_many(3, delays=["1 s"] * 3)
    clock.advance(seconds=2)
    with sql.connection.transaction():
        sql.value("promote", amount=1)
        assert other.value("promote") == timedelta(milliseconds=100), "to see whether it was done"
    assert sql.one("select count(*) from holdfast.job where state = 'pending'") == 1


def test_a_job_that_became_due_is_not_promoted_twice(
    sql: Session, connect: Connect, together: Together, clock: Clock
) -> None:
    sql.enqueue_many(200, delays=["1 s"] * 200)
    clock.advance(seconds=2)
    sessions = [connect() for _ in range(4)]
    together(*[lambda s=s: [s.value("promote", amount=10) for _ in range(30)] for s in sessions])
    while sql.value("promote") is not None:
        pass
    assert len(sql.claim_all()) == 200


def test_what_somebody_has_locked_is_looked_at_again_a_little_later(
    sql: Session, other: Session, clock: Clock
) -> None:
    job_id = sql.enqueue(delay="1 s")
    clock.advance(seconds=2)
    with other.connection.transaction():
        other("select from holdfast.job where id = %s for update", job_id)
        assert timedelta(milliseconds=50) <= sql.value("promote") <= timedelta(seconds=1), "and not at once"
    assert sql.value("promote") is None
    assert sql.state(job_id) == "pending"

"""Cancels: many at a time, by queue and task, told to the worker that holds the job; one winner in a race."""

import threading
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.sql.sessions import Background, Connect, Refused, Session


def test_each_of_many_is_answered_for(sql: Session) -> None:
    waiting, delayed, done = sql.enqueue("a"), sql.enqueue("a", delay="1 hour"), sql.enqueue("b")
    (job,) = sql.claim(tasks=["b"])
    sql.value("complete", id=job.id, lease=job.lease)
    held = sql.enqueue("b")
    sql.claim(tasks=["b"])
    missing = uuid4()
    ids = [held, waiting, missing, done, delayed, waiting]
    assert {row.id: row.answer for row in sql.rows("cancel_many", ids=ids)} == {
        waiting: "cancelled",
        delayed: "cancelled",
        held: "requested",
        done: "completed",
        missing: None,
    }
    (note,) = sql("select action, detail from holdfast.audit")
    assert note == ("cancel many", {"cancelled": 2, "requested": 1})
    assert sql.rows("cancel_many", ids=[]) == []


def test_a_queue_or_a_task_is_called_off_in_batches(sql: Session) -> None:
    sql.enqueue_many(5, "a", queues=["mail"] * 5)
    sql.enqueue_many(3, "b", queues=["mail"] * 3)
    spared = sql.enqueue("a")
    sql.claim(2, queues=["mail"], tasks=["b"])
    ((cancelled, requested, last),) = sql.rows("cancel_matching", queue="mail", task="a", amount=3)
    assert (cancelled, requested) == (3, 0)
    assert sql.state(last) == "cancelled"
    assert sql.rows("cancel_matching", queue="mail", state="claimed") == [(0, 2, None)]
    assert sql.rows("cancel_matching", queue="mail") == [(3, 0, None)]
    assert sql.rows("cancel_matching", queue="mail") == [(0, 0, None)]
    assert sql.state(spared) == "pending"


def test_batches_go_on_where_the_one_before_has_ended(sql: Session) -> None:
    nil = sql.enqueue("a", id=UUID(int=0))
    ids = sorted([nil, *(sql.enqueue("a") for _ in range(4))])
    first, second, third = ids[:2], ids[2:4], ids[4:]
    assert sql.rows("cancel_matching", task="a", amount=2) == [(2, 0, first[-1])]
    assert sql.rows("cancel_matching", task="a", amount=2, after=second[0]) == [(2, 0, third[-1])]
    assert sql.state(second[0]) == "pending"
    assert sql.rows("cancel_matching", task="a", amount=2, after=third[-1]) == [(0, 0, None)]
    assert sql.rows("cancel_matching", task="a", amount=2) == [(1, 0, None)]


@pytest.mark.parametrize(
    ("options", "field"),
    [({}, "queue"), ({"task": "a", "state": "dead"}, "state"), ({"task": "a", "amount": 0}, "amount")],
)
def test_a_cancel_that_is_too_wide_or_wrong_is_refused(
    sql: Session, refused: Refused, options: dict[str, Any], field: str
) -> None:
    job_id = sql.enqueue("a")
    with refused("HF008") as error:
        sql.rows("cancel_matching", **options)
    assert error.detail["field"] == field
    assert sql.state(job_id) == "pending"


def test_the_worker_that_holds_a_job_hears_of_it_until_it_has_ended(sql: Session) -> None:
    sql.enqueue_many(2)
    worker, stranger = uuid4(), uuid4()
    first, second = sql.claim(worker=worker)
    assert sql.rows("cancels", worker=worker) == []
    sql.value("cancel", id=first.id)
    assert sql.rows("cancels", worker=worker) == [(first.id, first.lease)]
    assert sql.rows("cancels", worker=stranger) == []
    sql.finish([first, second], "cancelled")
    assert sql.rows("cancels", worker=worker) == []
    assert sql.one("select count(*) from holdfast.cancellation") == 1
    sql.value("upkeep")
    assert sql.one("select count(*) from holdfast.cancellation") == 0


def test_only_jobs_that_are_still_in_that_state_are_called_off(
    sql: Session, other: Session, background: Background
) -> None:
    """Who cancels what waits does not mean what runs by then."""
    sql.enqueue("a")
    with other.transaction():
        (job,) = other.claim()
        late = background(lambda: sql.rows("cancel_matching", task="a", state="pending"))
        other.until(lambda: other.is_waiting(sql))
    assert late() == [(0, 0, None)]
    assert sql.live(job.id).cancel_requested_at is None


def test_a_job_that_was_replayed_and_claimed_meanwhile_is_not_taken_from_its_worker(
    sql: Session, connect: Connect, background: Background
) -> None:
    first, second = sorted(sql.enqueue_many(2))
    for job in sql.claim():
        if job.id == second:
            sql.value("fail", id=second, lease=job.lease, error="no", retry=False)
    holder, replayer, claimer, canceller = (connect() for _ in range(4))
    with claimer.transaction():
        with holder.transaction():
            holder("select from holdfast.job where id = %s for update", first)
            late = background(lambda: canceller.rows("cancel_many", ids=[first, second]))
            sql.until(lambda: sql.is_waiting(canceller))
            replayer.value("replay", id=second)
            (job,) = claimer.claim()
            assert job.id == second
        sql.until(lambda: sql.is_waiting(canceller))
    assert {row.id: row.answer for row in late()} == {first: "requested", second: "requested"}
    assert sql.rows("cancels", worker=job.worker) == [(second, job.lease)]
    assert sql.finish([job], "completed") == []


@pytest.mark.parametrize("outcome", ["failed", "snoozed", "released", "interrupted", "cancelled"])
def test_every_end_but_completion_is_then_a_cancel(sql: Session, outcome: str) -> None:
    job_id = sql.enqueue()
    job = sql.claim_one()
    assert sql.value("cancel", id=job_id) == "requested"
    assert sql.finish([job], outcome) == []
    assert sql.state(job_id) == "cancelled"


def test_two_hundred_races_have_one_winner_each(sql: Session, connect: Connect) -> None:
    """Whoever cancels and whoever completes both learn who won, and nothing is left unfinished."""
    sql.enqueue_many(200)
    jobs = sql.claim_all()
    answers: dict[object, str] = {}
    refusals: list[object] = []
    gate = threading.Barrier(2)

    def cancel(session: Session) -> None:
        for job in jobs:
            gate.wait()
            answers[job.id] = session.value("cancel", id=job.id)

    def complete(session: Session) -> None:
        for number, job in enumerate(jobs):
            gate.wait()
            # Half of them complete, the others fail for good: as cancelled, if the cancel came first.
            outcome = "completed" if number % 2 else "failed"
            refusals.extend(session.finish([job], outcome, retries=[False]))

    threads = [threading.Thread(target=role, args=[connect()]) for role in (cancel, complete)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert refusals == []
    assert sql.one("select count(*) from holdfast.job") == 0
    for number, job in enumerate(jobs):
        state = sql.state(job.id)
        if answers[job.id] == "requested":  # the cancel came first
            assert state == ("completed" if number % 2 else "cancelled")
        else:
            assert answers[job.id] == state == ("completed" if number % 2 else "dead")
    ends = sql.one(
        "select (select count(*) from holdfast.finished) + (select count(*) from holdfast.dead_letter)"
    )
    assert ends == 200

"""Dead letters: found, replayed as the same job, purged; and a waiting job given up by hand."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Connect, Refused, Session, Together


@pytest.fixture
def dead(sql: Session) -> Callable[..., UUID]:
    """`dead(task, error)`: a job that has died of this error."""

    def die(task: str = "task", error: str = "no", **options: Any) -> UUID:
        job_id = sql.enqueue(task, **options)
        (job,) = [job for job in sql.claim_all() if job.id == job_id]
        sql.value("fail", id=job.id, lease=job.lease, error=error, retry=False)
        assert sql.state(job_id) == "dead"
        return job_id

    return die


def audit(sql: Session) -> list[Any]:
    return sql("select action, target, detail from holdfast.audit order by id")


def test_dead_jobs_are_found_by_queue_task_error_and_time(
    sql: Session, dead: Callable[..., UUID], clock: Clock
) -> None:
    first = dead("a", "Connection REFUSED", queue="mail")
    clock.advance(hours=1)
    between = sql.one("select holdfast.clock()")
    clock.advance(hours=1)
    second = dead("b", "timed out", queue="mail", priority=7, payload='{"n": 1}')
    third = dead("b", "timed out")
    sql.enqueue("b", queue="mail")

    def found(**which: Any) -> list[UUID]:
        return [job.id for job in sql.rows("list_dead", **which)]

    assert found() == [third, second, first]
    assert found(amount=1) == [third]
    assert found(queue="mail") == [second, first]
    assert found(task="b") == [third, second]
    assert found(error="connection refused") == [first]
    assert found(error="50% off") == []
    assert found(died_after=between) == [third, second]
    assert found(died_before=between) == [first]
    assert found(queue="mail", error="TIMED") == [second]
    (job,) = sql.rows("list_dead", queue="mail", task="b")
    assert (job.state, job.priority, job.payload, job.last_error) == ("dead", 7, {"n": 1}, "timed out")


def test_a_replayed_job_is_the_same_job_with_all_its_attempts_before_it(
    sql: Session, dead: Callable[..., UUID]
) -> None:
    job_id = dead("a", "no", queue="mail", priority=7, payload='{"n": 1}', headers='{"h": 2}', max_attempts=2)
    before = sql.job(job_id)
    assert sql.value("replay", id=job_id) == "pending"
    after = sql.job(job_id)
    assert (after.state, after.attempt, after.max_attempts) == ("pending", 0, 2)
    same = ("id", "queue", "priority", "task", "payload", "created_at", "last_error")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert after.headers == {"h": 2, "resumes": True}
    assert [row.error for row in sql.rows("job_errors", id=job_id)] == ["no"]
    assert sql.rows("list_dead") == []
    assert audit(sql) == [("replay", str(job_id), None)]

    job = sql.claim_one()
    assert (job.id, job.attempt, job.payload) == (job_id, 1, {"n": 1})
    sql.value("complete", id=job.id, lease=job.lease)
    assert sql.state(job_id) == "completed"


def test_a_replayed_job_dies_again_when_its_attempts_are_used_up(
    sql: Session, dead: Callable[..., UUID], clock: Clock
) -> None:
    job_id = dead(max_attempts=2)
    sql.value("replay", id=job_id)
    for attempt in (1, 2):
        clock.advance(hours=2)
        sql.value("promote")
        job = sql.claim_one()
        assert job.attempt == attempt
        sql.value("fail", id=job.id, lease=job.lease, error=f"again {attempt}")
    assert sql.state(job_id) == "dead"
    assert [row.error for row in sql.rows("job_errors", id=job_id)] == ["no", "again 1", "again 2"]


def test_what_its_last_holder_reports_after_a_replay_is_refused(sql: Session, refused: Refused) -> None:
    job_id = sql.enqueue(max_attempts=1)
    job = sql.claim_one()
    sql.value("fail", id=job.id, lease=job.lease, error="no")
    sql.value("replay", id=job_id)
    with refused("HF003"):
        sql.value("complete", id=job.id, lease=job.lease)
    assert sql.state(job_id) == "pending"


def test_many_are_replayed_oldest_first_and_wake_a_sleeper(
    sql: Session, other: Session, dead: Callable[..., UUID], clock: Clock
) -> None:
    ids = []
    for number in range(4):
        ids.append(dead("a", f"error {number}", queue="mail", priority=number))
        clock.advance(minutes=1)
    spared = dead("b", "error 9")
    worker = sql.value("register", queues=["mail"])
    sql.value("sleep", worker=worker)
    sql("listen holdfast_mail")
    assert other.value("replay_many", queue="mail", amount=3) == 3
    assert [note.payload for note in sql.connection.notifies(timeout=5, stop_after=1)] == ["mail"]
    assert other.value("replay_many", error="error 3") == 1
    assert sql.state(spared) == "dead"
    assert [job.id for job in sql.claim(queues=["mail"])] == ids[::-1]  # by priority
    assert audit(sql) == [
        ("replay many", "mail", {"jobs": 3}),
        ("replay many", "*", {"jobs": 1, "error": "error 3"}),
    ]


def test_two_who_replay_the_same_jobs_share_them(
    sql: Session, connect: Connect, dead: Callable[..., UUID], together: Together
) -> None:
    for _ in range(20):
        dead()
    sessions = [connect() for _ in range(4)]
    assert sum(together(*(lambda s=s: s.value("replay_many", everything=True) for s in sessions))) == 20
    assert len(sql.claim_all()) == 20


@pytest.mark.parametrize("verb", ["replay", "purge"])
def test_only_dead_jobs_are_replayed_or_purged(sql: Session, refused: Refused, verb: str) -> None:
    job_id = sql.enqueue()
    with refused("HF010") as error:
        sql.value(verb, id=job_id)
    assert f"job {job_id} is pending: only a dead job" in error.message
    assert error.detail["from_state"] == "pending"
    with refused("HF002"):
        sql.value(verb, id=uuid4())
    assert sql.state(job_id) == "pending"


def test_a_letter_whose_id_a_live_job_has_is_left_alone(
    sql: Session, dead: Callable[..., UUID], clock: Clock, refused: Refused
) -> None:
    job_id = uuid4()
    dead(id=job_id)
    clock.advance(days=8)
    sql.value("upkeep")  # forgets the id
    sql.enqueue("other", id=job_id)
    with refused("HF010"):
        sql.value("replay", id=job_id)
    assert sql.value("replay_many", everything=True) == 0
    dead("another")
    assert sql.value("replay_many", everything=True) == 1
    assert sql.one("select array_agg(id) from holdfast.dead_letter") == [job_id]
    assert sql.live(job_id).task == "other"


def test_a_letter_that_expires_leaves_the_events_of_a_later_job_with_its_id(
    sql: Session, dead: Callable[..., UUID], clock: Clock
) -> None:
    job_id = uuid4()
    dead(id=job_id)
    clock.advance(days=8)
    sql.value("upkeep")  # forgets the id
    sql.enqueue("other", id=job_id)
    clock.advance(days=358)
    sql.value("cancel", id=job_id)
    sql.value("upkeep")
    assert sql.rows("list_dead") == []
    assert [event.name for event in sql.rows("read_events", job_id=job_id)][-1] == "job.cancelled"


def test_purged_jobs_are_gone_with_their_errors(
    sql: Session, dead: Callable[..., UUID], refused: Refused
) -> None:
    first, second, third = (dead(error=f"error {number}") for number in range(3))
    sql.value("purge", id=first)
    assert sql.rows("job", id=first) == []
    assert sql.rows("job_errors", id=first) == []
    assert sql.value("purge_many", error="error 2") == 1
    assert [job.id for job in sql.rows("list_dead")] == [second]
    assert sql.value("purge_many", died_before=sql.job(second).finished_at + timedelta(seconds=1)) == 1
    assert [action for action, *_ in audit(sql)] == ["purge", "purge many", "purge many"]
    with refused("HF002"):
        sql.value("replay", id=third)


@pytest.mark.parametrize("verb", ["replay_many", "purge_many"])
def test_an_amount_below_one_is_refused(sql: Session, refused: Refused, verb: str) -> None:
    with refused("HF008") as error:
        sql.value(verb, amount=0)
    assert error.detail["field"] == "amount"


@pytest.mark.parametrize("delay", [None, "1 hour"])
def test_a_waiting_job_is_given_up_with_a_reason(sql: Session, delay: str | None) -> None:
    job_id = sql.enqueue(delay=delay)
    assert sql.value("give_up", id=job_id, reason="nobody wants it") == "dead"
    assert (sql.job(job_id).state, sql.job(job_id).last_error) == ("dead", "nobody wants it")
    assert [row.error for row in sql.rows("job_errors", id=job_id)] == ["nobody wants it"]
    assert sql.claim() == []
    assert audit(sql) == [("give up", str(job_id), {"reason": "nobody wants it"})]
    assert sql.value("give_up", id=job_id) == "dead"
    sql.value("replay", id=job_id)
    assert sql.claim_one().id == job_id


def test_a_job_that_does_not_wait_cannot_be_given_up(sql: Session, refused: Refused) -> None:
    sql.enqueue()
    job = sql.claim_one()
    with refused("HF010") as error:
        sql.value("give_up", id=job.id)
    assert "claimed" in error.message
    sql.value("complete", id=job.id, lease=job.lease)
    with refused("HF010"):
        sql.value("give_up", id=job.id)
    with refused("HF002"):
        sql.value("give_up", id=uuid4())

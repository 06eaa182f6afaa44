"""What an operator does to jobs and queues, and that it is written down."""

from typing import Any
from uuid import uuid4

import pytest

from tests.sql.sessions import Refused, Session


def audit(sql: Session) -> list[Any]:
    return sql("select action, target, detail from holdfast.audit order by id")


@pytest.mark.parametrize("state", ["pending", "scheduled"])
def test_a_job_that_nobody_holds_is_cancelled_at_once(sql: Session, state: str) -> None:
    job_id = sql.enqueue(payload="[1]", delay="1 hour" if state == "scheduled" else None)
    assert sql.value("cancel", id=job_id) == "cancelled"
    job = sql.job(job_id)
    assert (job.state, job.payload, job.attempt) == ("cancelled", [1], 0)
    assert job.finished_at is not None
    assert sql.live(job_id) is None
    assert audit(sql) == [("cancel", str(job_id), None)]
    assert sql.value("cancel", id=job_id) == "cancelled"
    assert len(audit(sql)) == 1


def test_a_claimed_job_is_marked_and_its_holder_decides(sql: Session) -> None:
    job_id = sql.enqueue()
    job = sql.claim_one()
    assert [sql.value("cancel", id=job_id) for _ in range(2)] == ["requested"] * 2
    assert sql.job(job_id).cancel_requested_at is not None
    sql.value("complete", id=job.id, lease=job.lease)
    assert sql.value("cancel", id=job_id) == "completed"


def test_cancel_says_how_a_job_has_ended_already(sql: Session, refused: Refused) -> None:
    job_id = sql.enqueue()
    job = sql.claim_one()
    sql.value("fail", id=job.id, lease=job.lease, error="no", retry=False)
    assert sql.value("cancel", id=job_id) == "dead"
    with refused("HF002") as error:
        sql.value("cancel", id=(missing := uuid4()))
    assert error.detail["id"] == str(missing)


def test_run_now_waits_for_no_time(sql: Session) -> None:
    delayed, failed = sql.enqueue("a", delay="1 day"), sql.enqueue("b")
    job = sql.claim_one()
    sql.value("fail", id=failed, lease=job.lease, error="no")
    fresh = sql.enqueue("a")
    assert [sql.value("run_now", id=job_id) for job_id in (delayed, failed)] == ["pending"] * 2
    # A retry goes first; a delayed job takes its place at the end, as when it falls due.
    assert [job.id for job in sql.claim()] == [failed, fresh, delayed]
    assert audit(sql) == [("run now", str(delayed), None), ("run now", str(failed), None)]


def test_run_now_of_a_job_that_does_not_wait_says_where_it_is(sql: Session, refused: Refused) -> None:
    job_id = sql.enqueue()
    assert sql.value("run_now", id=job_id) == "pending"
    job = sql.claim_one()
    assert sql.value("run_now", id=job_id) == "claimed"
    sql.value("complete", id=job.id, lease=job.lease)
    assert sql.value("run_now", id=job_id) == "completed"
    assert audit(sql) == []
    with refused("HF002"):
        sql.value("run_now", id=uuid4())


def test_run_now_of_a_job_out_of_attempts_ends_it(sql: Session) -> None:
    job_id = sql.enqueue()
    job = sql.claim_one()
    sql.value("fail", id=job.id, lease=job.lease, error="no")
    sql("update holdfast.job set max_attempts = 1")
    assert sql.value("run_now", id=job_id) == "dead"


def test_a_queue_is_paused_before_it_has_ever_been_used(sql: Session) -> None:
    sql.value("pause", queue="new")
    sql.enqueue(queue="new")
    assert sql.claim() == []
    since = sql.one("select paused_at from holdfast.queue where name = 'new'")
    sql.value("pause", queue="new")
    assert sql.one("select paused_at from holdfast.queue where name = 'new'") == since
    sql.value("resume", queue="new")
    assert len(sql.claim()) == 1
    assert [entry[:2] for entry in audit(sql)] == [("pause", "new"), ("pause", "new"), ("resume", "new")]


def test_pausing_keeps_a_queues_other_settings(sql: Session) -> None:
    sql("insert into holdfast.queue (name, payload_limit) values ('q', 2048)")
    sql.value("pause", queue="q")
    sql.value("resume", queue="q")
    assert sql.one("select payload_limit from holdfast.queue where name = 'q'") == 2048


def test_what_runs_in_a_paused_queue_goes_on(sql: Session) -> None:
    sql.enqueue()
    job = sql.claim_one()
    sql.value("pause", queue="default")
    assert sql.finish([job]) == []
    assert {row.paused for row in sql.rows("stats")} == {True}


@pytest.mark.parametrize("name", ["*", "Bad", "", None])
def test_what_is_no_queue_cannot_be_paused(sql: Session, name: str | None, refused: Refused) -> None:
    for verb in ("pause", "resume"):
        with refused("HF005"):
            sql.value(verb, queue=name)

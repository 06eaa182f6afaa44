"""Jobs whose start is on record: a deadline that is enforced, and one run at most."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Session

Started = Callable[..., tuple[UUID, Any]]


@pytest.fixture
def started(sql: Session) -> Started:
    """`started(timeout=…, once=…)`: a job that its worker has begun."""

    def start(timeout: str | None = None, once: bool = False, **options: Any) -> tuple[UUID, Any]:
        job_id = sql.enqueue(**options)
        job = sql.claim_one(worker=(worker := sql.value("register")))
        gone = sql.rows("start", ids=[job.id], leases=[job.lease], timeouts=[timeout], once=[once])
        assert (job.id, gone) == (job_id, [])
        return worker, job

    return start


def test_what_may_run_once_is_dead_when_its_worker_is_lost(sql: Session, started: Started) -> None:
    worker, job = started(once=True, max_attempts=5)
    assert sql.lose(worker) == 1
    assert sql.state(job.id) == "dead"
    assert "lost" in sql.job(job.id).last_error
    worker, job = started(max_attempts=5)
    assert sql.lose(worker) == 1
    assert sql.state(job.id) == "pending"


def test_what_may_run_once_pays_also_beside_a_suspect(sql: Session, started: Started) -> None:
    """Of a worker that had a suspect only suspects are charged: but a started one has run."""
    worker, suspect = started()
    sql.lose(worker)
    second = sql.value("register")
    (suspect,) = sql.claim(worker=second)
    once = sql.enqueue(max_attempts=5)
    (job,) = sql.claim(worker=second)
    sql.rows("start", ids=[job.id], leases=[job.lease], once=[True])
    assert sql.lose(second) == 2
    assert (sql.state(once), sql.state(suspect.id)) == ("dead", "pending")


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_what_may_run_once_is_dead_whatever_its_reporter_says_of_a_retry(
    sql: Session, started: Started, outcome: str
) -> None:
    _, job = started(once=True, max_attempts=5)
    assert sql.finish([job], outcome, retries=[True]) == []
    assert sql.state(job.id) == "dead"
    _, job = started(max_attempts=5)
    assert sql.finish([job], outcome, retries=[True]) == []
    assert sql.state(job.id) != "dead"


def test_what_may_run_once_is_dead_when_its_worker_leaves_without_a_word(
    sql: Session, started: Started
) -> None:
    worker, job = started(once=True, max_attempts=5)
    assert sql.value("leave", worker=worker) == 1
    assert sql.state(job.id) == "dead"


def test_what_may_run_once_and_was_given_back_unstarted_is_handed_out_again(
    sql: Session, started: Started
) -> None:
    """Its start was written, but the reply was lost: its worker did not begin."""
    _, job = started(once=True, max_attempts=1)
    assert sql.finish([job], "released") == []
    assert (sql.state(job.id), sql.claim_one().attempt) == ("pending", 1)


def test_one_that_was_never_started_is_handed_out_again(sql: Session) -> None:
    job_id = sql.enqueue(max_attempts=1)
    worker = sql.value("register")
    sql.claim_one(worker=worker)
    sql.lose(worker)
    assert sql.state(job_id) == "pending"


def test_a_job_is_taken_away_a_little_after_its_deadline(
    sql: Session, started: Started, clock: Clock
) -> None:
    worker, job = started(timeout="1 minute", max_attempts=2)
    for _ in range(12):
        clock.advance(seconds=5)
        sql.value("heartbeat", worker=worker)
        assert sql.value("recover") == 0
    clock.advance(seconds=6)
    sql.value("heartbeat", worker=worker)
    assert sql.value("recover") == 1
    assert sql.state(job.id) == "pending"
    assert sql.job(job.id).last_error.startswith("timed out")
    (refusal,) = sql.finish([job])
    assert refusal.sqlstate == "HF001"
    assert [row.error for row in sql.rows("job_errors", id=job.id)] == [sql.job(job.id).last_error]


def test_an_overdue_job_without_attempts_is_dead(sql: Session, started: Started, clock: Clock) -> None:
    worker, job = started(timeout="1 second", max_attempts=1)
    clock.advance(seconds=7)
    sql.value("heartbeat", worker=worker)
    sql.value("recover")
    assert sql.state(job.id) == "dead"


def test_a_suspect_gets_its_deadline_too(sql: Session, started: Started) -> None:
    worker, job = started(timeout="1 minute")
    sql.lose(worker)
    suspect = sql.claim_one()
    assert (suspect.id, suspect.suspect) == (job.id, True)
    sql.rows("start", ids=[suspect.id], leases=[suspect.lease], timeouts=["1 minute"], once=[True])
    assert sql("select lease, deadline_at is not null, once from holdfast.running") == [
        (suspect.lease, True, True)
    ]


def test_a_start_that_is_repeated_keeps_what_was_said(sql: Session, started: Started) -> None:
    _, job = started(timeout="1 minute", once=True)
    sql.rows("start", ids=[job.id], leases=[job.lease])
    sql.value("progress", id=job.id, lease=job.lease, percent=5)
    assert sql("select progress, deadline_at is not null, once from holdfast.running") == [(5, True, True)]


def test_a_start_waits_for_another_under_way_and_says_what_it_has_to_say(
    sql: Session, other: Session, background: Background
) -> None:
    """A worker that is slow to begin a job records it as running at the very moment that it begins."""
    sql.enqueue()
    job = sql.claim_one()
    with other.transaction():
        other.rows("start", ids=[job.id], leases=[job.lease])
        late = background(
            lambda: sql.rows("start", ids=[job.id], leases=[job.lease], timeouts=["1 minute"], once=[True])
        )
        other.until(lambda: other.is_waiting(sql))
    assert late() == []
    assert sql("select deadline_at is not null, once from holdfast.running") == [(True, True)]


def test_what_is_no_longer_held_is_named(sql: Session, started: Started) -> None:
    worker, job = started()
    other = sql.enqueue()
    assert sql.rows("not_held", ids=[job.id], leases=[job.lease]) == []
    assert [row[0] for row in sql.rows("not_held", ids=[job.id, other], leases=[job.lease, job.lease])] == [
        other
    ]
    sql.lose(worker)
    assert [row[0] for row in sql.rows("not_held", ids=[job.id], leases=[job.lease])] == [job.id]


@pytest.mark.parametrize(("once", "kept"), [(True, "on"), (False, "off")])
def test_a_start_that_must_be_the_only_one_is_on_disk_whatever_the_session_says(
    sql: Session, once: bool, kept: str
) -> None:
    sql.enqueue()
    job = sql.claim_one()
    sql("set synchronous_commit = off")
    with sql.transaction():
        sql.rows("start", ids=[job.id], leases=[job.lease], once=[once])
        assert sql.one("select current_setting('synchronous_commit')") == kept
    assert sql.one("select current_setting('synchronous_commit')") == "off"


def test_what_a_start_has_said_stays_when_another_start_says_less(sql: Session) -> None:
    sql.enqueue()
    job = sql.claim_one()
    sql.rows("start", ids=[job.id], leases=[job.lease], once=[True], timeouts=["1 hour"])
    said = "select deadline_at > holdfast.clock() + interval '30 minutes', once from holdfast.running"
    sql.rows("start", ids=[job.id], leases=[job.lease], once=[True])
    assert sql(said) == [(True, True)]
    sql.rows("start", ids=[job.id], leases=[job.lease], timeouts=["1 minute"])
    assert sql(said) == [(False, True)]


def test_a_start_says_nothing_for_a_later_claim(sql: Session) -> None:
    sql.enqueue()
    job = sql.claim_one()
    sql.rows("start", ids=[job.id], leases=[job.lease], timeouts=["1 hour"])
    with sql.transaction():
        sql("update holdfast.running set once = true")  # the row of an earlier claim may stay behind
        sql("update holdfast.running set lease = gen_random_uuid()")
    sql.rows("start", ids=[job.id], leases=[job.lease], timeouts=["1 minute"])
    assert sql("select once from holdfast.running") == [(False,)]

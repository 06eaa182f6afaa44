"""What becomes of a job by each outcome that can be reported."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Refused, Session


@pytest.fixture
def held(sql: Session) -> Callable[..., Any]:
    """Enqueue and claim a job; returns it as the claim did."""

    def claim(task: str = "task", **options: Any) -> Any:
        sql.enqueue(task, **options)
        return sql.claim_one(tasks=[task])

    return claim


def test_a_completed_job_has_a_result_a_time_and_a_duration(sql: Session, held: Callable[..., Any]) -> None:
    job = held(payload='{"n": 1}', queue="q", priority=3, headers='{"h": 1}')
    sql.value("complete", id=job.id, lease=job.lease, result='{"ok": true}')
    done = sql.job(job.id)
    assert (done.state, done.result, done.progress, done.attempt) == ("completed", {"ok": True}, 100, 1)
    assert (done.payload, done.queue, done.priority, done.headers) == ({"n": 1}, "q", 3, {"h": 1})
    assert (done.worker, done.lease) == (job.worker, None)
    assert done.created_at <= done.claimed_at <= done.started_at <= done.finished_at == done.changed_at
    assert done.duration == done.finished_at - done.started_at
    assert sql.live(job.id) is None


def test_the_duration_is_the_workers_own_measure_where_no_start_was_written(
    sql: Session, held: Callable[..., Any], clock: Clock
) -> None:
    job = held()
    clock.advance(seconds=60)
    sql.finish([job], "completed", durations=[2.5])
    assert sql.job(job.id).duration == timedelta(seconds=2.5)


def test_the_duration_counts_from_the_start_that_was_written(
    sql: Session, held: Callable[..., Any], clock: Clock
) -> None:
    job = held()
    assert sql.rows("start", ids=[job.id], leases=[job.lease]) == []
    clock.advance(seconds=60)
    sql.finish([job], "completed", durations=[1.0])
    assert timedelta(seconds=60) <= sql.job(job.id).duration < timedelta(seconds=70)
    assert sql("select from holdfast.running") == []


@pytest.mark.parametrize("seconds", [-5.0, 1e300, float("nan"), float("inf"), 86_400.0])
def test_a_duration_that_cannot_be_true_is_held_within_the_claim(
    sql: Session, held: Callable[..., Any], seconds: float
) -> None:
    job = held()
    assert sql.finish([job], "completed", durations=[seconds]) == []
    done = sql.job(job.id)
    assert done.claimed_at <= done.started_at <= done.finished_at


def test_a_failed_job_waits_for_its_backoff_and_comes_back(
    sql: Session, held: Callable[..., Any], clock: Clock
) -> None:
    job = held()
    sql.value("fail", id=job.id, lease=job.lease, error="no connection", traceback="line 1")
    waits = sql.job(job.id)
    assert (waits.state, waits.attempt, waits.last_error) == ("scheduled", 1, "no connection")
    assert (waits.worker, waits.lease) == (None, None)
    assert timedelta(seconds=60) <= waits.run_at - waits.changed_at <= timedelta(seconds=66)
    assert sql.claim() == []
    clock.advance(seconds=67)
    sql.value("promote")
    assert sql.claim_one().attempt == 2


def test_a_job_out_of_attempts_goes_to_the_dead_letters_whole(
    sql: Session, held: Callable[..., Any], clock: Clock
) -> None:
    job = held(payload='{"n": 1}', queue="q", priority=3, max_attempts=1, headers='{"h": 1}')
    clock.advance(seconds=5)
    sql.finish([job], "failed", errors=["broken"])
    assert sql.live(job.id) is None
    dead = sql.job(job.id)
    assert (dead.state, dead.last_error, dead.attempt, dead.max_attempts) == ("dead", "broken", 1, 1)
    assert (dead.payload, dead.queue, dead.priority, dead.headers) == ({"n": 1}, "q", 3, {"h": 1})
    assert dead.created_at <= dead.claimed_at < dead.finished_at
    assert dead.worker == job.worker


def test_the_reporter_can_forbid_the_retry(sql: Session, held: Callable[..., Any]) -> None:
    job = held(max_attempts=9)
    sql.value("fail", id=job.id, lease=job.lease, error="never again", retry=False)
    assert sql.state(job.id) == "dead"


@pytest.mark.parametrize("seconds", [0, 7, 86_400])
def test_the_reporter_can_set_the_delay(sql: Session, held: Callable[..., Any], seconds: int) -> None:
    job = held()
    sql.value("fail", id=job.id, lease=job.lease, error="busy", retry_in=timedelta(seconds=seconds))
    waits = sql.job(job.id)
    assert waits.run_at - waits.changed_at == timedelta(seconds=seconds)


@pytest.mark.parametrize("delay", ["-1 second", "101 years"])
def test_an_absurd_delay_is_refused_and_the_job_stays_held(
    sql: Session, held: Callable[..., Any], delay: str, refused: Refused
) -> None:
    job = held()
    with refused("HF008") as error:
        sql.value("fail", id=job.id, lease=job.lease, error="no", retry_in=delay)
    assert error.detail["field"] == "retry_in"
    for odd in (delay, None):
        with refused("HF008"):
            sql.value("snooze", id=job.id, lease=job.lease, delay=odd)
    assert sql.state(job.id) == "claimed"


def test_an_absurd_delay_in_a_batch_leaves_no_job_unfinishable(
    sql: Session, held: Callable[..., Any]
) -> None:
    jobs = [held(), held(), held()]
    assert sql.finish(jobs, "failed", delays=["300000 years", "-5 years", None]) == []
    assert [sql.job(job.id).state for job in jobs] == ["scheduled"] * 3


@pytest.mark.parametrize("outcome", ["failed", "snoozed"])
def test_the_event_of_a_report_has_the_time_at_which_its_job_is_due(
    sql: Session, held: Callable[..., Any], outcome: str
) -> None:
    delays = ["300000 years", "-5 years", "7 seconds"]
    jobs = [held() for _ in delays]
    sql.finish(jobs, outcome, delays=delays)
    for job in jobs:
        (event,) = sql.rows("read_events", job_id=job.id)
        assert sql.one("select %s::timestamptz", event.data["run_at"]) == sql.job(job.id).run_at
    waits = [sql.job(job.id).run_at - sql.job(job.id).changed_at for job in jobs]
    assert waits[1:] == [timedelta(0), timedelta(seconds=7)]
    assert timedelta(days=36_524) <= waits[0] <= timedelta(days=36_525)


def test_errors_are_kept_attempt_by_attempt(sql: Session, held: Callable[..., Any], clock: Clock) -> None:
    job = held(max_attempts=3)
    first = job
    for attempt in (1, 2, 3):
        sql.value("fail", id=job.id, lease=job.lease, error=f"error {attempt}", traceback=f"trace {attempt}")
        if attempt < 3:
            clock.advance(hours=1)
            sql.value("promote")
            job = sql.claim_one()
    errors = sql.rows("job_errors", id=first.id)
    assert [(error.attempt, error.error, error.traceback) for error in errors] == [
        (n, f"error {n}", f"trace {n}") for n in (1, 2, 3)
    ]
    assert errors[0].worker == first.worker
    assert sql.job(first.id).last_error == "error 3"


def test_a_long_error_is_cut_and_a_missing_one_is_named(sql: Session, held: Callable[..., Any]) -> None:
    job = held(max_attempts=1)
    sql.value("fail", id=job.id, lease=job.lease, error="e" * 1_000_000, traceback="t" * 1_000_000)
    (error,) = sql.rows("job_errors", id=job.id)
    assert (len(error.error), len(error.traceback), len(sql.job(job.id).last_error)) == (
        10_000,
        20_000,
        10_000,
    )
    silent = held()
    sql.value("fail", id=silent.id, lease=silent.lease, error=None)
    assert sql.job(silent.id).last_error == "failed"


def test_a_snoozed_job_comes_back_later_and_uses_up_no_attempt(
    sql: Session, held: Callable[..., Any], clock: Clock
) -> None:
    job = held(max_attempts=1)
    for _ in range(5):
        sql.value("snooze", id=job.id, lease=job.lease, delay="1 minute")
        waits = sql.job(job.id)
        assert (waits.state, waits.run_at - waits.changed_at) == ("scheduled", timedelta(minutes=1))
        assert waits.max_attempts - waits.attempt == 1
        clock.advance(seconds=61)
        sql.value("promote")
        job = sql.claim_one()
    sql.value("fail", id=job.id, lease=job.lease, error="at last")
    assert sql.state(job.id) == "dead"


def test_an_endless_snoozer_comes_to_an_end(sql: Session, held: Callable[..., Any]) -> None:
    job = held()
    sql("update holdfast.job set attempt = 32767, max_attempts = 32767")
    sql.value("snooze", id=job.id, lease=job.lease, delay="0")
    sql.value("promote")
    assert sql.state(job.id) == "dead"


def test_a_released_job_is_back_at_once_with_its_attempt(sql: Session, held: Callable[..., Any]) -> None:
    job = held()
    sql.value("release", id=job.id, lease=job.lease)
    back = sql.job(job.id)
    assert (back.state, back.attempt, back.worker, back.lease) == ("pending", 0, None, None)
    assert sql.claim_one().attempt == 1
    assert sql.rows("job_errors", id=job.id) == []


def test_an_interrupted_job_is_back_at_once_and_the_attempt_counts(
    sql: Session, held: Callable[..., Any]
) -> None:
    job = held(max_attempts=2)
    sql.finish([job], "interrupted")
    back = sql.job(job.id)
    assert (back.state, back.attempt, back.last_error) == (
        "pending",
        1,
        "interrupted: its worker was stopped",
    )
    again = sql.claim_one()
    sql.finish([again], "interrupted", errors=["stopped again"])
    assert (sql.state(job.id), sql.job(job.id).last_error) == ("dead", "stopped again")
    assert [error.error for error in sql.rows("job_errors", id=job.id)] == [back.last_error, "stopped again"]


def test_a_cancelled_job_has_ended(sql: Session, held: Callable[..., Any]) -> None:
    job = held()
    sql.finish([job], "cancelled", errors=["not needed"])
    done = sql.job(job.id)
    assert (done.state, done.last_error, done.progress) == ("cancelled", "not needed", None)


def test_returned_jobs_go_before_fresh_ones_of_their_priority_in_their_old_order(
    sql: Session, clock: Clock
) -> None:
    tasks = [f"task{n % 3}" for n in range(30)]
    ids = [row[0] for row in sql.rows("enqueue_many", tasks=tasks)]
    fresh = [sql.enqueue(), sql.enqueue()]
    urgent = sql.enqueue(priority=150)
    claimed = sql.claim(16)
    assert claimed[0].id == urgent
    sql.finish(list(reversed(claimed[1:])), "released")
    sql.finish(claimed[:1])
    assert [job.id for job in sql.claim_all()] == ids[:15] + ids[15:] + fresh


def test_interrupted_jobs_go_before_released_ones_of_the_same_batch(sql: Session) -> None:
    ids = [row[0] for row in sql.rows("enqueue_many", tasks=["task"] * 4)]
    outcomes = ["released", "interrupted", "released", "interrupted"]
    jobs = sql.claim_all()
    sql.rows("finish", ids=ids, leases=[job.lease for job in jobs], outcomes=outcomes)
    assert [job.id for job in sql.claim_all()] == [ids[1], ids[3], ids[0], ids[2]]


def test_a_batch_may_have_every_outcome_at_once(sql: Session, held: Callable[..., Any]) -> None:
    outcomes = ["completed", "failed", "released", "snoozed", "interrupted", "cancelled", None, "failed"]
    jobs = [held(f"task{n}", payload=f"[{n}]") for n in range(8)]
    refusals = sql.rows(
        "finish",
        ids=[job.id for job in jobs],
        leases=[job.lease for job in jobs],
        outcomes=outcomes,
        results=['"r"', *[None] * 7],
        errors=[None, "e1", None, None, None, None, None, "e7"],
        retries=[None, None, None, None, None, None, None, False],
        delays=[None, "5 s", None, "9 s", None, None, None, None],
        durations=[0.1] * 8,
    )
    assert refusals == []
    states = [sql.state(job.id) for job in jobs]
    assert states == [
        "completed",
        "scheduled",
        "pending",
        "scheduled",
        "pending",
        "cancelled",
        "completed",
        "dead",
    ]
    assert [sql.job(job.id).payload for job in jobs] == [[n] for n in range(8)]
    assert [sql.job(job.id).last_error for job in (jobs[1], jobs[7])] == ["e1", "e7"]
    assert sql.job(jobs[0].id).result == "r"


def test_each_dead_job_of_a_batch_keeps_its_own_error(sql: Session) -> None:
    ids = sql.enqueue_many(50, max_attempts=[1] * 50)
    sql.finish(sql.claim_all(), "failed", errors=[f"error {n}" for n in range(50)])
    assert [sql.job(job_id).last_error for job_id in ids] == [f"error {n}" for n in range(50)]


def test_reports_that_cannot_be_read_are_refused(
    sql: Session, held: Callable[..., Any], refused: Refused
) -> None:
    job = held()
    for arguments in [
        {"ids": [job.id], "leases": []},
        {"ids": [job.id], "leases": [job.lease], "outcomes": ["completed", "failed"]},
        {"ids": [job.id], "leases": [job.lease], "outcomes": ["done"]},
        {"ids": [job.id, job.id], "leases": [job.lease, job.lease]},
        {"ids": [job.id, job.id], "leases": [job.lease], "outcomes": ["failed", "failed"]},
    ]:
        with refused("HF008"):
            sql.rows("finish", **arguments)
    with refused("HF008"):
        sql.rows("start", ids=[job.id, job.id], leases=[job.lease, job.lease])
    with refused("HF002"):
        sql.value("complete", id=None, lease=job.lease)
    assert sql.state(job.id) == "claimed"
    assert sql("select * from holdfast.finish('{}', '{}')") == []


def test_a_wish_to_cancel_comes_true_when_the_job_does_not_complete(
    sql: Session, held: Callable[..., Any]
) -> None:
    for outcome in ("failed", "released", "snoozed", "interrupted", "completed"):
        job = held()
        assert sql.value("cancel", id=job.id) == "requested"
        assert sql.finish([job], outcome) == []
        assert sql.state(job.id) == ("completed" if outcome == "completed" else "cancelled")
        assert sql.finish([job], outcome) == [], "the same report again is accepted"


def test_a_finish_removes_what_hangs_on_the_job(sql: Session, held: Callable[..., Any]) -> None:
    for outcome in ("completed", "failed", "released", "snoozed", "interrupted", "cancelled"):
        job = held(outcome)
        sql.value("progress", id=job.id, lease=job.lease, percent=1)
        sql.finish([job], outcome)
    assert sql("select from holdfast.running") == []

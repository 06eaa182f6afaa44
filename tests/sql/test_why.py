"""Why does my job not run? A table of situations, each made through the public functions, and the answer."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.sql.sessions import Refused, Session


class Stage:
    """A database in which situations are prepared one after the other, each in a queue of its own."""

    def __init__(self, sql: Session) -> None:
        self.sql = sql
        self.workers: list[UUID] = []

    def worker(
        self,
        queue: str | None,
        *,
        name: str = "web-1",
        tasks: list[str] | None = None,
        lease_time: str = "30 seconds",
    ) -> UUID:
        worker = self.sql.value(
            "register",
            name=name,
            queues=None if queue is None else [queue],
            tasks=tasks,
            lease_time=lease_time,
            host="ship",
            pid=42,
        )
        self.workers.append(worker)
        return worker

    def beat(self) -> None:
        for worker in self.workers:
            self.sql.value("heartbeat", worker=worker)

    def later(self, interval: str) -> None:
        """Let time pass, with all workers alive."""
        self.pass_time(interval)
        self.beat()
        self.sql.value("recover")

    def pass_time(self, interval: str) -> None:
        self.sql("update holdfast.test_clock set shift = shift + extract(epoch from %s::interval)", interval)

    def why(self, job_id: UUID) -> list[Any]:
        return self.sql.rows("why", id=job_id)

    def answers(self, job_id: UUID) -> list[str]:
        return [row.answer for row in self.why(job_id)]


@pytest.fixture
def stage(sql: Session) -> Stage:
    return Stage(sql)


def test_a_job_that_no_worker_takes_is_answered_with_why(stage: Stage, sql: Session) -> None:
    stage.worker("elsewhere", tasks=["app.other"])

    paused = sql.enqueue(queue="paused")
    sql.value("pause", queue="paused")
    assert stage.answers(paused) == ["paused", "no_worker_for_queue"]
    assert stage.why(paused)[0].remedy == "holdfast queue resume paused"

    stage.worker("paused-served")
    also = sql.enqueue(queue="paused-served")
    sql.value("pause", queue="paused-served")
    assert stage.answers(also)[0] == "paused"

    assert "elsewhere" in stage.why(sql.enqueue(queue="nobody"))[0].explanation
    assert stage.answers(sql.enqueue(queue="nobody")) == ["no_worker_for_queue"]

    (unknown,) = stage.why(sql.enqueue("old.other", queue="elsewhere"))
    assert unknown.answer == "no_worker_for_task"
    assert "app.other" in unknown.explanation
    (misspelled,) = stage.why(sql.enqueue("app.othr", queue="elsewhere"))
    assert misspelled.explanation == (
        "No worker of queue elsewhere knows task app.othr; the nearest name that one knows is app.other."
    )
    (strange,) = stage.why(sql.enqueue("xyz", queue="elsewhere"))
    assert strange.explanation == "No worker of queue elsewhere knows task xyz."

    assert stage.answers(sql.enqueue(queue="paused", delay="1 hour")) == [
        "scheduled",
        "paused",
        "no_worker_for_queue",
    ]

    sql.value("add_schedule", name="nightly", task="report", cron="0 2 * * *", queue="nobody")
    made = sql.value("run_schedule", name="nightly")
    assert stage.answers(made) == ["no_worker_for_queue", "schedule"]


def test_a_job_that_must_wait_its_turn_is_answered_with_what_goes_before_it(
    stage: Stage, sql: Session
) -> None:
    stage.worker("mail")
    later = sql.enqueue(queue="mail", delay="1 hour")
    (scheduled,) = stage.why(later)
    assert scheduled.answer == "scheduled"
    assert "in 60 min" in scheduled.explanation or "in 59 min" in scheduled.explanation

    fresh = sql.enqueue(queue="mail")
    assert stage.answers(fresh) == ["ready"]
    stage.later("1 minute")
    (left,) = stage.why(fresh)
    assert left.answer == "not_taken"
    assert left.detail["workers"] == 1

    behind = sql.enqueue(queue="mail")
    (reason, *_) = stage.why(behind)
    assert (reason.answer, reason.detail["ahead"], reason.detail["higher"]) == ("behind", 1, 0)
    urgent = sql.enqueue_many(3, queues=["mail"] * 3, priorities=[150] * 3)
    assert stage.why(fresh)[0].detail == {"ahead": 3, "higher": 3, "at_least": False}
    sql.rows("cancel_many", ids=urgent)

    full = stage.worker("full")
    sql.enqueue(queue="full")
    sql.claim_one(worker=full, queues=["full"])
    stage.later("4 minutes")
    (reason,) = stage.why(sql.enqueue(queue="full"))
    assert reason.answer == "workers_full"
    assert "hold 1 job" in reason.explanation
    assert "for 4 min" in reason.explanation


def test_a_job_that_waits_for_its_time_is_answered_with_when_that_is(stage: Stage, sql: Session) -> None:
    stage.worker("retry")
    retried = sql.enqueue(queue="retry")
    job = sql.claim_one(queues=["retry"])
    sql.value("fail", id=job.id, lease=job.lease, error="a secret in an error")
    (reason,) = stage.why(retried)
    assert reason.answer == "retry"
    assert reason.explanation.startswith("Attempt 1 of 3 failed")
    assert "secret" not in str(reason)

    snoozed = sql.enqueue(queue="retry", id=uuid4())
    job = sql.claim_one(queues=["retry"])
    sql.value("snooze", id=job.id, lease=job.lease, delay="1 hour")
    assert stage.answers(snoozed) == ["snoozed"]

    overdue = sql.enqueue(queue="retry", delay="1 second")
    stage.later("2 minutes")
    assert stage.answers(overdue) == ["overdue"]
    stage.pass_time("10 minutes")
    stage.beat()
    assert "nobody does the duties" in stage.why(overdue)[0].explanation


def test_a_job_that_nobody_can_run_is_told_that_no_worker_lives(stage: Stage, sql: Session) -> None:
    waits = sql.enqueue()
    assert "none in the last day" in stage.why(waits)[0].explanation
    worker = stage.worker(None)
    stage.pass_time("20 seconds")
    assert stage.answers(waits)[0] == "worker_silent"
    sql.value("heartbeat", worker=worker)
    assert "worker_silent" not in stage.answers(waits)
    sql.value("leave", worker=worker)
    (reason,) = stage.why(waits)
    assert reason.answer == "no_worker"
    assert "web-1 (host ship, pid 42), left" in reason.explanation


def test_what_is_held_is_answered_with_who_holds_it(stage: Stage, sql: Session) -> None:
    worker = stage.worker(None)
    held = sql.enqueue(max_attempts=5)
    job = sql.claim_one(worker=worker)
    stage.later("4 minutes")
    (reason,) = stage.why(held)
    assert reason.answer == "held"
    assert "worker web-1 (host ship, pid 42) since" in reason.explanation
    assert "for 4 min" in reason.explanation

    sql.rows("start", ids=[job.id], leases=[job.lease], timeouts=["1 hour"])
    sql.value("progress", id=job.id, lease=job.lease, percent=40)
    (reason,) = stage.why(held)
    assert reason.answer == "running"
    assert "40 % done" in reason.explanation
    assert "timeout in" in reason.explanation

    sql.value("cancel", id=held)
    assert stage.answers(held) == ["cancel_requested", "running"]

    stage.pass_time("62 minutes")
    stage.beat()
    assert "timed_out" in stage.answers(held)

    stage.pass_time("20 seconds")
    assert stage.answers(held)[0] == "worker_silent"
    assert "the first recovery after 10 s gives the job to others" in stage.why(held)[0].explanation
    stage.pass_time("20 seconds")
    assert "Its lease ended" in stage.why(held)[0].explanation

    with sql.connection.transaction(force_rollback=True):
        sql("update holdfast.worker set lost_at = holdfast.clock()")
        assert stage.answers(held)[0] == "worker_lost"


def test_a_job_whose_worker_died_is_a_suspect(stage: Stage, sql: Session) -> None:
    job_id = sql.enqueue()
    lost = stage.worker(None)
    sql.claim_one(worker=lost)
    stage.workers.clear()
    sql.lose(lost)
    stage.worker(None)
    assert stage.answers(job_id) == ["suspect"]
    sql.claim_one()
    assert stage.answers(job_id) == ["running", "suspect"]


def test_an_open_transaction_that_holds_the_row_is_named(stage: Stage, sql: Session, other: Session) -> None:
    stage.worker(None)
    job_id = sql.enqueue()
    with other.connection.transaction(force_rollback=True):
        other.claim_one()
        (reason, *_) = stage.why(job_id)
        assert reason.answer == "locked"
        assert reason.detail["pid"] == other.pid
    assert stage.answers(job_id) == ["ready"]


def test_a_job_behind_a_head_or_out_of_attempts_is_found_out(stage: Stage, sql: Session) -> None:
    stage.worker(None)
    late = sql.enqueue()
    sql("update holdfast.lane set head = head + 1000")
    assert stage.answers(late)[0] == "late"
    assert "holdfast tick" in stage.why(late)[0].remedy
    sql("update holdfast.lane set head = 0")
    sql("update holdfast.job set attempt = max_attempts")
    assert stage.answers(late)[0] == "out_of_attempts"


def test_what_has_ended_is_answered_with_how(stage: Stage, sql: Session) -> None:
    done, called_off, dead = (sql.enqueue(priority=priority, max_attempts=1) for priority in (3, 2, 1))
    job = sql.claim_one()
    sql.value("complete", id=job.id, lease=job.lease)
    sql.value("cancel", id=called_off)
    job = sql.claim_one()
    sql.value("fail", id=job.id, lease=job.lease, error="no")
    assert [stage.answers(job_id) for job_id in (done, called_off, dead)] == [
        ["completed"],
        ["cancelled"],
        ["dead"],
    ]
    assert f"holdfast replay {dead}" in stage.why(dead)[0].remedy
    sql.value("replay", id=dead)
    assert stage.answers(dead) == ["ready"]


def test_an_id_that_nobody_knows_is_explained(stage: Stage, sql: Session, other: Session) -> None:
    (reason,) = stage.why(uuid4())
    assert reason.answer == "unknown"
    assert "kept for 30 d" in reason.explanation
    assert reason.detail["made_at"] is None

    with other.connection.transaction(force_rollback=True):
        unseen = other.enqueue()
        (reason,) = stage.why(unseen)
        assert "The id was made at" in reason.explanation
        assert "1 transaction that may enqueue is open" in reason.explanation

    given = uuid4()
    sql.enqueue("mail.welcome", id=given, max_attempts=1)
    job = sql.claim_one()
    sql.value("fail", id=job.id, lease=job.lease, error="no")
    sql.value("purge", id=given)
    assert "for task mail.welcome, and has been purged" in stage.why(given)[0].explanation


def test_a_missing_id_is_refused(sql: Session, refused: Refused) -> None:
    with refused("HF008") as error:
        sql.rows("why", id=None)
    assert error.detail["field"] == "id"


def test_what_stands_before_a_job_is_counted_no_further_than_to_ten_thousand(
    stage: Stage, sql: Session
) -> None:
    stage.worker(None)
    sql(
        "insert into holdfast.job (lane_id, task) "
        "select holdfast.lane('default', 100, 'task'), 'task' from generate_series(1, 12000)"
    )
    reason = stage.why(sql.enqueue())[0]
    assert reason.detail["at_least"]
    assert "behind at least 10,000 jobs" in reason.explanation

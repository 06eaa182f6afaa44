"""Calls that show jobs: their state, errors, steps and events."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.calls.base import Call, Row, function, one
from holdfast.values.encoding import shown
from holdfast.values.job import JobSnapshot, JobState

SNAPSHOT = (
    "id, queue, task, payload::text, priority, state, attempt, max_attempts, run_at, created_at, claimed_at, "
    "started_at, finished_at, changed_at, duration, worker, worker_name, lease, progress, stage, message, "
    "result::text, last_error, cancel_requested_at, headers::text, step, time_left, events"
)
_SNAPSHOT_FIELDS = tuple(column.removesuffix("::text") for column in SNAPSHOT.split(", "))
_JSON_FIELDS = frozenset({"payload", "result", "headers"})

_job = function("job", "id uuid", SNAPSHOT)
_list_jobs = function("list_jobs", "queue text, task text, state text, amount integer", SNAPSHOT)
_job_errors = function("job_errors", "id uuid")
_job_steps = function("job_steps", "id uuid", "name, result::text, attempt, worker, finished_at, duration")
_job_checkpoint = function("job_checkpoint", "id uuid", value="text")
_read_events = function(
    "read_events",
    "job_id uuid, queue text, after text, amount integer",
    "id, job_id, queue, task, name, attempt, data::text, at, cursor",
)
_event_cursor = function("event_cursor", "job_id uuid")


def read_snapshot(row: Row) -> JobSnapshot:
    fields = dict(zip(_SNAPSHOT_FIELDS, row, strict=True))
    for name in _JSON_FIELDS:
        if fields[name] is not None:
            fields[name] = shown(fields[name])
    fields["state"] = JobState(fields["state"])
    return JobSnapshot(**fields)


def job(job_id: UUID) -> Call[JobSnapshot | None]:
    return _job(lambda rows: read_snapshot(rows[0]) if rows else None, job_id)


def list_jobs(
    *, queue: str | None = None, task: str | None = None, state: str | None = None, amount: int = 50
) -> Call[list[JobSnapshot]]:
    return _list_jobs(lambda rows: [read_snapshot(row) for row in rows], queue, task, state, amount)


class AttemptError(NamedTuple):
    attempt: int
    failed_at: datetime
    worker: UUID | None
    error: str
    traceback: str | None


def job_errors(job_id: UUID) -> Call[list[AttemptError]]:
    return _job_errors(lambda rows: [AttemptError._make(row) for row in rows], job_id)


class StepRow(NamedTuple):
    """A step that a job has finished."""

    name: str
    result: Any
    attempt: int
    worker: UUID | None
    finished_at: datetime
    duration: timedelta | None


def job_steps(job_id: UUID) -> Call[list[StepRow]]:
    return _job_steps(
        lambda rows: [StepRow._make(row)._replace(result=shown(row[1])) for row in rows], job_id
    )


def job_checkpoint(job_id: UUID) -> Call[dict[str, Any] | None]:
    return _job_checkpoint(lambda rows: shown(one(rows)), job_id)


class Event(NamedTuple):
    """What happened to a job, or what its handler published. `cursor` is where to go on after it."""

    id: int
    job_id: UUID
    queue: str
    task: str
    name: str
    attempt: int
    data: Any
    at: datetime
    cursor: str


def read_events(
    *, job_id: UUID | None, queue: str | None, after: str | None, amount: int = 1000
) -> Call[list[Event]]:
    return _read_events(
        lambda rows: [Event._make(row)._replace(data=shown(row[6])) for row in rows],
        job_id,
        queue,
        after,
        amount,
    )


def event_cursor(job_id: UUID | None) -> Call[str]:
    """Answers with the cursor of this moment in the events of a job, or else of a queue or all."""
    return _event_cursor(one, job_id)

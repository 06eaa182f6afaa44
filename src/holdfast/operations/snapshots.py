"""Snapshots of jobs: the calls that read them."""

from typing import Any
from uuid import UUID

from holdfast.values.call import Call, Row, Rows, function, one
from holdfast.values.encoding import shown
from holdfast.values.errors import JobNotFound
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
_stored_payload = function("stored_payload", "id uuid", "stored_payload::text")


def get_job(job_id: UUID) -> Call[JobSnapshot]:
    """Return the job; raise `JobNotFound` if there is none."""

    def read(rows: Rows) -> JobSnapshot:
        if not rows:
            raise unknown(job_id)
        return read_snapshot(rows[0])

    return _job(read, job_id)


def list_jobs(
    *, queue: str | None = None, task: str | None = None, state: str | None = None, amount: int = 50
) -> Call[list[JobSnapshot]]:
    return _list_jobs(read_snapshots, queue, task, state, amount)


def find_job(job_id: UUID) -> Call[JobSnapshot | None]:
    """Return the job, or `None` if there is no job with this id."""
    return _job(lambda rows: read_snapshot(rows[0]) if rows else None, job_id)


def stored_payload(job_id: UUID) -> Call[Any]:
    """Return the payload with its secrets in plain text, which only the owner may read."""
    return _stored_payload(lambda rows: shown(one(rows)), job_id)


def read_snapshots(rows: Rows) -> list[JobSnapshot]:
    return [read_snapshot(row) for row in rows]


def read_snapshot(row: Row) -> JobSnapshot:
    fields = dict(zip(_SNAPSHOT_FIELDS, row, strict=True))
    for name in _JSON_FIELDS:
        if fields[name] is not None:
            fields[name] = shown(fields[name])
    fields["state"] = JobState(fields["state"])
    return JobSnapshot(**fields)


def unknown(job_id: UUID) -> JobNotFound:
    return JobNotFound(
        f"there is no job {job_id}",
        hint="Check the id, and that its transaction has committed. Old jobs are removed.",
        id=job_id,
    )

"""Calls that make jobs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.calls.base import Call, Function, column, function, interval, one
from holdfast.job import NewJob

_enqueue = function(
    "enqueue",
    "task text, payload jsonb, queue text, priority integer, run_at timestamptz, delay interval, "
    "max_attempts integer, id uuid, headers jsonb",
    value="text",
)
# The same with what most jobs say: half the values to send and to read.
_enqueue_usual = Function("enqueue", dict(list(_enqueue.parameters.items())[:4]), value=_enqueue.value)
_enqueue_many = function(
    "enqueue_many",
    "tasks text[], payloads jsonb[], queues text[], priorities integer[], run_ats timestamptz[], "
    "delays interval[], max_attempts integer[], ids uuid[], headers jsonb[]",
    "enqueue_many::text",
)
_places = function(
    "places",
    "tasks text[], queues text[], priorities integer[]",
    # A number is the same in every time zone and DateStyle of a caller's own connection.
    "lane_id, max_attempts, may_copy, extract(epoch from now_at)::double precision",
)


def enqueue(job: NewJob) -> Call[str]:
    """Answers with the job's id, as text: a `UUID` takes longer to make than the rest of the call."""
    usual = (job.task, job.payload, job.queue, job.priority)
    more = (job.run_at, job.delay, job.max_attempts, job.id, job.headers)
    if more == (None, None, None, None, None):
        return _enqueue_usual.plain(one, *usual)
    delay = None if job.delay is None else interval(job.delay)
    return _enqueue.plain(one, *usual, job.run_at, delay, job.max_attempts, job.id, job.headers)


def enqueue_many(jobs: Sequence[NewJob]) -> Call[list[str]]:
    def unless_empty(values: list[Any]) -> list[Any] | None:
        return values if any(value is not None for value in values) else None

    return _enqueue_many(
        column,
        [job.task for job in jobs],
        [job.payload for job in jobs],
        [job.queue for job in jobs],
        [job.priority for job in jobs],
        unless_empty([job.run_at for job in jobs]),
        unless_empty([None if job.delay is None else interval(job.delay) for job in jobs]),
        unless_empty([job.max_attempts for job in jobs]),
        unless_empty([job.id for job in jobs]),
        unless_empty([job.headers for job in jobs]),
    )


class Place(NamedTuple):
    """What a COPY into `holdfast.job` must know of a queue, priority and task."""

    lane_id: int
    max_attempts: int
    may_copy: bool
    now_at: float


def places(wanted: Sequence[tuple[str, str, int]]) -> Call[list[Place]]:
    """Answers in the order of these tasks, queues and priorities."""
    tasks, queues, priorities = (list(column) for column in zip(*wanted, strict=True))
    return _places(lambda rows: [Place._make(row) for row in rows], tasks, queues, priorities)

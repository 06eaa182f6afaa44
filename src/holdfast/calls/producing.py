"""Calls that make jobs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.calls.base import Call, Function, Rows, column, function, interval, one
from holdfast.values.job import NewJob

_enqueue = function(
    "enqueue",
    "task text, payload jsonb, queue text, priority integer, run_at timestamptz, delay interval, "
    "max_attempts integer, id uuid, headers jsonb, declared_attempts integer",
    value="text",
)


def _shorter(function: Function, *left_out: str) -> Function:
    kept = {name: kind for name, kind in function.parameters.items() if name not in left_out}
    return Function(function.name, kept, function.columns, value=function.value)


# The same with what most jobs say: half the values to send and to read.
_enqueue_undeclared = _shorter(_enqueue, "declared_attempts")
_enqueue_usual = _shorter(_enqueue, *list(_enqueue.parameters)[4:])
_enqueue_declared = _shorter(_enqueue, *list(_enqueue.parameters)[4:-1])
_enqueue_many = function(
    "enqueue_many",
    "tasks text[], payloads jsonb[], queues text[], priorities integer[], run_ats timestamptz[], "
    "delays interval[], max_attempts integer[], ids uuid[], headers jsonb[], declared_attempts integer[]",
    "enqueue_many::text",
)
_enqueue_many_undeclared = _shorter(_enqueue_many, "declared_attempts")
_places = function(
    "places",
    "tasks text[], queues text[], priorities integer[], declared integer[]",
    # A number is the same in every time zone and DateStyle of a caller's own connection.
    "lane_id, max_attempts, may_copy, extract(epoch from now_at)::double precision",
)
_places_undeclared = _shorter(_places, "declared")


def enqueue(job: NewJob) -> Call[str]:
    """Answers with the job's id, as text: a `UUID` takes longer to make than the rest of the call."""
    usual = (job.task, job.payload, job.queue, job.priority)
    more = (job.run_at, job.delay, job.max_attempts, job.id, job.headers)
    declared = job.declared_attempts
    if more == (None, None, None, None, None):
        if declared is None:
            return _enqueue_usual.plain(one, *usual)
        return _enqueue_declared.plain(one, *usual, declared)
    delay = None if job.delay is None else interval(job.delay)
    said = (*usual, job.run_at, delay, job.max_attempts, job.id, job.headers)
    if declared is None:
        return _enqueue_undeclared.plain(one, *said)
    return _enqueue.plain(one, *said, declared)


def enqueue_many(jobs: Sequence[NewJob]) -> Call[list[str]]:
    def unless_empty(values: list[Any]) -> list[Any] | None:
        return values if any(value is not None for value in values) else None

    said = (
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
    declared = unless_empty([job.declared_attempts for job in jobs])
    if declared is None:
        return _enqueue_many_undeclared(column, *said)
    return _enqueue_many(column, *said, declared)


class Place(NamedTuple):
    """What a COPY into `holdfast.job` must know of a queue, priority and task."""

    lane_id: int
    max_attempts: int
    may_copy: bool
    now_at: float


def places(wanted: Sequence[tuple[str, str, int, int | None]]) -> Call[list[Place]]:
    """Answers in the order of these tasks, queues, priorities and declared numbers of attempts."""
    tasks, queues, priorities, declared = (list(column) for column in zip(*wanted, strict=True))

    def read(rows: Rows) -> list[Place]:
        return [Place._make(row) for row in rows]

    if any(attempts is not None for attempts in declared):
        return _places(read, tasks, queues, priorities, declared)
    return _places_undeclared(read, tasks, queues, priorities)

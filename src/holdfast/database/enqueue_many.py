"""The calls that enqueue many jobs, for `copy_in`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.values.call import Call, Rows, column, function, interval
from holdfast.values.job import NewJob

_enqueue_many = function(
    "enqueue_many",
    "tasks text[], payloads jsonb[], queues text[], priorities integer[], run_ats timestamptz[], "
    "delays interval[], max_attempts integer[], ids uuid[], headers jsonb[], declared_attempts integer[]",
    "enqueue_many::text",
)
_enqueue_many_undeclared = _enqueue_many.without("declared_attempts")
_places = function(
    "places",
    "tasks text[], queues text[], priorities integer[], declared integer[]",
    # A number does not depend on the time zone and DateStyle of a caller's own connection.
    "lane_id, max_attempts, may_copy, extract(epoch from now_at)::double precision",
)
_places_undeclared = _places.without("declared")


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


class Target(NamedTuple):
    """The values that a COPY into `holdfast.job` needs for a queue, priority and task."""

    lane_id: int
    max_attempts: int
    may_copy: bool
    now_at: float


def places(wanted: Sequence[tuple[str, str, int, int | None]]) -> Call[list[Target]]:
    """Return the lane of each task, queue, priority and declared number of attempts, in the order given."""
    tasks, queues, priorities, declared = (list(column) for column in zip(*wanted, strict=True))

    def read(rows: Rows) -> list[Target]:
        return [Target._make(row) for row in rows]

    if any(attempts is not None for attempts in declared):
        return _places(read, tasks, queues, priorities, declared)
    return _places_undeclared(read, tasks, queues, priorities)

"""Enqueueing one job. Many jobs go by COPY: see `database.enqueue_many`."""

from collections.abc import Callable
from typing import TypeVar

from holdfast.values.call import Call, Rows, function, interval
from holdfast.values.job import NewJob

T = TypeVar("T")

_enqueue = function(
    "enqueue",
    "task text, payload jsonb, queue text, priority integer, run_at timestamptz, delay interval, "
    "max_attempts integer, id uuid, headers jsonb, declared_attempts integer",
    value="text",
)


# The same function with fewer parameters, which is enough for most jobs and halves the values to send.
_enqueue_undeclared = _enqueue.without("declared_attempts")
_enqueue_usual = _enqueue.without(*list(_enqueue.parameters)[4:])
_enqueue_declared = _enqueue.without(*list(_enqueue.parameters)[4:-1])


def enqueue(job: NewJob, read: Callable[[Rows], T]) -> Call[T]:
    """Enqueue one job. The id is returned as text: making a `UUID` takes longer than the rest of the call."""
    usual = (job.task, job.payload, job.queue, job.priority)
    more = (job.run_at, job.delay, job.max_attempts, job.id, job.headers)
    declared = job.declared_attempts
    if more == (None, None, None, None, None):
        if declared is None:
            return _enqueue_usual.plain(read, *usual)
        return _enqueue_declared.plain(read, *usual, declared)
    delay = None if job.delay is None else interval(job.delay)
    said = (*usual, job.run_at, delay, job.max_attempts, job.id, job.headers)
    if declared is None:
        return _enqueue_undeclared.plain(read, *said)
    return _enqueue.plain(read, *said, declared)

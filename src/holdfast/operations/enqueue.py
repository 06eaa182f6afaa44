"""Enqueueing one job. Many jobs go by COPY: see `database/copy_in.py`."""

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.values.call import Call, Rows, function, interval
from holdfast.values.job import NewJob

T = TypeVar("T")

_enqueue = function(
    "enqueue",
    "task text, payload jsonb, queue text, priority integer, run_at timestamptz, delay interval, "
    "max_attempts integer, id uuid, headers jsonb, declared_attempts integer",
    value="text",
)
# The same function with the parameters that most jobs need: half the values to send and to read.
_enqueue_undeclared = _enqueue.without("declared_attempts")
_enqueue_usual = _enqueue.without(*list(_enqueue.parameters)[4:])
_enqueue_usual_declared = _enqueue.without(*list(_enqueue.parameters)[4:-1])


def enqueue(job: NewJob, read: Callable[[Rows], T]) -> Call[T]:
    """Enqueue one job. The id is returned as text: making a `UUID` takes longer than the rest of the call."""
    values: tuple[Any, ...] = (job.task, job.payload, job.queue, job.priority)
    more = (job.run_at, job.delay, job.max_attempts, job.id, job.headers)
    if more == (None, None, None, None, None):
        chosen, chosen_declared = _enqueue_usual, _enqueue_usual_declared
    else:
        chosen, chosen_declared = _enqueue_undeclared, _enqueue
        delay = None if job.delay is None else interval(job.delay)
        values = (*values, job.run_at, delay, job.max_attempts, job.id, job.headers)
    if job.declared_attempts is not None:
        chosen, values = chosen_declared, (*values, job.declared_attempts)
    return Call(chosen, values, read, plain=True)

"""Runs due jobs in this process, with a real worker."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.client import Holdfast
from holdfast.operations import duties
from holdfast.operations.snapshots import list_jobs
from holdfast.testing.stage import Stage
from holdfast.testing.steps import Shift, Steps, acarry, carry, refuse_in_a_loop
from holdfast.values.job import JobState

PENDING = JobState.PENDING
ALL = 2**31 - 1


def drain_queue(holdfast: Holdfast, **options: Any) -> None:
    """Run everything that is due, and the jobs that this makes due. The options are those of a worker."""
    refuse_in_a_loop("drain()", "await adrain()")
    carry(holdfast, draining(options))


async def adrain_queue(holdfast: Holdfast, **options: Any) -> None:
    """The async twin of `drain_queue`: the worker runs in the caller's event loop."""
    await acarry(holdfast, draining(options))


def draining(options: Mapping[str, Any], stage: Stage | None = None) -> Steps[None]:
    """Run workers until none of them finds a job, or one is lost."""
    left: set[tuple[Any, ...]] = set()
    yield from _promoting()
    while True:
        yield Shift(options, stage)
        if stage is not None and stage.lost:
            return
        # A worker ends when it finds nothing more. A job that it has snoozed for a moment is due by now. Jobs
        # that still wait are not for this worker: their queue is paused, for example, or it does not know
        # their task.
        yield from _promoting()
        waiting = {(job.id, job.changed_at) for job in (yield list_jobs(state=PENDING, amount=ALL))}
        if waiting <= left:
            return
        left = waiting


def _promoting() -> Steps[None]:
    for duty in (duties.fire, duties.promote):
        wait = timedelta(0)
        while wait is not None and wait <= timedelta(0):
            wait = yield duty()

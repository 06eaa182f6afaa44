"""Run what is due, in this process, by a real worker."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast import calls
from holdfast.client import Holdfast
from holdfast.operations.snapshots import list_jobs
from holdfast.testing.stage import Stage
from holdfast.testing.steps import Shift, Steps, acarry, carry, refuse_in_a_loop
from holdfast.values.job import JobState

PENDING = JobState.PENDING
ALL = 2**31 - 1


def drain_queue(holdfast: Holdfast, **options: Any) -> None:
    """Run everything that is due, and whatever that makes due. The options are those of a worker."""
    refuse_in_a_loop("drain()", "await adrain()")
    carry(holdfast, draining(options))


async def adrain_queue(holdfast: Holdfast, **options: Any) -> None:
    """The async twin of `drain_queue`: the worker runs in the caller's event loop."""
    await acarry(holdfast, draining(options))


def draining(options: Mapping[str, Any], stage: Stage | None = None) -> Steps[None]:
    """Until nothing is left that such a worker takes, or it is lost."""
    left: set[tuple[Any, ...]] = set()
    yield from _promoting()
    while True:
        yield Shift(options, stage)
        if stage is not None and stage.lost:
            return
        # A worker ends when it finds nothing more; what it has put off for a moment is due by now. What waits
        # as it did before is not for this worker: of a paused queue, say, or of a task that it does not know.
        yield from _promoting()
        waiting = {(job.id, job.changed_at) for job in (yield list_jobs(state=PENDING, amount=ALL))}
        if waiting <= left:
            return
        left = waiting


def _promoting() -> Steps[None]:
    wait = timedelta(0)
    while wait is not None and wait <= timedelta(0):
        wait = yield calls.promote()

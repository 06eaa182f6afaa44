"""Loses a worker at a chosen moment, so that a test sees its job run again.

    crash.before(charge)        claimed, but the handler has not begun
    crash.during(charge)        the handler calls crash.here()
    crash.after(charge)         the handler has ended, and the job was not reported
    crash.recover()             its lease expires: other workers take its jobs back

The worker is a real one in this process. It vanishes silently: its jobs stay claimed, and it sends no more
heartbeats.
"""

from typing import Any, NoReturn
from uuid import UUID

from holdfast.client import Holdfast
from holdfast.operations import duties
from holdfast.operations.snapshots import find_job
from holdfast.operations.workers import list_workers
from holdfast.task import Task
from holdfast.testing import clocks
from holdfast.testing.draining import draining
from holdfast.testing.expected import listed
from holdfast.testing.expecting import live
from holdfast.testing.stage import Crash, Lost, Moment, Stage
from holdfast.testing.steps import Steps, acarry, carry, refuse_in_a_loop
from holdfast.values.errors import HoldfastError
from holdfast.values.job import JobSnapshot

__all__ = ["Crash", "Crashes"]

# A worker is lost after its lease time. But half a lease without any call of `recover` is forgiven, and so is
# a heartbeat since the last call but one. Calls at every quarter of the lease avoid both.
LOOKS_IN_A_LEASE = 4
MOST_LOOKS = 40


class Crashes:
    """The crashes of one test.

    Each method runs a worker of this Holdfast until it is lost, with the first job of this task or of any. It
    returns that job as it was left. The options are those of a worker.
    """

    def __init__(self, holdfast: Holdfast) -> None:
        self._holdfast = holdfast
        self._lost: list[Lost] = []

    def before(self, task: Task[..., Any] | str | None = None, **options: Any) -> JobSnapshot:
        """Lose the worker after it has claimed the job, before the handler begins.

        No start was recorded, so the attempt will not count.
        """
        return self._run("before", task, options)

    async def abefore(self, task: Task[..., Any] | str | None = None, **options: Any) -> JobSnapshot:
        return await self._arun("before", task, options)

    def during(self, task: Task[..., Any] | str | None = None, **options: Any) -> JobSnapshot:
        """Lose the worker when the handler, or what it calls, calls `crash.here()` or raises `Crash`."""
        return self._run("during", task, options)

    async def aduring(self, task: Task[..., Any] | str | None = None, **options: Any) -> JobSnapshot:
        return await self._arun("during", task, options)

    def after(self, task: Task[..., Any] | str | None = None, **options: Any) -> JobSnapshot:
        """Lose the worker when the handler has ended in any way, before that is reported."""
        return self._run("after", task, options)

    async def aafter(self, task: Task[..., Any] | str | None = None, **options: Any) -> JobSnapshot:
        return await self._arun("after", task, options)

    @staticmethod
    def here(*_args: Any, **_kwargs: Any) -> NoReturn:
        """Lose the worker here, in a run by `during`.

        It takes any arguments, so it can replace what the handler calls: `monkeypatch.setattr(bank, "charge",
        crash.here)`.
        """
        raise Crash

    @staticmethod
    async def ahere(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise Crash

    def recover(self) -> None:
        """Move the clock past the leases of the lost workers, and have their jobs taken back."""
        carry(self._holdfast, self._recovering())

    async def arecover(self) -> None:
        await acarry(self._holdfast, self._recovering())

    def _run(self, moment: Moment, task: Task[..., Any] | str | None, options: dict[str, Any]) -> JobSnapshot:
        refuse_in_a_loop(f"crash.{moment}()", f"await crash.a{moment}(…)")
        return carry(self._holdfast, self._crashing(moment, task, options))

    async def _arun(
        self, moment: Moment, task: Task[..., Any] | str | None, options: dict[str, Any]
    ) -> JobSnapshot:
        return await acarry(self._holdfast, self._crashing(moment, task, options))

    def _crashing(
        self, moment: Moment, task: Task[..., Any] | str | None, options: dict[str, Any]
    ) -> Steps[JobSnapshot]:
        stage = Stage(moment, task.name if isinstance(task, Task) else task)
        # One job at a time, so that other jobs are not lost with it by chance.
        yield from draining({"concurrency": 1, **options}, stage)
        if stage.lost is None:
            what = f"job of {stage.task}" if stage.task else "job"
            why = f"{what} called crash.here()" if moment == "during" else f"{what} was due"
            jobs = yield from live()
            raise AssertionError(
                f"the worker was not lost: no {why}.\n"
                + (f"Live are ({len(jobs)}):\n{listed(jobs)}" if jobs else "No job is live.")
            )
        self._lost.append(stage.lost)
        left: JobSnapshot = yield find_job(UUID(stage.lost.job.id))
        return left

    def _recovering(self) -> Steps[None]:
        if not self._lost:
            raise AssertionError("no worker was lost: crash.before(), during() or after() comes first")
        while self._lost:
            yield from _found_lost(self._lost[0])
            self._lost.pop(0)


def _found_lost(lost: Lost) -> Steps[None]:
    for _ in range(MOST_LOOKS):
        yield clocks.advance(lost.lease_time / LOOKS_IN_A_LEASE)
        yield duties.recover()
        if UUID(lost.worker) in {row.id for row in (yield list_workers()) if row.status == "lost"}:
            return
    raise HoldfastError(f"worker {lost.worker} was not taken for lost", hint="Does somebody hold a lock?")

"""Loses a worker at a chosen moment, so that a test sees its job run again.

    crash.before(charge)        claimed, but the handler has not started
    crash.during(charge)        the handler calls crash.here()
    crash.after(charge)         the handler has ended, and the job was not reported
    crash.recover()             its lease expires: other workers take its jobs back

The worker is a real one in this process. It vanishes silently: its jobs stay claimed, and it sends no more
heartbeats.
"""

from functools import partial
from typing import Any, NoReturn
from uuid import UUID

from holdfast.client import Holdfast
from holdfast.operations import duties
from holdfast.operations.base import operation, twin
from holdfast.operations.run_steps import Action, Carrier, Steps
from holdfast.operations.snapshots import find_job
from holdfast.operations.workers import list_workers
from holdfast.task import Task
from holdfast.testing import clocks
from holdfast.testing.assertions import live
from holdfast.testing.draining import draining, refuse_in_a_loop
from holdfast.testing.expected_job import listed
from holdfast.testing.worker_run import Crash, Lost, Moment, WorkerRun
from holdfast.values.errors import HoldfastError
from holdfast.values.job import JobSnapshot

__all__ = ["Crash", "Crashes"]

# A worker is lost after its lease time. But half a lease without any call of `recover` is forgiven, and so is
# a heartbeat since the last call but one. Calls at every quarter of the lease avoid both.
CALLS_PER_LEASE = 4
MOST_CALLS = 40


class Crashes:
    """The crashes of one test.

    Each method runs a worker of this Holdfast until it is lost, with the first job of this task or of any. It
    returns that job as it was left. The options are those of a worker.
    """

    def __init__(self, holdfast: Holdfast) -> None:
        self._holdfast = holdfast
        self._lost: list[Lost] = []

    @property
    def carrier(self) -> Carrier:
        return self._holdfast.carrier

    @operation
    def before(self, /, task: Task[..., Any] | str | None = None, **options: Any) -> Steps[JobSnapshot]:
        """Lose the worker after it has claimed the job, before the handler starts.

        No start was recorded, so the attempt will not count.
        """
        return self._crashing("before", task, options)

    abefore = twin(before)

    @operation
    def during(self, /, task: Task[..., Any] | str | None = None, **options: Any) -> Steps[JobSnapshot]:
        """Lose the worker when the handler, or what it calls, calls `crash.here()` or raises `Crash`."""
        return self._crashing("during", task, options)

    aduring = twin(during)

    @operation
    def after(self, /, task: Task[..., Any] | str | None = None, **options: Any) -> Steps[JobSnapshot]:
        """Lose the worker when the handler has ended in any way, before that is reported."""
        return self._crashing("after", task, options)

    aafter = twin(after)

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

    @operation
    def recover(self) -> Steps[None]:
        """Move the clock past the leases of the lost workers, and have their jobs taken back."""
        if not self._lost:
            raise AssertionError("no worker was lost: crash.before(), during() or after() comes first")
        while self._lost:
            yield from _recovering(self._lost[0])
            self._lost.pop(0)

    arecover = twin(recover)

    def _crashing(
        self, moment: Moment, task: Task[..., Any] | str | None, options: dict[str, Any]
    ) -> Steps[JobSnapshot]:
        yield _not_in_a_loop(moment)
        worker_run = WorkerRun(moment, task.name if isinstance(task, Task) else task)
        # One job at a time, so that other jobs are not lost with it by chance.
        yield from draining(self._holdfast, {"concurrency": 1, **options}, worker_run)
        if worker_run.lost is None:
            what = f"job of {worker_run.task}" if worker_run.task else "job"
            why = f"{what} called crash.here()" if moment == "during" else f"{what} was due"
            jobs = yield from live()
            raise AssertionError(
                f"the worker was not lost: no {why}.\n"
                + (f"Live are ({len(jobs)}):\n{listed(jobs)}" if jobs else "No job is live.")
            )
        self._lost.append(worker_run.lost)
        left: JobSnapshot = yield find_job(UUID(worker_run.lost.job.id))
        return left


def _not_in_a_loop(moment: Moment) -> Action:
    """Return a step that refuses the sync method in an event loop, and does nothing in its twin."""
    return Action(partial(refuse_in_a_loop, f"crash.{moment}()", f"await crash.a{moment}(…)"), _nothing)


async def _nothing() -> None: ...


def _recovering(lost: Lost) -> Steps[None]:
    for _ in range(MOST_CALLS):
        yield clocks.advance_clock(lost.lease_time / CALLS_PER_LEASE)
        yield duties.recover()
        if UUID(lost.worker) in {row.id for row in (yield list_workers()) if row.status == "lost"}:
            return
    raise HoldfastError(f"worker {lost.worker} was not declared lost", hint="Does a session hold a lock?")

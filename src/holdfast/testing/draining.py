"""Runs due jobs in this process, with a real worker, sync or async."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.client import Holdfast
from holdfast.operations import duties
from holdfast.operations.run_steps import Action, Steps, arun_steps, run_steps
from holdfast.operations.snapshots import list_jobs
from holdfast.testing.worker_run import WorkerRun
from holdfast.values.errors import HoldfastError
from holdfast.values.job import JobState

if TYPE_CHECKING:
    from holdfast.worker.worker import Worker

PENDING = JobState.PENDING
ALL = 2**31 - 1


def drain_queue(holdfast: Holdfast, **options: Any) -> None:
    """Run everything that is due, and the jobs that this makes due. The options are those of a worker."""
    refuse_in_a_loop("drain()", "await adrain()")
    run_steps(draining(holdfast, options), holdfast.carrier)


async def adrain_queue(holdfast: Holdfast, **options: Any) -> None:
    """The async twin of `drain_queue`: the worker runs in the caller's event loop."""
    await arun_steps(draining(holdfast, options), holdfast.carrier)


def draining(
    holdfast: Holdfast, options: Mapping[str, Any], worker_run: WorkerRun | None = None
) -> Steps[None]:
    """Run workers until one of them finds no job, or is lost."""
    left: set[tuple[Any, ...]] = set()
    yield from _promoting()
    while True:
        yield _run_worker(holdfast, options, worker_run)
        if worker_run is not None and worker_run.lost:
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


def _run_worker(holdfast: Holdfast, options: Mapping[str, Any], worker_run: WorkerRun | None) -> Action:
    """Return the step that runs a worker until it finds nothing more to do."""

    def make() -> "Worker":
        worker = holdfast.worker(**{"notify": False, **options})
        if worker_run is not None:
            from holdfast.testing.observed_runtime import ObservedRuntime  # noqa: PLC0415 - a worker is loaded only when one runs

            worker.make_runtime = partial(ObservedRuntime, worker_run)
        return worker

    async def arun() -> None:
        worker = await asyncio.to_thread(make)
        await worker.arun(drain=True)

    return Action(lambda: make().run(drain=True), arun)


def refuse_in_a_loop(what: str, instead: str) -> None:
    """Refuse to run in an event loop: a worker needs its own, and a thread can have only one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise HoldfastError(f"{what} runs a worker, which it cannot in a coroutine", hint=f"Write {instead}.")

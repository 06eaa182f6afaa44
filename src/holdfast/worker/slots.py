"""N slots, each one coroutine that takes a job from the buffer, awaits its handler and hands over the report.

There is no asyncio task per job. A slot outlives whatever its handler does, except its own cancellation.
"""

import asyncio
from collections.abc import Callable

from holdfast.calls import Report
from holdfast.events import emit
from holdfast.job import Failed, Interrupted
from holdfast.worker.executor import Executor
from holdfast.worker.hands import Hands, Running

# How many jobs a slot may run in one go before the others get their turn.
JOBS_PER_TURN = 8
# How long an async handler may clean up after it was cut off.
CLEAN_UP_SECONDS = 5.0
HURRIED_SECONDS = 0.1


class Slots:
    def __init__(
        self, hands: Hands, executor: Executor, *, done: Callable[[Report], None], freed: Callable[[], None]
    ) -> None:
        self._hands = hands
        self._executor = executor
        self._done = done
        self._freed = freed
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, amount: int) -> None:
        self._tasks = {asyncio.create_task(self._slot()) for _ in range(amount)}

    async def finish(self, *, grace: float, hurry: asyncio.Event) -> None:
        """End, once the buffer is closed: what runs may finish within the grace, and is then cut off."""
        hurried = asyncio.create_task(hurry.wait())
        ended = asyncio.create_task(asyncio.wait(self._tasks))
        try:
            await asyncio.wait({ended, hurried}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            for running in list(self._hands.running):
                running.stop("interrupted")
            await asyncio.wait({ended}, timeout=HURRIED_SECONDS if hurry.is_set() else CLEAN_UP_SECONDS)
        finally:
            hurried.cancel()
            ended.cancel()
            self._give_up()

    def _give_up(self) -> None:
        """Report for those that could not be stopped; what they still say counts no more."""
        for running in list(self._hands.running):
            if running.verdict != "lost":
                self._done(self._executor.report(running.job, Interrupted()))
            running.stop("lost")
            running.verdict = "lost"
        for slot in self._tasks:
            slot.cancel()

    async def _slot(self) -> None:
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - a slot is always a task
        hands = self._hands
        turns = 0
        while (job := await hands.next()) is not None:
            running = Running(job, me)
            hands.running.add(running)
            try:
                outcome = await self._run(running)
            finally:
                hands.running.discard(running)
            if outcome is None:
                hands.settle(job.id, job.lease)
            else:
                self._done(outcome)
            self._freed()
            turns += 1
            if turns % JOBS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _run(self, running: Running) -> Report | None:
        """The report on a job; none if it is no longer ours."""
        job = running.job
        try:
            outcome = await self._executor.run(job, running.context)
        except asyncio.CancelledError:
            if running.verdict is None:
                raise
            outcome = self._executor.report(job, Interrupted())
        except Exception as error:  # noqa: BLE001 - a bug of ours must cost neither the slot nor the job
            emit("slot.broken", job=job.id, task=job.task, error=error)
            outcome = self._executor.report(job, Failed(f"Holdfast itself failed: {type(error).__name__}"))
        if running.verdict is not None and running.slot.cancelling():
            running.slot.uncancel()  # it was told to stop, and has ended, one way or the other
        return None if running.verdict == "lost" else outcome

"""The processes in which a worker runs isolated handlers: work that fills a core, may crash, or leaks memory.

An idle child is kept for the next job, and runs one job at a time. Its handler can always be stopped: the
child is killed when the job is cancelled, runs out of time or exceeds its memory limit. If the child dies in
any other way, only its own job fails. `messages` has the messages between worker and child.
"""

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.database import Database
from holdfast.operations.attempts import Memory
from holdfast.operations.claiming import Claimed
from holdfast.task import Task
from holdfast.values.job import Outcome
from holdfast.worker.context import Context
from holdfast.worker.isolation.messages import Reply, Request
from holdfast.worker.threads import Threads

if TYPE_CHECKING:
    from holdfast.worker.isolation.process import ChildProcess


class ProcessPool:
    """A pool of processes. Threads start a process, talk to it, and wait for its end."""

    def __init__(self, database: Database, threads: Threads, most: int | None = None) -> None:
        self._free = most or cores()
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._refusing = False
        self._database = database
        self._threads = threads
        self._idle: list[ChildProcess] = []
        self._busy: set[ChildProcess] = set()
        self._closed = False

    async def acquire(self) -> bool:
        """Wait until one more process may run. Return False if the worker stops first."""
        if self._refusing:
            return False
        if self._free > 0:
            self._free -= 1
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.release()
            raise

    def release(self) -> None:
        """Let the next waiting job run."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self._free += 1

    def refuse(self) -> None:
        """Refuse the jobs that still wait: none of them has begun."""
        self._refusing = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(False)
        self._waiting.clear()

    async def run(
        self, task: Task[..., Any], job: Claimed, context: Context, memory: Memory | None
    ) -> Outcome:
        # Most workers need no processes.
        from holdfast.worker.isolation.process import ChildProcess, import_path  # noqa: PLC0415

        timeout = task.settings.timeout
        work = {
            "request": Request(
                *import_path(task), job, memory, self._database.dsn, self._database.transaction_pooling
            ),
            "on_note": context.receive,
            "seconds": None if timeout is None else timeout.total_seconds(),
            "memory_limit": task.settings.memory_limit,
        }
        while True:
            warm = self._idle.pop() if self._idle else None
            reply = await self._ask(warm or ChildProcess(), work)
            if reply.begun or warm is None:
                break
            # The child died while it was idle, so this is not the job's failure.
        context.completed = reply.completed
        return reply.outcome

    async def _ask(self, child: "ChildProcess", work: dict[str, Any]) -> Reply:
        self._busy.add(child)
        try:
            reply: Reply = await self._threads.run(child.run, work)
        except asyncio.CancelledError:
            child.kill("it was stopped")
            raise
        finally:
            self._busy.discard(child)
        if child.alive and not self._closed:
            self._idle.append(child)
        else:
            child.kill("it is no longer needed")
        return reply

    async def close(self) -> None:
        """End the idle processes, and kill the busy ones."""
        self._closed = True
        for child in self._busy:
            child.kill("its worker ended")
        idle, self._idle = self._idle, []
        if idle:
            await self._threads.run(_end_all, {"children": idle})


def _end_all(children: "list[ChildProcess]") -> None:
    for child in children:
        child.close()
    for child in children:
        child.join()


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

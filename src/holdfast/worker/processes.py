"""Handlers in processes of their own: for work that takes all of a core, or that may crash or swell.

    worker ── job ──► child: import the task, decode, call, encode
       ◄── notes, at last the outcome ──┘

A child is kept warm and runs one job at a time. Its handler can be stopped for certain: it is killed when it
is called off, runs out of time, or outgrows its memory; and when it dies, by whatever way, that is the
failure of its job alone. A thread of the worker looks after each job, since it waits for three things at a
time: a word from the child, the end of the child, and the moment when it has had enough.
"""

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from holdfast.calls import Claimed
from holdfast.database import Database
from holdfast.errors import BadValue
from holdfast.job import Failed, Outcome, Stop
from holdfast.task import Registry, Task
from holdfast.worker.context import Context, ProgressNote
from holdfast.worker.failure import failure_of
from holdfast.worker.threads import Threads

LOOK_SECONDS = 0.1
# How long a child that was told to end by closing its line may take.
FAREWELL_SECONDS = 1.0

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Order:
    """A job for a child, and where its handler is found there."""

    module: str
    attribute: str
    job: Claimed
    dsn: str


@dataclass(frozen=True, slots=True)
class Answer:
    outcome: Outcome
    finished: bool


class Processes:
    def __init__(self, database: Database, threads: Threads) -> None:
        self._database = database
        self._threads = threads
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._closed = False

    async def run(self, task: Task[..., Any], job: Claimed, context: Context) -> Outcome:
        child = self._idle.pop() if self._idle else Child()
        timeout = task.settings.timeout
        work = {
            "order": Order(*place_of(task), job, self._database.dsn),
            "hear": context.receive,
            "seconds": None if timeout is None else timeout.total_seconds(),
            "memory_limit": task.settings.memory_limit,
        }
        self._busy.add(child)
        try:
            answer: Answer = await self._threads.run(child.run, work)
        except asyncio.CancelledError:
            child.kill("it was stopped")
            raise
        finally:
            self._busy.discard(child)
        if child.alive and not self._closed:
            self._idle.append(child)
        else:
            child.close()
        context.finished = answer.finished
        return answer.outcome

    def close(self) -> None:
        """Let the idle ones go; those at work are killed."""
        self._closed = True
        for child in self._busy:
            child.kill("its worker ended")
        while self._idle:
            self._idle.pop().close()


class Child:
    """A process that runs jobs, one at a time."""

    def __init__(self) -> None:
        self._line, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_main, args=(theirs,), name="holdfast-child", daemon=True)
        self._process.start()
        theirs.close()
        self._killed = ""

    @property
    def alive(self) -> bool:
        return not self._killed and self._process.is_alive()

    def kill(self, why: str) -> None:
        """From any thread; whoever waits for the outcome is told why."""
        self._killed = self._killed or why
        self._process.kill()

    def close(self) -> None:
        self._line.close()
        self._process.join(FAREWELL_SECONDS)
        self._process.kill()
        self._process.join()

    def run(
        self,
        order: Order,
        hear: Callable[[ProgressNote], None],
        seconds: float | None,
        memory_limit: int | None,
    ) -> Answer:
        """Blocks until there is an outcome, one way or the other."""
        end = None if seconds is None else time.monotonic() + seconds
        try:
            self._line.send(order)
            while True:
                said = self._listen(end, memory_limit)
                if isinstance(said, Answer):
                    return said
                hear(said)
        except (EOFError, OSError):
            return Answer(self._last_words(), finished=False)

    def _listen(self, end: float | None, memory_limit: int | None) -> Any:
        while not wait([self._line, self._process.sentinel], self._patience(end, memory_limit)):
            if end is not None and time.monotonic() >= end:
                self.kill("it ran longer than its timeout")
            elif memory_limit is not None and (used := _memory(self._process.pid)) > memory_limit:
                self.kill(f"it used {used:,} bytes of memory, the limit is {memory_limit:,}")
        return self._line.recv()  # raises EOFError if the child is gone

    def _patience(self, end: float | None, memory_limit: int | None) -> float | None:
        if memory_limit is not None:
            return LOOK_SECONDS
        return None if end is None else max(end - time.monotonic(), 0)

    def _last_words(self) -> Failed:
        self._process.join()
        if self._killed:
            kind = "TimeoutError" if "timeout" in self._killed else "Killed"
            return Failed(f"{kind}: its process was killed: {self._killed}", kind)
        code = self._process.exitcode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return Failed(f"ProcessDied: its process ended {how} while it ran", "ProcessDied")


def place_of(task: Task[..., Any]) -> tuple[str, str]:
    """Where a child finds the task; raises if it is not at the top of a module."""
    module, attribute = task.function.__module__, task.function.__qualname__
    if "<locals>" in attribute or "." in attribute:
        raise BadValue(
            f"task {task.name} runs in a process, and {module}.{attribute} cannot be imported there",
            hint="Declare it at the top of a module.",
            field="isolation",
        )
    return module, attribute


def _memory(pid: int | None) -> int:
    """The bytes in memory of a process; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


# In the child.


def _main(line: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which decides
    threading.current_thread().name = "holdfast-child"
    while True:
        try:
            order = line.recv()
        except (EOFError, OSError):
            return
        context = _Context(order, line)
        outcome = _attempt(order, context)
        context.quiet = True
        line.send(Answer(outcome, context.finished))


class _Context(Context):
    """A context whose notes travel to the worker."""

    __slots__ = ("_line", "_lock", "quiet")

    def __init__(self, order: Order, line: "Connection[Any, Any]") -> None:
        super().__init__(order.job, Database(order.dsn))
        self._line = line
        self._lock = threading.Lock()
        self.quiet = False

    def progress(self, *args: Any, **kwargs: Any) -> None:
        super().progress(*args, **kwargs)
        with self._lock:
            if not self.quiet and self.note is not None:
                self._line.send(self.note)


def _attempt(order: Order, context: Context) -> Outcome:
    from holdfast.worker.executor import outcome_of  # noqa: PLC0415 - it knows this module

    registry = Registry()
    try:
        task = getattr(importlib.import_module(order.module), order.attribute)
        registry.register(task)
        arguments = task.decode(order.job.payload)
        if task.context is not None:
            arguments[task.context] = context
        try:
            value = task.function(**arguments)
            if task.is_async:
                value = asyncio.run(value)
        except Stop as stop:
            value = stop.outcome
        return outcome_of(task, value)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the job's failure
        return failure_of(order.job, error, registry)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()

"""A process that runs handlers for a worker, as both sides see it.

    worker ── job ──► child: import the task, decode, call, encode
       ◄── notes, at last the outcome ──┘

A thread of the worker watches each job. It waits for three things at once: a message from the child, the end
of the child, and a timeout. A thread of the child waits for the end of the worker, and ends the child with
it.

Only a worker with a task that asks for a process loads this module, and multiprocessing with it.
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
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from holdfast.calls import Claimed, Memory
from holdfast.database import Database
from holdfast.task import Registry, Task
from holdfast.values.errors import BadValue
from holdfast.values.job import Failed, Outcome, Stop
from holdfast.worker.context import Context
from holdfast.worker.context.notes import HandlerEvent, Note
from holdfast.worker.failure import failure_of
from holdfast.worker.outcome import outcome_of

MEMORY_CHECK_SECONDS = 0.1
# How long a child may take to end after its pipe was closed.
EXIT_SECONDS = 1.0
# How often a child checks who its parent is, in case it has missed the end of its worker.
PARENT_SECONDS = 1.0

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Request:
    """A job for a child, and where the child finds its handler."""

    module: str
    attribute: str
    job: Claimed
    memory: Memory | None
    dsn: str
    transaction_pooling: bool | None


@dataclass(frozen=True, slots=True)
class Reply:
    outcome: Outcome
    completed: bool
    # False if the child has not begun the job. Then, the child died before, and the job is not the cause.
    begun: bool = True


# A child's first message on a job: it has received it.
BEGUN = "begun"


class Child:
    """A process that runs jobs, one at a time; its first job starts it."""

    def __init__(self) -> None:
        self._connection, self._child_connection = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_main, args=(self._child_connection,), name="holdfast-child", daemon=True
        )
        self._lock = threading.Lock()
        self._started = False
        self._killed = ""

    @property
    def alive(self) -> bool:
        return self._started and not self._killed and self._process.is_alive()

    def kill(self, why: str) -> None:
        """Kill the process, from any thread, even while it starts. `run` then fails with this reason."""
        with self._lock:
            self._killed = self._killed or why
            if self._started:
                self._process.kill()

    def close(self) -> None:
        """Tell an idle process to end."""
        self._connection.close()

    def join(self) -> None:
        """Wait for the end of the process, and kill it if that takes too long."""
        self._process.join(EXIT_SECONDS)
        self._process.kill()
        self._process.join()

    def run(
        self,
        request: Request,
        on_note: Callable[[Note | HandlerEvent], None],
        seconds: float | None,
        memory_limit: int | None,
    ) -> Reply:
        """Run a job, and block until there is an outcome."""
        if not self._started:
            self._start()
        end = None if seconds is None else time.monotonic() + seconds
        late = f"it ran longer than its timeout of {seconds or 0:g} s"
        begun = False
        try:
            self._connection.send(request)
            while True:
                message = self._receive(end, late, memory_limit)
                if isinstance(message, Reply):
                    return message
                if message == BEGUN:
                    begun = True
                else:
                    on_note(message)
        except (EOFError, OSError):
            return Reply(self._failure(), completed=False, begun=begun or bool(self._killed))

    def _start(self) -> None:
        self._process.start()
        self._child_connection.close()
        with self._lock:
            self._started = True
            if self._killed:
                self._process.kill()

    def _receive(self, end: float | None, late: str, memory_limit: int | None) -> Any:
        while not wait([self._connection, self._process.sentinel], self._wait_seconds(end, memory_limit)):
            if end is not None and time.monotonic() >= end:
                self.kill(late)
            elif memory_limit is not None and (used := _memory(self._process.pid)) > memory_limit:
                self.kill(f"it used {used:,} bytes of memory, the limit is {memory_limit:,}")
        return self._connection.recv()  # raises EOFError if the child is gone

    def _wait_seconds(self, end: float | None, memory_limit: int | None) -> float | None:
        if memory_limit is not None:
            return MEMORY_CHECK_SECONDS
        return None if end is None else max(end - time.monotonic(), 0)

    def _failure(self) -> Failed:
        code = self._exit_code()
        self._connection.close()
        if self._killed:
            kind = "TimeoutError" if "timeout" in self._killed else "Killed"
            return Failed(f"{kind}: its process was killed: {self._killed}", kind)
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return Failed(f"ProcessDied: its process ended {how} while it ran", "ProcessDied")

    def _exit_code(self) -> int:
        self._process.join()
        # Another thread that starts a process collects all processes that have ended, this one among them,
        # and sets the exit code in a moment. If a handler has waited for any process, no exit code ever
        # comes.
        end = time.monotonic() + EXIT_SECONDS
        while (code := self._process.exitcode) is None and time.monotonic() < end:
            time.sleep(0.001)
        return code or 0


def import_path(task: Task[..., Any]) -> tuple[str, str]:
    """Return the module and name by which a child imports the task.

    Raises if the task is not at the top of a module.
    """
    module, attribute = task.function.__module__, task.function.__qualname__
    if "<locals>" in attribute or "." in attribute:
        raise BadValue(
            f"task {task.name} runs in a process, and {module}.{attribute} cannot be imported there",
            hint="Declare it at the top of a module.",
            field="isolation",
        )
    return module, attribute


def _memory(pid: int | None) -> int:
    """Return the memory of a process in bytes; 0 if the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


# In the child.


def _main(line: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which decides
    threading.Thread(target=_exit_with_worker, name="holdfast-lifeline", daemon=True).start()
    threading.current_thread().name = "holdfast-child"
    while True:
        try:
            request = line.recv()
        except (EOFError, OSError):
            return
        line.send(BEGUN)
        context = _Context(request, line)
        outcome = _attempt(request, context)
        context.closed = True
        line.send(Reply(outcome, context.completed))


def _exit_with_worker() -> None:
    """End this process when the worker ends, whatever the handler is doing.

    multiprocessing keeps a pipe for this, whose other end only the worker holds and the kernel closes. If a
    handler in the worker has forked, that process holds the pipe too. Then this process notices that it has
    another parent.
    """
    worker = multiprocessing.parent_process()
    while worker is not None and worker.is_alive() and os.getppid() == worker.pid:
        worker.join(PARENT_SECONDS)
    os._exit(1)


@cache
def _database(dsn: str, transaction_pooling: bool | None) -> Database:
    """Return one database for all jobs of this process, because connecting takes longer than most of them."""
    return Database(dsn, transaction_pooling=transaction_pooling)


class _Context(Context):
    """A context that sends its notes to the worker."""

    __slots__ = ("_connection", "_lock", "closed")

    def __init__(self, request: Request, line: "Connection[Any, Any]") -> None:
        super().__init__(request.job, _database(request.dsn, request.transaction_pooling))
        self._connection = line
        self._lock = threading.Lock()
        self.closed = False
        if request.memory is not None:
            self.restore(request.memory)

    def _set_note(self, note: Note) -> None:
        super()._set_note(note)
        self._send(note)

    def event(self, name: str, data: Any = None) -> None:
        if message := self.notes.event(name, data):
            self._send(message)

    def _send(self, message: Note | HandlerEvent) -> None:
        with self._lock:
            if not self.closed:
                self._connection.send(message)


def _attempt(request: Request, context: Context) -> Outcome:
    registry = Registry()
    try:
        task = getattr(importlib.import_module(request.module), request.attribute)
        # A script is named by its file and has another name in a child. The job's name counts.
        registry.register(task, name=request.job.task)
        arguments = task.decode(request.job.payload)
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
        return failure_of(request.job, error, registry)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()

"""A child process as its worker sees it: sends jobs, receives notes and outcomes, and kills it if necessary.

A thread of the worker watches each job. It waits for three things at once: a message from the child, the end
of the child, and a timeout.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from holdfast.task import Task
from holdfast.values.errors import BadValue
from holdfast.values.job import Failed
from holdfast.worker.context.notes import HandlerEvent, Note
from holdfast.worker.isolation import child
from holdfast.worker.isolation.messages import BEGUN, Reply, Request

MEMORY_CHECK_SECONDS = 0.1
# How long a child may take to end after its pipe was closed.
EXIT_SECONDS = 1.0

_SPAWN = multiprocessing.get_context("spawn")


class ChildProcess:
    """A process that runs jobs, one at a time; its first job starts it."""

    def __init__(self) -> None:
        self._connection, self._child_connection = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=child.main, args=(self._child_connection,), name="holdfast-child", daemon=True
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
        # A thread that starts another process collects every ended process, including this one, and sets its
        # exit code a moment later. If a handler itself has waited for child processes, the exit code never
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
    """Return the memory of a process in bytes, or 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0

"""Runs handlers in a child process.

    worker ── job ──► child: import the task, decode, call, encode
       ◄── notes, at last the outcome ──┘

A thread waits for the end of the worker, and then ends this process.
"""

import asyncio
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from holdfast.database import Database
from holdfast.task import Registry
from holdfast.values.job import Outcome, Stop
from holdfast.worker.context import Context
from holdfast.worker.context.notes import HandlerEvent, Note
from holdfast.worker.failure import failure_of
from holdfast.worker.isolation.messages import BEGUN, Reply, Request
from holdfast.worker.outcome import outcome_of

# How often a child checks that its parent is still the worker.
PARENT_SECONDS = 1.0


def main(line: "Connection[Any, Any]") -> None:
    """Run the jobs that come through the pipe, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the worker
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

    multiprocessing keeps a pipe for this. Only the worker holds its other end, and the kernel closes it. If a
    handler in the worker has forked, that process holds the pipe too. Then this process notices that its
    parent has changed.
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
        # A task of a script has another name in a child, so it is registered under the job's name.
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
    except BaseException as error:  # noqa: BLE001 - any exception is the job's failure
        return failure_of(request.job, error, registry)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()

"""Holdfast's side: the public API as the README shows it."""
# ruff: noqa: ARG001 - handlers take what they are given and do nothing with it

import argparse
import asyncio
import time
from functools import cache
from typing import Any

import uvloop  # noqa: F401 - loaded before the gate, as what the peers need is
from agent import QUEUE, REPORT, main

import holdfast.worker.worker  # noqa: F401 - the same
from holdfast import Holdfast, Task

SPREAD = 30
COMPUTE_SECONDS = 200e-6
URGENT = 150


class App:
    """The tasks of the benchmark, declared on one Holdfast."""

    def __init__(self, dsn: str) -> None:
        self.hf = Holdfast(dsn)
        declare = self.hf.task

        @declare(name="noop", queue=QUEUE)
        async def noop(n: int) -> None:
            REPORT.noop()

        @declare(name="nap", queue=QUEUE)
        async def nap(n: int) -> None:
            await asyncio.sleep(0.001)
            REPORT.noop()

        @declare(name="compute", queue=QUEUE)
        async def compute(n: int) -> None:
            REPORT.noop()
            done = time.thread_time() + COMPUTE_SECONDS
            while time.thread_time() < done:
                pass

        @declare(name="doze", queue=QUEUE)
        async def doze(n: int) -> None:
            REPORT.noop()
            await asyncio.sleep(0.1)

        @declare(name="stamp", queue=QUEUE)
        async def stamp(at: float = 0, due: float = 0) -> None:
            REPORT.stamped({"at": at} if at else {"due": due})

        for number in range(SPREAD):
            declare(name=f"spread.{number}", queue=QUEUE)(noop.function)


class Producer:
    def __init__(self, app: App, strangers: Task[Any, Any]) -> None:
        self._app = app
        self._stranger = strangers

    def one(self, task: str, payload: dict[str, Any], *, delay: float = 0, urgent: bool = False) -> None:
        self._task(task, delay, URGENT if urgent else None).enqueue(**payload)

    def bulk(self, tasks: list[str], payloads: list[dict[str, Any]], *, delay: float = 0) -> None:
        """A name such as `spread.3/150` carries its priority."""
        chosen = {name: self._named(name, delay) for name in set(tasks)}
        self._app.hf.enqueue_many(
            chosen[name].call(**payload) for name, payload in zip(tasks, payloads, strict=True)
        )

    def _named(self, name: str, delay: float) -> Task[Any, Any]:
        task, _, priority = name.partition("/")
        return self._task(task, delay, int(priority) if priority else None)

    def _task(self, name: str, delay: float, priority: int | None) -> Task[Any, Any]:
        task = self._stranger if name == "stranger" else self._app.hf.tasks.get(name)
        if not delay and priority is None:
            return task
        return task.options(delay=delay or None, priority=priority)


@cache
def _shared(dsn: str) -> Producer:
    app = App(dsn)
    strangers = Holdfast(dsn)  # its task is unknown to the worker

    @strangers.task(name="stranger", queue=QUEUE)
    async def stranger(n: int) -> None: ...

    return Producer(app, stranger)


def work(dsn: str, given: argparse.Namespace) -> None:
    hf = App(dsn).hf
    hf.worker(queues=[QUEUE], concurrency=given.concurrency, notify=given.notify).run()


if __name__ == "__main__":
    # One Holdfast for all producers of a process: its pool gives each its own connection.
    main(_shared, work)

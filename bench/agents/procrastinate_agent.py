"""procrastinate's side."""
# ruff: noqa: ARG001 - handlers take what they are given and do nothing with it

import argparse
import asyncio
from typing import Any

from agent import QUEUE, REPORT, main
from procrastinate import App, PsycopgConnector

URGENT = 10


def declare(dsn: str, connections: int = 2) -> App:
    app = App(connector=PsycopgConnector(conninfo=dsn, min_size=1, max_size=connections))

    @app.task(name="noop", queue=QUEUE)
    async def noop(n: int) -> None:
        REPORT.noop()

    @app.task(name="nap", queue=QUEUE)
    async def nap(n: int) -> None:
        await asyncio.sleep(0.001)
        REPORT.noop()

    @app.task(name="doze", queue=QUEUE)
    async def doze(n: int) -> None:
        REPORT.noop()
        await asyncio.sleep(0.1)

    @app.task(name="stamp", queue=QUEUE)
    async def stamp(**payload: float) -> None:
        REPORT.stamped(payload)

    return app


class Producer:
    def __init__(self, app: App) -> None:
        self._app = app

    async def one(
        self, task: str, payload: dict[str, Any], *, delay: float = 0, urgent: bool = False
    ) -> None:
        options: dict[str, Any] = {"priority": URGENT} if urgent else {}
        if delay:
            options["schedule_in"] = {"seconds": delay}
        await self._app.configure_task(task, queue=QUEUE, **options).defer_async(**payload)

    async def bulk(self, tasks: list[str], payloads: list[dict[str, Any]], *, delay: float = 0) -> None:
        """All of one task, which is what the batch call takes."""
        options: dict[str, Any] = {"schedule_in": {"seconds": delay}} if delay else {}
        deferrer = self._app.configure_task(tasks[0], queue=QUEUE, **options)
        for start in range(0, len(payloads), 1_000):
            await deferrer.batch_defer_async(*payloads[start : start + 1_000])


async def open_producer(dsn: str) -> Producer:
    app = declare(dsn, connections=1)
    await app.open_async()
    return Producer(app)


async def _work(dsn: str, concurrency: int) -> None:
    # A pool as large as the concurrency would be: a job holds no connection while it runs, so 20 are plenty.
    app = declare(dsn, connections=20)
    async with app.open_async():
        await app.run_worker_async(queues=[QUEUE], concurrency=concurrency)


def work(dsn: str, given: argparse.Namespace) -> None:
    asyncio.run(_work(dsn, given.concurrency))


if __name__ == "__main__":
    main(open_producer, work)

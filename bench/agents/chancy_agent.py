"""chancy's side. Its worker imports handlers by name, so they stand at the top of this module."""
# ruff: noqa: ARG001 - handlers take what they are given and do nothing with it

import argparse
import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from agent import QUEUE, REPORT, main
from chancy import Chancy, Job, Queue, Worker

URGENT = 10


async def noop(*, n: int) -> None:
    REPORT.noop()


async def nap(*, n: int) -> None:
    await asyncio.sleep(0.001)
    REPORT.noop()


async def doze(*, n: int) -> None:
    REPORT.noop()
    await asyncio.sleep(0.1)


async def stamp(**payload: float) -> None:
    REPORT.stamped(payload)


HANDLERS = {"noop": noop, "nap": nap, "doze": doze, "stamp": stamp}


class Producer:
    def __init__(self, chancy: Chancy) -> None:
        self._chancy = chancy

    async def one(
        self, task: str, payload: dict[str, Any], *, delay: float = 0, urgent: bool = False
    ) -> None:
        await self._chancy.push(_job(task, payload, delay, URGENT if urgent else 0))

    async def bulk(self, tasks: list[str], payloads: list[dict[str, Any]], *, delay: float = 0) -> None:
        jobs = [_job(task, payload, delay) for task, payload in zip(tasks, payloads, strict=True)]
        async for _ in self._chancy.push_many(jobs, batch_size=1_000):
            pass


def _job(task: str, payload: dict[str, Any], delay: float, priority: int = 0) -> Job:
    job = Job.from_func(HANDLERS[task], queue=QUEUE, kwargs=payload, priority=priority)
    return job.with_scheduled_at(datetime.now(UTC) + timedelta(seconds=delay)) if delay else job


async def open_producer(dsn: str) -> Producer:
    chancy = _chancy(dsn)
    await chancy.pool.open()
    return Producer(chancy)


def _chancy(dsn: str) -> Chancy:
    log = logging.getLogger("chancy")
    log.setLevel(logging.WARNING)
    return Chancy(dsn, log=log)


async def _work(dsn: str, concurrency: int) -> None:
    async with _chancy(dsn) as chancy:
        queue = Queue(
            QUEUE,
            concurrency=concurrency,
            executor=Chancy.Executor.Async,
            polling_interval=1,
            eager_polling=True,
        )
        await chancy.declare(queue, upsert=True)
        async with Worker(chancy) as worker:
            await worker.wait_for_shutdown()


def work(dsn: str, given: argparse.Namespace) -> None:
    asyncio.run(_work(dsn, given.concurrency))


if __name__ == "__main__":
    # Under its own name: what a job's function is called must not be `__main__.noop`.
    import chancy_agent

    main(chancy_agent.open_producer, chancy_agent.work)

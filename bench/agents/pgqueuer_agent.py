"""pgqueuer's side: an asyncpg connection each for producer and worker, on uvloop as `pgq run` does."""
# ruff: noqa: ARG001 - handlers take what they are given and do nothing with it

import argparse
import asyncio
import json
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from agent import REPORT, main
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job

URGENT = 10


class Producer:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def one(
        self, task: str, payload: dict[str, Any], *, delay: float = 0, urgent: bool = False
    ) -> None:
        await self._queries.enqueue(
            task,
            json.dumps(payload).encode(),
            priority=URGENT if urgent else 0,
            execute_after=timedelta(seconds=delay) if delay else None,
        )

    async def bulk(self, tasks: list[str], payloads: list[dict[str, Any]], *, delay: float = 0) -> None:
        after = timedelta(seconds=delay) if delay else None
        for start in range(0, len(tasks), 5_000):
            some = slice(start, start + 5_000)
            size = len(tasks[some])
            await self._queries.enqueue(
                tasks[some],
                [json.dumps(payload).encode() for payload in payloads[some]],
                [0] * size,
                execute_after=[after] * size,
            )


async def open_producer(dsn: str) -> Producer:
    return Producer(Queries(AsyncpgDriver(await asyncpg.connect(dsn))))


async def _work(dsn: str, concurrency: int, batch: int) -> None:
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

    @pgq.entrypoint("noop")
    async def noop(job: Job) -> None:
        REPORT.noop()

    @pgq.entrypoint("nap")
    async def nap(job: Job) -> None:
        await asyncio.sleep(0.001)
        REPORT.noop()

    @pgq.entrypoint("doze")
    async def doze(job: Job) -> None:
        REPORT.noop()
        await asyncio.sleep(0.1)

    @pgq.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        REPORT.stamped(json.loads(job.payload or b"{}"))

    await pgq.run(batch_size=batch, max_concurrent_tasks=concurrency or None)


def work(dsn: str, given: argparse.Namespace) -> None:
    # No limit on tasks unless one is asked for; the limit must be at least twice the batch.
    batch = min(500, given.concurrency // 2) if given.concurrency else 500
    uvloop.run(_work(dsn, given.concurrency, batch))


if __name__ == "__main__":
    main(open_producer, work, run=uvloop.run)

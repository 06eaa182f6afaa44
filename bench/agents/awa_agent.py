"""awa's side."""
# ruff: noqa: ARG001 - handlers take what they are given and do nothing with it

import argparse
import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import awa
from agent import QUEUE, REPORT, main

URGENT, NORMAL = 1, 2
CLAIM_BATCH = 512


@dataclass
class Noop:
    n: int


@dataclass
class Nap:
    n: int


@dataclass
class Doze:
    n: int


@dataclass
class Stamp:
    at: float = 0
    due: float = 0


KINDS: dict[str, type] = {"noop": Noop, "nap": Nap, "doze": Doze, "stamp": Stamp}


class Producer:
    def __init__(self, dsn: str) -> None:
        self._client = awa.AsyncClient(dsn, max_connections=1)

    async def one(
        self, task: str, payload: dict[str, Any], *, delay: float = 0, urgent: bool = False
    ) -> None:
        await self._client.insert(
            KINDS[task](**payload),
            queue=QUEUE,
            priority=URGENT if urgent else NORMAL,
            run_at=_due(delay),
        )

    async def bulk(self, tasks: list[str], payloads: list[dict[str, Any]], *, delay: float = 0) -> None:
        jobs = [KINDS[task](**payload) for task, payload in zip(tasks, payloads, strict=True)]
        for start in range(0, len(jobs), 5_000):
            await self._client.enqueue_many_copy(jobs[start : start + 5_000], queue=QUEUE, run_at=_due(delay))


def _due(delay: float) -> datetime | None:
    return datetime.now(UTC) + timedelta(seconds=delay) if delay else None


async def _work(dsn: str, concurrency: int) -> None:
    client = awa.AsyncClient(dsn, max_connections=20)

    @client.task(Noop, queue=QUEUE)
    async def noop(job: Any) -> None:
        REPORT.noop()

    @client.task(Nap, queue=QUEUE)
    async def nap(job: Any) -> None:
        await asyncio.sleep(0.001)
        REPORT.noop()

    @client.task(Doze, queue=QUEUE)
    async def doze(job: Any) -> None:
        REPORT.noop()
        await asyncio.sleep(0.1)

    @client.task(Stamp, queue=QUEUE)
    async def stamp(job: Any) -> None:
        REPORT.stamped({"at": job.args.at} if job.args.at else {"due": job.args.due})

    await client.start([{"name": QUEUE, "max_workers": concurrency, "claim_batch_size": CLAIM_BATCH}])
    await asyncio.Event().wait()


def work(dsn: str, given: argparse.Namespace) -> None:
    asyncio.run(_work(dsn, given.concurrency))


if __name__ == "__main__":
    main(Producer, work)

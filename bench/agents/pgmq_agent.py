"""pgmq's side. It brings no worker, so this is a plain loop over its SQL: read a batch, run it, delete it."""

import argparse
import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from agent import QUEUE, REPORT, main
from psycopg.types.json import Jsonb

BATCH = 500
VISIBILITY_SECONDS = 30
POLL_SECONDS = 0.1  # what pgmq's own read_with_poll waits between looks, by default

_READ = "select msg_id, message from pgmq.read(%s, %s, %s)"
_DELETE = "select pgmq.delete(%s, %s::bigint[])"


class Producer:
    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)

    def one(
        self,
        task: str,
        payload: dict[str, Any],
        *,
        delay: float = 0,
        urgent: bool = False,  # noqa: ARG002 - there is no priority that would help
    ) -> None:
        message = Jsonb({"task": task, **payload})
        if delay:
            due = datetime.now(UTC) + timedelta(seconds=delay)
            self._connection.execute("select pgmq.send(%s, %s, %s::timestamptz)", [QUEUE, message, due])
        else:
            self._connection.execute("select pgmq.send(%s, %s)", [QUEUE, message])

    def bulk(self, tasks: list[str], payloads: list[dict[str, Any]], *, delay: float = 0) -> None:
        messages = [Jsonb({"task": task, **load}) for task, load in zip(tasks, payloads, strict=True)]
        for start in range(0, len(messages), 1_000):
            self._connection.execute(
                "select count(*) from pgmq.send_batch(%s, %s::jsonb[], %s::integer)",
                [QUEUE, messages[start : start + 1_000], round(delay)],
            )


def work(dsn: str, given: argparse.Namespace) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection, asyncio.Runner() as runner:
        while True:
            rows = connection.execute(_READ, [QUEUE, VISIBILITY_SECONDS, BATCH]).fetchall()
            if not rows:
                time.sleep(POLL_SECONDS)
                continue
            waiting = [message for _, message in rows if not _ran(message)]
            if waiting:
                runner.run(_run_all(waiting, given.concurrency))
            connection.execute(_DELETE, [QUEUE, [msg_id for msg_id, _ in rows]])


def _ran(message: dict[str, Any]) -> bool:
    """Run what needs no waiting at once."""
    match message["task"]:
        case "noop":
            REPORT.noop()
        case "stamp":
            REPORT.stamped(message)
        case _:
            return False
    return True


async def _run_all(messages: list[dict[str, Any]], concurrency: int) -> None:
    async def slot() -> None:
        while messages:
            await asyncio.sleep(0.001 if messages.pop()["task"] == "nap" else 0.1)
            REPORT.noop()

    await asyncio.gather(*(slot() for _ in range(concurrency)))


if __name__ == "__main__":
    main(Producer, work)

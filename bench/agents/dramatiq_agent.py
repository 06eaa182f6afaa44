"""dramatiq's side, on Redis. `dsn` is a Redis URL."""
# ruff: noqa: ARG001 - handlers take what they are given and do nothing with it

import argparse
import asyncio
import signal
import threading
from typing import Any

import dramatiq
from agent import QUEUE, REPORT, main
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO


def declare(url: str) -> RedisBroker:
    broker = RedisBroker(url=url)
    broker.add_middleware(AsyncIO())
    dramatiq.set_broker(broker)

    @dramatiq.actor(actor_name="noop", queue_name=QUEUE)
    def noop(n: int) -> None:
        REPORT.noop()

    @dramatiq.actor(actor_name="nap", queue_name=QUEUE)
    async def nap(n: int) -> None:
        await asyncio.sleep(0.001)
        REPORT.noop()

    @dramatiq.actor(actor_name="doze", queue_name=QUEUE)
    async def doze(n: int) -> None:
        REPORT.noop()
        await asyncio.sleep(0.1)

    @dramatiq.actor(actor_name="stamp", queue_name=QUEUE)
    def stamp(**payload: float) -> None:
        REPORT.stamped(payload)

    return broker


class Producer:
    def __init__(self, url: str) -> None:
        self._broker = declare(url)

    def one(
        self,
        task: str,
        payload: dict[str, Any],
        *,
        delay: float = 0,
        urgent: bool = False,  # noqa: ARG002 - there is no priority that would help
    ) -> None:
        actor = self._broker.get_actor(task)
        actor.send_with_options(kwargs=payload, delay=round(delay * 1000) if delay else None)

    def bulk(self, tasks: list[str], payloads: list[dict[str, Any]], *, delay: float = 0) -> None:
        """There is no bulk call."""
        for task, payload in zip(tasks, payloads, strict=True):
            self.one(task, payload, delay=delay)


def work(url: str, given: argparse.Namespace) -> None:
    broker = declare(url)
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=given.concurrency)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    worker.start()
    told.wait()
    worker.stop(timeout=1_000)


if __name__ == "__main__":
    main(Producer, work)

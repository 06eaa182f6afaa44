"""celery's side, on Redis. `dsn` is a Redis URL."""
# ruff: noqa: ARG001 - handlers take what they are given and do nothing with it

import argparse
import os
import sys
import time
from typing import Any

GREENLETS = "work" in sys.argv and "--concurrency=1" not in sys.argv
if GREENLETS:
    from gevent import monkey

    monkey.patch_all()  # before anything else is imported, as `celery -P gevent` does

from agent import QUEUE, REPORT, main  # noqa: E402
from celery import Celery  # noqa: E402


def declare(url: str) -> Celery:
    app = Celery("bench", broker=url)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        worker_prefetch_multiplier=128,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,  # it is our line to the harness
        broker_connection_retry_on_startup=True,
        broker_pool_limit=16,
    )

    @app.task(name="noop")
    def noop(n: int) -> None:
        REPORT.noop()

    @app.task(name="nap")
    def nap(n: int) -> None:
        time.sleep(0.001)
        REPORT.noop()

    @app.task(name="doze")
    def doze(n: int) -> None:
        REPORT.noop()
        time.sleep(0.1)

    @app.task(name="stamp")
    def stamp(**payload: float) -> None:
        REPORT.stamped(payload)

    return app


class Producer:
    def __init__(self, url: str) -> None:
        self._app = declare(url)

    def one(
        self,
        task: str,
        payload: dict[str, Any],
        *,
        delay: float = 0,
        urgent: bool = False,  # noqa: ARG002 - there is no priority that would help
    ) -> None:
        self._app.tasks[task].apply_async(kwargs=payload, countdown=delay or None)

    def bulk(self, tasks: list[str], payloads: list[dict[str, Any]], *, delay: float = 0) -> None:
        """There is no bulk call; one producer and connection for all is the documented way."""
        with self._app.producer_or_acquire() as producer:
            for task, payload in zip(tasks, payloads, strict=True):
                self._app.tasks[task].apply_async(kwargs=payload, countdown=delay or None, producer=producer)


def work(url: str, given: argparse.Namespace) -> None:
    # In the process itself, or in greenlets where jobs wait: `-P prefork` pays a pipe for every job.
    pool = ["--pool=gevent", f"--concurrency={given.concurrency}"] if GREENLETS else ["--pool=solo"]
    quiet = ["--loglevel=WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    declare(url).worker_main(["--quiet", "worker", *pool, *quiet, f"--hostname={os.getpid()}@bench"])


if __name__ == "__main__":
    main(Producer, work)

"""awa: a Rust core with Python handlers; append-only storage that a held snapshot does not slow down."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from bench.environments import NotInstalled
from bench.in_postgres import PostgresPeer
from bench.peer import Done, Place
from bench.processes import Workers
from bench.server import Database

# A worker's first start moves a fresh installation to the queue storage that bulk enqueueing needs.
_FIRST_START = """
import asyncio, sys
from dataclasses import dataclass
import awa
@dataclass
class Noop:
    n: int
async def main():
    await awa.migrate(sys.argv[1])
    client = awa.AsyncClient(sys.argv[1])
    @client.task(Noop, queue="bench")
    async def noop(job): ...
    await client.start([("bench", 1)])
    await client.shutdown()
asyncio.run(main())
"""


class Awa(PostgresPeer):
    name = "awa-pg"
    # Short jobs gain from more of them in flight; the storage settings are best left alone, it says.
    settings = (
        "max_workers 500, claim_batch_size 512, queue storage with its defaults; "
        "enqueue_many_copy of 5,000 for bulk"
    )
    source = "awa docs: configuration, getting-started-python"
    agent = "awa_agent.py"
    loading = "from awa import AsyncClient"
    concurrency = 500
    table = "awa.jobs"
    open_blocks = "a transaction that enqueued makes every other enqueuer of its queue wait until it commits"
    cannot: ClassVar[Mapping[str, str]] = {
        "backlog_unknown": "it fails jobs of a kind that the worker does not know, at once"
    }

    def address(self, place: Place) -> str:
        return place.uri("localhost")  # its driver wants a host even beside a socket

    def prepare(self, database: Database) -> None:
        done = subprocess.run(
            [self.interpreter, "-c", _FIRST_START, self.address(database)],
            capture_output=True,
            text=True,
            check=False,
            env=dict(os.environ),
        )
        if done.returncode:
            raise NotInstalled(done.stderr.strip().splitlines()[-1])

    @contextmanager
    def goal(
        self,
        place: Database,
        amount: int,
        workers: Workers,  # noqa: ARG002
        *,
        newest: bool = False,  # noqa: ARG002
    ) -> Iterator[Done]:
        """It keeps counts of what is finished; its view of jobs takes minutes."""
        finished = """
          select (select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)
               + (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)
               + (select count(*) from awa.done_entries where state = 'completed')
        """
        with place.connect() as connection:
            [[before]] = connection.execute(finished).fetchall()

            def done() -> bool:
                [[now]] = connection.execute(finished, prepare=True).fetchall()
                return bool(now - before >= amount)

            yield done

"""pgqueuer: asyncpg and LISTEN/NOTIFY, batches at both ends."""

import subprocess

from bench.environments import NotInstalled
from bench.in_postgres import PostgresPeer
from bench.server import Database


class PgQueuer(PostgresPeer):
    name = "pgqueuer"
    # "Increase batch_size when jobs are short-lived"; its buffer of finished jobs is as large as a batch.
    # A dedicated asyncpg connection (not a pool) for the queue manager; `pgq autovac` after the installation;
    # the default durability, which is the only one that loses nothing.
    settings = (
        "asyncpg, uvloop, batch_size 500, no task limit, durable tables, `pgq autovac`; enqueue of 5,000 for "
        "bulk; for the 1 ms job max_concurrent_tasks 100 and batch_size 50, the largest that it allows"
    )
    source = "pgqueuer docs: guides/performance-tuning, comparisons/benchmarks"
    agent = "pgqueuer_agent.py"
    loading = "from pgqueuer import PgQueuer"
    concurrency = 0
    table = "pgqueuer"
    known = "entrypoint <> 'stranger'"
    enqueue_sql = (
        "insert into pgqueuer (priority, entrypoint, payload, status) "
        "values (0, 'noop', '{\"n\": 0}', 'queued')"
    )

    def prepare(self, database: Database) -> None:
        for command in ("install", "autovac"):
            done = subprocess.run(
                [self.interpreter, "-m", "pgqueuer", "--pg-dsn", database.uri(), command],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise NotInstalled(done.stderr.strip().splitlines()[-1])

"""chancy: fetches in batches, writes what is finished once a second."""

import subprocess

from bench.environments import NotInstalled
from bench.in_postgres import PostgresPeer
from bench.server import Database


class Chancy(PostgresPeer):
    name = "chancy"
    # The asyncio executor has the least overhead; a fetch takes as many jobs as there are free slots, so the
    # concurrency is the batch. Eager polling looks again after each job instead of after the interval.
    settings = (
        "AsyncExecutor, concurrency 500, eager_polling, polling_interval 1; push_many of 1,000 for bulk"
    )
    source = "chancy docs: Queue, executors, Chancy.push_many"
    agent = "chancy_agent.py"
    loading = "from chancy import Chancy"
    concurrency = 500
    table = "chancy_jobs"
    waiting = "state in ('pending', 'running', 'retrying')"
    cannot = dict.fromkeys(("backlog", "snapshot"), "too slow to fill with a million jobs; see drain")

    def prepare(self, database: Database) -> None:
        script = (
            "import asyncio, sys\n"
            "from chancy import Chancy\n"
            "async def main():\n"
            "    async with Chancy(sys.argv[1]) as chancy: await chancy.migrate()\n"
            "asyncio.run(main())"
        )
        done = subprocess.run(
            [self.interpreter, "-c", script, database.uri()], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotInstalled(done.stderr.strip().splitlines()[-1])

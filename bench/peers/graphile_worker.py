"""graphile-worker, on Node: the fastest PostgreSQL queue with a worker that we know of."""

import os
import subprocess
from pathlib import Path

from bench.environments import NotInstalled
from bench.in_postgres import PostgresPeer
from bench.server import Database


class GraphileWorker(PostgresPeer):
    name = "graphile-worker"
    # The preset with which its documentation reaches its best; the 1 ms job only changes the concurrency.
    settings = (
        "concurrentJobs 24, maxPoolSize 25, localQueue.size 500, completeJobBatchDelay 0, "
        "failJobBatchDelay 0; addJobs of 5,000 for bulk, no named queues (those run serially)"
    )
    source = "worker.graphile.org/docs/performance"
    agent = "graphile_worker_agent.mjs"
    loading = ""
    concurrency = 24
    table = "graphile_worker._private_jobs"
    known = "task_id = any(select id from graphile_worker._private_tasks where identifier <> 'stranger')"
    enqueue_sql = "select graphile_worker.add_job('noop', '{\"n\": 0}')"

    @property
    def import_command(self) -> list[str | Path]:
        return [self.interpreter, "-e", f"require({str(self._package)!r})"]

    @property
    def idle_command(self) -> list[str | Path]:
        return [self.interpreter, "-e", ""]

    @property
    def _package(self) -> Path:
        return self._environment.path / "node_modules" / "graphile-worker"

    def prepare(self, database: Database) -> None:
        cli = self._package / "dist" / "cli.js"
        # --schema-only installs or upgrades, then exits.
        done = subprocess.run(
            [self.interpreter, cli, "--connection", database.uri(), "--schema-only"],
            capture_output=True,
            text=True,
            check=False,
            env=dict(os.environ),
            cwd=self._environment.path,
        )
        if done.returncode:
            raise NotInstalled(done.stderr.strip() or done.stdout.strip())

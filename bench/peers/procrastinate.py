"""procrastinate: one transaction for each fetch and each finish."""

import subprocess

from bench.environments import NotInstalled
from bench.in_postgres import PostgresPeer
from bench.server import Database


class Procrastinate(PostgresPeer):
    name = "procrastinate"
    # Jobs are fetched one at a time whatever the settings; above a concurrency of about 20 nothing is gained.
    settings = "PsycopgConnector with 20 connections, concurrency 20, LISTEN; batch_defer of 1,000 for bulk"
    source = "procrastinate docs: howto/basics/worker, howto/advanced/concurrency, howto/basics/batch_defer"
    agent = "procrastinate_agent.py"
    loading = "from procrastinate import App"
    concurrency = 20
    table = "procrastinate_jobs"
    waiting = "status in ('todo', 'doing')"
    cannot = dict.fromkeys(("backlog", "snapshot"), "one transaction a job; see drain")

    def prepare(self, database: Database) -> None:
        script = (
            "import sys; from procrastinate import App, SyncPsycopgConnector as C; "
            "app = App(connector=C(conninfo=sys.argv[1])); app.open(); app.schema_manager.apply_schema()"
        )
        done = subprocess.run(
            [self.interpreter, "-c", script, database.uri()], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotInstalled(done.stderr.strip().splitlines()[-1])

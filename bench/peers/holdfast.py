"""Holdfast itself, from this very checkout."""

import sys
from importlib.metadata import version
from pathlib import Path

from bench.in_postgres import PostgresPeer
from bench.server import Database
from holdfast import Holdfast as Client


class Holdfast(PostgresPeer):
    name = "holdfast"
    settings = (
        "defaults, with the extra fast: concurrency 20 (100 for jobs of 1 ms), adaptive prefetch, LISTEN, "
        "claims that do not wait for the disk; enqueue_many for bulk"
    )
    source = "README.md"
    agent = "holdfast_agent.py"
    loading = "from holdfast import Holdfast"
    concurrency = 20
    judged = True
    table = "holdfast.live"
    known = "task <> 'stranger'"
    registered_sql = "select count(*) from holdfast.worker where left_at is null and lost_at is null"
    enqueue_sql = "select holdfast.enqueue('noop', '{\"n\": 0}', 'bench')"

    def __init__(self) -> None:
        self._kept = {}

    @property
    def version(self) -> str:
        return version("holdfast")

    def install(self) -> None:
        """It is what runs this."""

    @property
    def interpreter(self) -> Path:
        return Path(sys.executable)

    def _environ(self) -> dict[str, str]:
        return {}

    def prepare(self, database: Database) -> None:
        with Client(database.dsn) as client:
            client.migrate()
        # The duties' first round (partitions, above all) belongs to the installation.
        with database.connect() as connection:
            connection.execute("select * from holdfast.tick()")

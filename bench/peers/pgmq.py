"""pgmq: queues as SQL functions. It has no worker and no tasks, so our own loop stands in for one.

The functions come from the script in the PyPI package; the extension is not needed.
"""

from collections.abc import Mapping
from typing import ClassVar

from bench.environments import NotInstalled
from bench.in_postgres import PostgresPeer
from bench.server import Database

_NO_TASKS = "it has no tasks: a task that nobody knows would be a queue that nobody reads"


class Pgmq(PostgresPeer):
    name = "pgmq"
    settings = (
        "own loop: read 500, run, delete 500; polling every 100 ms, as its read_with_poll does by default; "
        "send_batch of 1,000 for bulk"
    )
    source = "pgmq docs: api/sql/functions (read, read_with_poll, delete, send_batch)"
    agent = "pgmq_agent.py"
    loading = "from pgmq import PGMQueue"
    concurrency = 100
    table = "pgmq.q_bench"
    key = "msg_id"
    enqueue_sql = 'select pgmq.send(\'bench\', \'{"task": "noop", "n": 0}\')'
    cannot: ClassVar[Mapping[str, str]] = {"backlog_unknown": _NO_TASKS, "flood": "it has no priorities"}

    def prepare(self, database: Database) -> None:
        found = list(self._environment.path.glob("lib/python*/site-packages/pgmq/sql/pgmq.sql"))
        if not found:
            raise NotInstalled("the PyPI package has no pgmq.sql any more")
        with database.connect() as connection:
            connection.execute(found[0].read_bytes())
            connection.execute("select pgmq.create('bench')")

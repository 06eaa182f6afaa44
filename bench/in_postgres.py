"""Peers that keep their jobs in PostgreSQL."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg

from bench.peer import Done, Peer, Tasks
from bench.processes import Producer, Workers
from bench.server import Database, Server

BREAK_IN_JOBS = 500
PATIENCE = 600.0


class PostgresPeer(Peer):
    """A peer that keeps its jobs in a table with ordered ids."""

    # The table of unfinished jobs, its key, and what in it is not finished.
    table: ClassVar[str]
    key: ClassVar[str] = "id"
    waiting: ClassVar[str] = "true"
    # Which of them the worker knows, where others may wait beside them.
    known: ClassVar[str] = "true"
    # One job enqueued by plain SQL, for a transaction that stays open.
    enqueue_sql: ClassVar[str] = ""
    # Counts the workers in service. Without it, those with a connection count.
    registered_sql: ClassVar[str] = ""
    # Why no such transaction can stay open while others go on enqueueing.
    open_blocks: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[tuple[str, object], Database] = {}

    @abstractmethod
    def prepare(self, database: Database) -> None:
        """Install the peer's schema."""

    @contextmanager
    def empty(self, server: Server) -> Iterator[Database]:
        with _copied(server, self._in_service(server)) as database:
            yield database

    @contextmanager
    def burst(self, server: Server, amount: int, tasks: Tasks) -> Iterator[Database]:
        with self.empty(server) as database:
            with self.producer(database) as producer:
                _enqueue(producer, amount, tasks)
            yield database

    @contextmanager
    def settled(
        self, server: Server, amount: int, tasks: Tasks, *, upon: tuple[int, str] | None = None
    ) -> Iterator[Database]:
        key = (server.dsn, (amount, tasks, upon))
        if key not in self._kept:
            database = self._kept[key] = server.create(self._in_service(server).name)
            with self.producer(database) as producer:
                if upon:
                    _enqueue(producer, upon[0], (upon[1],))
                _enqueue(producer, amount, tasks)
            _vacuum(database)
        with _copied(server, self._kept[key], by_file=True) as database:
            yield database

    def _in_service(self, server: Server) -> Database:
        """Installed, and broken in: some jobs have run, and the tables were vacuumed and analyzed since.

        A table that was never analyzed is planned for in another way, which no queue in service ever sees.
        """
        key = (server.dsn, "in service")
        if key not in self._kept:
            database = self._kept[key] = server.create()
            self.prepare(database)
            with self.producer(database) as producer, self.workers(database) as workers:
                _enqueue(producer, BREAK_IN_JOBS, ("noop",))
                workers.go()
                workers.until_ran(BREAK_IN_JOBS, patience=60)
            _vacuum(database)
        return self._kept[key]

    @contextmanager
    def goal(
        self,
        place: Database,
        amount: int,
        workers: Workers,  # noqa: ARG002
        *,
        newest: bool = False,
    ) -> Iterator[Done]:
        with place.connect() as connection:
            connection.execute("set enable_seqscan = off")
            connection.execute("set enable_sort = off")
            first, last = self._range(connection, amount, newest)
            # From the newest: while jobs are left, the first row answers.
            left = (
                f"select exists (select from (select from {self.table} "
                f"where {self.key} between %s and %s and {self.waiting} order by {self.key} desc limit 1) a)"
            )

            def done() -> bool:
                [[some]] = connection.execute(left, [first, last], prepare=True).fetchall()
                return not some

            yield done

    def _range(
        self, connection: "psycopg.Connection[tuple[Any, ...]]", amount: int, newest: bool
    ) -> tuple[Any, Any]:
        """The ids of the first and the last of those jobs."""
        ordered = (
            f"select {self.key} from {self.table} where {self.waiting} and {self.known} "
            f"order by {self.key} {'desc' if newest else 'asc'}"
        )
        rows = connection.execute(
            f"select * from ({ordered} limit 1) a union all select * from ({ordered} offset %s limit 1) b",
            [amount - 1],
        ).fetchall()
        if len(rows) != 2:
            raise RuntimeError(f"{self.name}: fewer than {amount} jobs wait")
        first, last = sorted(row[0] for row in rows)
        return first, last

    def forget(self, server: Server) -> None:
        for dsn, what in list(self._kept):
            if dsn == server.dsn:
                server.drop(self._kept.pop((dsn, what)))


def _enqueue(producer: Producer, amount: int, tasks: Tasks) -> None:
    producer.ask("bulk", amount=amount, tasks=list(tasks), patience=PATIENCE)


def _vacuum(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("vacuum (analyze)")


@contextmanager
def _copied(server: Server, template: Database, *, by_file: bool = False) -> Iterator[Database]:
    database = server.create(template.name, by_file=by_file)
    try:
        yield database
    finally:
        server.drop(database)

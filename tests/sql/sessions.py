"""Sessions on a database that call our functions by name, and look on while others race."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import namedtuple_row, scalar_row, tuple_row

PATIENCE = 20.0  # seconds; only a broken test waits that long


EMPTY = """
set lock_timeout = '10s';
set session_replication_role = replica;
do $$
begin
  -- Emptying tables row by row is ten times as fast, as long as they are small.
  if pg_relation_size('holdfast.live') > 1024 * 1024 then
    truncate holdfast.job, holdfast.lane, holdfast.running, holdfast.finished, holdfast.dead_letter,
      holdfast.attempt_error;
  end if;
end $$;
delete from holdfast.job; delete from holdfast.lane; delete from holdfast.running;
delete from holdfast.worker; delete from holdfast.finished; delete from holdfast.dead_letter;
delete from holdfast.attempt_error; delete from holdfast.cancellation; delete from holdfast.step;
delete from holdfast.checkpoint; delete from holdfast.event; delete from holdfast.event_count;
delete from holdfast.waiter; delete from holdfast.death;
delete from holdfast.used_id; delete from holdfast.schedule; delete from holdfast.schedule_tick;
delete from holdfast.duty; delete from holdfast.swept; delete from holdfast.exported;
delete from holdfast.stat_delta; delete from holdfast.stat;
delete from holdfast.locker; delete from holdfast.writer_watch; delete from holdfast.lane_watch;
delete from holdfast.known_queue;
delete from holdfast.lane_activity; delete from holdfast.retired_lane;
delete from holdfast.audit;
delete from holdfast.retry_policy;
delete from holdfast.access; delete from holdfast.queue where name <> '*';
update holdfast.queue
set paused_at = null, payload_limit = 262144, lane_limit = 10000, max_attempts = 3,
  retry_base = '1 minute', retry_factor = 2, retry_cap = '1 hour', retry_jitter = 0.1,
  retention = '30 days', dead_retention = '365 days',
  disposal = 'drop', waiting_warning = null, waiting_critical = null, age_warning = '1 minute',
  age_critical = '10 minutes', failures_warning = 0.25, failures_critical = 0.75, worker_expected = true,
  payload_visible = true, redacted = '{password,passwd,secret,token,api_key,authorization}';
update holdfast.test_clock set shift = '0';
alter sequence holdfast.job_seq restart;
alter sequence holdfast.duties_at restart; alter sequence holdfast.upkeep_at restart;
alter sequence holdfast.sweep_at restart;
"""


class Session:
    """One connection: plain SQL by calling it, our functions by their names, arguments by theirs."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.pid = connection.info.backend_pid

    def __call__(self, query: str, *values: Any) -> list[Any]:
        cursor = self.connection.cursor(row_factory=tuple_row).execute(query, values or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: str, *values: Any) -> Any:
        return self.connection.cursor(row_factory=scalar_row).execute(query, values or None).fetchone()

    def rows(self, function: str, **arguments: Any) -> list[Any]:
        """What a function returns, as named tuples."""
        given = ", ".join(f"{name} => %({name})s" for name in arguments)
        query = f"select * from holdfast.{function}({given})"
        return self.connection.cursor(row_factory=namedtuple_row).execute(query, arguments).fetchall()

    def value(self, function: str, **arguments: Any) -> Any:
        """The one value that a function returns."""
        return self.rows(function, **arguments)[0][0]

    # The words that nearly every test uses.

    def enqueue(self, task: str = "task", **options: Any) -> UUID:
        return self.value("enqueue", task=task, **options)

    def enqueue_many(self, amount: int, task: str = "task", **options: Any) -> list[UUID]:
        rows = self.rows("enqueue_many", tasks=[task] * amount, **options)
        return [row[0] for row in rows]

    def claim(self, amount: int | None = 10, **options: Any) -> list[Any]:
        return self.rows("claim", amount=amount, **options)

    def claim_one(self, **options: Any) -> Any:
        (job,) = self.claim(1, **options)
        return job

    def claim_all(self, **options: Any) -> list[Any]:
        return self.claim(10_000, **options)

    def finish(self, jobs: list[Any], outcome: str | None = None, **arrays: Any) -> list[Any]:
        """Report the same outcome on each of these; returns the refusals."""
        outcomes = {"outcomes": [outcome] * len(jobs)} if outcome else {}
        return self.rows(
            "finish", ids=[job.id for job in jobs], leases=[job.lease for job in jobs], **outcomes, **arrays
        )

    def job(self, job_id: UUID) -> Any:
        """The job as people see it."""
        (job,) = self.rows("job", id=job_id)
        return job

    def state(self, job_id: UUID) -> str:
        return self.job(job_id).state

    def live(self, job_id: UUID) -> Any:
        """The job's own row."""
        query = "select * from holdfast.job where id = %s"
        return self.connection.cursor(row_factory=namedtuple_row).execute(query, [job_id]).fetchone()

    def lose(self, worker: UUID) -> int:
        """Declare a worker lost by hand, as if it had been silent for long; returns what was taken back."""
        self(
            "update holdfast.worker set heartbeat_at = heartbeat_at - interval '10 days' where id = %s",
            worker,
        )
        return self.value("recover", timeout="9 days")

    # Being watched.

    @contextmanager
    def transaction(self, isolation: str = "read committed") -> Iterator[None]:
        with self.connection.transaction():
            self(f"set transaction isolation level {isolation}")
            yield

    def is_waiting(self, other: "Session") -> bool:
        """Whether another session waits for a lock."""
        query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
        return bool(self.one(query, other.pid))

    def until(self, fact: Callable[[], bool]) -> None:
        """Look again and again until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not fact():
            assert time.monotonic() < deadline, "it never came to pass"


# What the fixtures of these names are.
Connect = Callable[..., Session]
Refused = Callable[[str], AbstractContextManager[Any]]
Together = Callable[..., list[Any]]
Background = Callable[[Callable[[], Any]], Callable[[], Any]]


@contextmanager
def sessions_on(dsn: str) -> Iterator[Connect]:
    """A way to open sessions there, with options of psycopg.connect; all are closed at the end."""
    opened: list[psycopg.Connection[Any]] = []

    def open_session(**options: Any) -> Session:
        connection = psycopg.connect(dsn, autocommit=True, **options)
        opened.append(connection)
        return Session(connection)

    try:
        yield open_session
    finally:
        for connection in opened:
            connection.close()


@contextmanager
def copied_database(server: str, template: str) -> Iterator[str]:
    """A database with Holdfast. Copied file by file: that is twice as fast as through the log."""
    name = f"holdfast_sql_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name} template {template} strategy file_copy")
        yield make_conninfo(server, dbname=name)
        connection.execute(f"drop database {name} with (force)")


def without_autovacuum(connection: psycopg.Connection[Any]) -> None:
    """Leave what the planner knows to the test: autovacuum comes by when it likes."""
    tables = connection.execute(
        "select oid::regclass::text from pg_class "
        "where relnamespace = 'holdfast'::regnamespace and relkind = 'r'"
    )
    for (table,) in tables.fetchall():
        connection.execute(f"alter table {table} set (autovacuum_enabled = off)")


def empty(connection: psycopg.Connection[Any]) -> None:
    """Make a database as it was when Holdfast had just been installed."""
    roll_back_prepared(connection)
    connection.execute(EMPTY)


def roll_back_prepared(connection: psycopg.Connection[Any]) -> None:
    query = "select gid from pg_prepared_xacts where database = current_database()"
    for (name,) in connection.execute(query).fetchall():
        connection.execute(f"rollback prepared '{name}'")

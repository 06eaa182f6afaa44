"""Brings a database up to this release.

Each migration runs in its own transaction. All changed functions run in one transaction, so that a running
worker never sees half of them. Each of these transactions first takes one advisory lock and then reads the
records again. So any number of installers may run at once, and the next run completes the work of an
installer that died. The lock ends with its transaction, because a session's lock would be left behind in
PgBouncer.

Migrations run before functions. Workers call the functions of the previous release in between, so a migration
must suit them. Otherwise it declares that it runs together with the functions.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
from psycopg import Connection, errors as pg, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import scalar_row

from holdfast.schema.plan import SQL, File, Plan, load, statements
from holdfast.schema.records import installed
from holdfast.schema.steps import (
    CREATE_ROLES,
    LANES_FIRST,
    LOCK,
    LOCK_TIMEOUT,
    PATIENCE,
    as_owner,
    closing,
    in_transactions,
    session_settings,
)
from holdfast.values.errors import NotReady

_POLL = timedelta(milliseconds=50)


class MigrationFailed(NotReady):
    """A file of the schema could not be applied."""

    file: str | None = None
    line: int | None = None


def pending(conn: Connection[Any], plan: Plan | None = None) -> list[str]:
    """Return the names of the files that `apply` would run, in this order."""
    steps = in_transactions((plan or load()).todo(installed(conn)))
    return [file.name for step in steps for file in step]


def apply(
    conn: Connection[Any],
    plan: Plan | None = None,
    *,
    roles: bool = False,
    lock_timeout: timedelta = LOCK_TIMEOUT,
    patience: timedelta = PATIENCE,
) -> list[str]:
    """Bring the database up to this release, and return the names of the files that ran.

    With `roles`, also create the roles for users of Holdfast and grant their rights (see
    functions/operate/roles.sql).

    A statement waits at most `lock_timeout` for a table, because every worker queues up behind it. It then
    pauses for the same time and tries again, until its file has taken `patience`. Raises SchemaTooNew, or
    MigrationFailed, which names the file, the line, and the sessions that hold the locks.
    """
    if not conn.autocommit or conn.info.transaction_status != TransactionStatus.IDLE:
        raise ValueError("schema.apply() needs its own connection, idle and in autocommit mode")
    conn.prepare_threshold = None  # behind PgBouncer, the next transaction may meet another session
    plan = plan or load()
    applied: list[str] = []
    for step in in_transactions(plan.todo(installed(conn))):
        applied += _with_retries(
            conn,
            step[0].name,
            partial(_apply_step, conn, plan, step, lock_timeout, patience),
            lock_timeout,
            patience,
        )
    if roles:
        _with_retries(conn, "roles", partial(_create_roles, conn, lock_timeout), lock_timeout, patience)
    return applied


def _with_retries(
    conn: Connection[Any],
    name: str,
    work: Callable[[], list[str]],
    lock_timeout: timedelta,
    patience: timedelta,
) -> list[str]:
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        try:
            with _located(name), conn.transaction():
                return work()
        except MigrationFailed as failed:
            if not isinstance(failed.__cause__, pg.LockNotAvailable | pg.DeadlockDetected):
                raise
            if time.monotonic() >= deadline:
                raise _gave_up(conn, failed, patience) from failed.__cause__
            pause = lock_timeout if failed.line else _POLL
        time.sleep(pause.total_seconds())


def _apply_step(
    conn: Connection[Any], plan: Plan, step: Sequence[File], lock_timeout: timedelta, patience: timedelta
) -> list[str]:
    _begin(conn, step[0].name, lock_timeout)
    _execute(conn, as_owner("local"))
    missing = plan.todo(installed(conn))
    todo = [file for file in step if file in missing]
    if any(file.with_functions for file in todo):
        _execute(conn, LANES_FIRST)
    for file in todo:
        if file.transactional:
            _run(conn, file)
        else:
            _run_outside_transaction(conn, file, patience)
    if todo:
        _execute(conn, closing(plan, todo))
    return [file.name for file in todo]


def _create_roles(conn: Connection[Any], lock_timeout: timedelta) -> list[str]:
    _begin(conn, "roles", lock_timeout)
    _execute(conn, CREATE_ROLES)
    return []


def _begin(conn: Connection[Any], name: str, lock_timeout: timedelta) -> None:
    _execute(conn, session_settings("local", lock_timeout))
    # `_with_retries` tries this in new transactions. A waiting statement would hold a snapshot, and a `create
    # index concurrently` of the other installer would wait for its end.
    if not _scalar(conn, "select pg_try_advisory_xact_lock(%s)", LOCK):
        raise MigrationFailed("Another installer is running", file=name) from pg.LockNotAvailable()


def _run(conn: Connection[Any], file: File) -> None:
    for line, statement in statements(file.text):
        with _located(file.name, line, statement):
            _execute(conn, statement)


def _run_outside_transaction(conn: Connection[Any], file: File, patience: timedelta) -> None:
    """Run a file outside any transaction, while `conn` holds the lock in its own.

    `conn` is idle in read committed, so it has no snapshot that an index build would wait for.
    """
    with psycopg.connect(conn.info.dsn, password=conn.info.password, autocommit=True) as outside:
        _execute(outside, session_settings("session", patience))
        _execute(outside, as_owner("session"))
        _run(outside, file)


@contextmanager
def _located(name: str, line: int | None = None, statement: str = "") -> Iterator[None]:
    """Raise an error of the server as MigrationFailed, with the file and the line."""
    try:
        yield
    except psycopg.Error as error:
        where = f"{name}.sql, line {line} ({statement.splitlines()[0]})" if line else f"{name}.sql"
        raise MigrationFailed(
            f"{where}: {error.diag.message_primary or error}",
            hint=error.diag.message_hint,
            file=name,
            line=line,
        ) from error


def _gave_up(conn: Connection[Any], failed: MigrationFailed, patience: timedelta) -> MigrationFailed:
    others = _scalar(conn, (SQL / "in_the_way.sql").read_text(encoding="utf-8"), LOCK)
    return MigrationFailed(
        f"{failed.message}; gave up after {patience}. In the way: {others or 'no session any more'}",
        hint="Run it again when they have ended; files that were applied stay applied.",
        file=failed.file,
        line=failed.line,
    )


def _execute(conn: Connection[Any], text: str) -> None:
    conn.execute(sql.SQL(text))


def _scalar(conn: Connection[Any], query: str, *arguments: Any) -> Any:
    return conn.cursor(row_factory=scalar_row).execute(query, arguments or None).fetchone()

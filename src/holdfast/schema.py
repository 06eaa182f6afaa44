"""Installs and upgrades the schema, checks that it fits this release, prints it for a DBA.

Each migration runs in a transaction of its own; all functions that changed run in one, so that a worker
at work never meets half a set. Each of these transactions first takes one advisory lock and then reads
again what is installed. So any number of installers may run at once, and one that dies leaves nothing
that the next run would not complete. The lock ends with its transaction because a session's lock would
be stranded behind PgBouncer.

Migrations come first, then functions: a migration must suit the functions of the release before it,
which workers go on calling in between. One that cannot is declared to go with the functions.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import takewhile
from typing import Any, Literal

import psycopg
from psycopg import AsyncConnection, Connection, errors as pg, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import args_row, scalar_row

from holdfast.plan import SQL, File, MigrationEdited, Plan, Record, load, newest, statements
from holdfast.values.errors import NotAllowed, NotReady, SchemaMissing, SchemaOutdated

__all__ = [
    "MigrationEdited",
    "MigrationFailed",
    "Plan",
    "Record",
    "apply",
    "averify",
    "installed",
    "load",
    "pending",
    "print_sql",
    "verify",
]

LOCK_TIMEOUT = timedelta(seconds=1)
PATIENCE = timedelta(minutes=1)
_POLL = timedelta(milliseconds=50)
_LOCK = int.from_bytes(b"holdfast")
# The heads are moved under a lock on lanes and then on jobs. A migration that needs both takes them in this
# order, or it may end in a deadlock.
_LANES_FIRST = """\
do $$ begin
  if to_regclass('holdfast.lane') is not null then
    lock table holdfast.lane in share mode;
  end if;
end $$"""


class MigrationFailed(NotReady):
    """A file of the schema could not be applied."""

    file: str | None = None
    line: int | None = None


def installed(conn: Connection[Any]) -> list[Record]:
    """What the database remembers; nothing if Holdfast was never there."""
    if not _scalar(conn, _IS_THERE):
        return []
    cursor = conn.cursor(row_factory=args_row(Record))
    try:
        return cursor.execute(_RECORDS).fetchall()
    except pg.InsufficientPrivilege:
        if conn.info.transaction_status != TransactionStatus.IDLE:
            raise
        return cursor.execute(_SHOWN).fetchall()


def pending(conn: Connection[Any], plan: Plan | None = None) -> list[str]:
    """The names of the files that `apply` would run."""
    return [file.name for file in (plan or load()).todo(installed(conn))]


def verify(conn: Connection[Any], plan: Plan | None = None) -> None:
    """Return if this release can work with the database: one query, for the start of a worker.

    Two for a role that may use Holdfast and not read its tables.

    Raises SchemaMissing, SchemaOutdated or SchemaTooNew.
    """
    cursor = conn.cursor(row_factory=args_row(Record))
    with _found():
        try:
            records = cursor.execute(_RECORDS).fetchall()
        except pg.InsufficientPrivilege:
            records = cursor.execute(_SHOWN).fetchall()
    _judge(plan or load(), records)


async def averify(conn: AsyncConnection[Any], plan: Plan | None = None) -> None:
    """`verify`, for an async connection."""
    cursor = conn.cursor(row_factory=args_row(Record))
    with _found():
        try:
            records = await (await cursor.execute(_RECORDS)).fetchall()
        except pg.InsufficientPrivilege:
            records = await (await cursor.execute(_SHOWN)).fetchall()
    _judge(plan or load(), records)


@contextmanager
def _found() -> Iterator[None]:
    try:
        yield
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        raise SchemaMissing from None
    except pg.InsufficientPrivilege as error:
        raise NotAllowed(
            error.diag.message_primary or "", hint="Let a DBA grant this role one of the holdfast_ roles."
        ) from None


def apply(
    conn: Connection[Any],
    plan: Plan | None = None,
    *,
    roles: bool = False,
    lock_timeout: timedelta = LOCK_TIMEOUT,
    patience: timedelta = PATIENCE,
) -> list[str]:
    """Bring the database up to this release; return the names of the files that ran.

    With `roles`, also make the roles of those who use it (see functions/roles.sql) and let them in.

    A statement waits for a table no longer than `lock_timeout`, for every worker queues up behind it;
    it then steps aside for as long and tries again, until its file has had `patience`. Raises
    MigrationFailed, which names the file, the line and who is in the way, or SchemaTooNew.
    """
    if not conn.autocommit or conn.info.transaction_status != TransactionStatus.IDLE:
        raise ValueError("schema.apply() needs a connection of its own, idle and in autocommit mode")
    conn.prepare_threshold = None  # behind PgBouncer, the next transaction may meet another session
    plan = plan or load()
    applied: list[str] = []
    for step in _steps(plan.todo(installed(conn))):
        applied += _patiently(
            conn,
            step[0].name,
            partial(_perform, conn, plan, step, lock_timeout, patience),
            lock_timeout,
            patience,
        )
    if roles:
        _patiently(conn, "roles", partial(_let_in, conn, lock_timeout), lock_timeout, patience)
    return applied


def print_sql(plan: Plan | None = None, *, installed: Iterable[Record] = (), roles: bool = False) -> str:
    """What `apply` would do, as a script for psql; without what is `installed` already."""
    plan = plan or load()
    head = f"-- Holdfast {plan.version}, for psql --set ON_ERROR_STOP=1\n"
    steps = _steps(plan.todo(installed))
    scripts = [_script(plan, step) for step in steps]
    if roles:
        opening = f"begin;\n{_settings('local', LOCK_TIMEOUT)}\nselect pg_advisory_xact_lock({_LOCK});"
        scripts.append(f"{opening}\n\n-- The roles of those who use it.\n{_LET_IN};\ncommit;\n")
    if not scripts:
        return f"{head}-- Nothing is missing.\n"
    return "\n".join([f"{head}set client_encoding = 'UTF8';\n", *scripts])


def _judge(plan: Plan, records: Sequence[Record]) -> None:
    if missing := plan.missing(records):
        raise SchemaOutdated(
            f"The database lacks {missing[0].name}.sql of release {plan.version}",
            found=newest(records),
            needed=plan.number,
        )


def _steps(files: Sequence[File]) -> list[list[File]]:
    """The files, grouped into transactions."""
    alone = list(takewhile(lambda file: file.kind == "migration" and not file.with_functions, files))
    together = list(files[len(alone) :])
    return [*([file] for file in alone), *([together] if together else [])]


def _patiently(
    conn: Connection[Any],
    name: str,
    work: Callable[[], list[str]],
    lock_timeout: timedelta,
    patience: timedelta,
) -> list[str]:
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        try:
            with _naming(name), conn.transaction():
                return work()
        except MigrationFailed as failed:
            if not isinstance(failed.__cause__, pg.LockNotAvailable | pg.DeadlockDetected):
                raise
            if time.monotonic() >= deadline:
                raise _in_the_way(conn, failed, patience) from failed.__cause__
            pause = lock_timeout if failed.line else _POLL
        time.sleep(pause.total_seconds())


def _perform(
    conn: Connection[Any], plan: Plan, step: Sequence[File], lock_timeout: timedelta, patience: timedelta
) -> list[str]:
    _begin(conn, step[0].name, lock_timeout)
    _execute(conn, _as_owner("local"))
    missing = plan.todo(installed(conn))
    todo = [file for file in step if file in missing]
    if any(file.with_functions for file in todo):
        _execute(conn, _LANES_FIRST)
    for file in todo:
        if file.transactional:
            _run(conn, file)
        else:
            _run_aside(conn, file, patience)
    if todo:
        _execute(conn, _closing(plan, todo))
    return [file.name for file in todo]


def _let_in(conn: Connection[Any], lock_timeout: timedelta) -> list[str]:
    _begin(conn, "roles", lock_timeout)
    _execute(conn, _LET_IN)
    return []


def _begin(conn: Connection[Any], name: str, lock_timeout: timedelta) -> None:
    _execute(conn, _settings("local", lock_timeout))
    # Asked for again and again, each time in a new transaction, rather than waited for: who waits holds
    # a snapshot, and `create index concurrently` by the installer at work would wait for its end.
    if not _scalar(conn, "select pg_try_advisory_xact_lock(%s)", _LOCK):
        raise MigrationFailed("Another installer is at work", file=name) from pg.LockNotAvailable()


def _run(conn: Connection[Any], file: File) -> None:
    for line, statement in statements(file.text):
        with _naming(file.name, line, statement):
            _execute(conn, statement)


def _run_aside(conn: Connection[Any], file: File, patience: timedelta) -> None:
    """Run outside any transaction, while `conn` holds the lock in its own.

    It stands idle in read committed, so it has no snapshot that an index build would wait for.
    """
    with psycopg.connect(conn.info.dsn, password=conn.info.password, autocommit=True) as aside:
        _execute(aside, _settings("session", patience))
        _execute(aside, _as_owner("session"))
        _run(aside, file)


@contextmanager
def _naming(name: str, line: int | None = None, statement: str = "") -> Iterator[None]:
    """Whatever the server says, say where."""
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


def _in_the_way(conn: Connection[Any], failed: MigrationFailed, patience: timedelta) -> MigrationFailed:
    others = _scalar(conn, (SQL / "in_the_way.sql").read_text(encoding="utf-8"), _LOCK)
    return MigrationFailed(
        f"{failed.message}; gave up after {patience}. In the way: {others or 'nobody any more'}",
        hint="Run it again when they have ended; whole files that were applied stay applied.",
        file=failed.file,
        line=failed.line,
    )


def _script(plan: Plan, step: Sequence[File]) -> str:
    files = "\n".join(f"-- {file.name}.sql\n{file.text}" for file in step)
    if all(file.transactional for file in step):
        opening = f"begin;\n{_settings('local', LOCK_TIMEOUT)}\nselect pg_advisory_xact_lock({_LOCK});"
        opening += f"\n{_as_owner('local')}"
        if any(file.with_functions for file in step):
            opening += f"\n{_LANES_FIRST};"
        ending = "commit;"
    else:
        stop = "\\set ON_ERROR_STOP on"
        opening = f"{stop}\n{_settings('session', PATIENCE)}\nselect pg_advisory_lock({_LOCK});"
        opening += f"\n{_as_owner('session')}"
        ending = f"select pg_advisory_unlock({_LOCK});\n"
        ending += "\n".join(f"reset {name};" for name in ("role", *_SETTINGS))
    return f"{opening}\n\n{files}\n{_closing(plan, step)}{ending}\n"


_SETTINGS = {
    "lock_timeout": "0",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_min_messages": "warning",
    "search_path": "pg_catalog, pg_temp",
    "standard_conforming_strings": "on",
    "check_function_bodies": "off",  # so that functions may name each other in any order
}


def _settings(scope: Literal["local", "session"], lock_timeout: timedelta) -> str:
    """A file meets the same settings whatever the role or the database prefers."""
    chosen = _SETTINGS | {"lock_timeout": str(max(1, lock_timeout // timedelta(milliseconds=1)))}
    isolation = ["set transaction isolation level read committed, read write;"] if scope == "local" else []
    return "\n".join([*isolation, *(f"set {scope} {name} = {value};" for name, value in chosen.items())])


def _as_owner(scope: Literal["local", "session"]) -> str:
    """What is new belongs to whom the rest does: functions with an owner's rights need one owner of all."""
    return _AS_OWNER.replace("SCOPE", scope)


def _closing(plan: Plan, step: Sequence[File]) -> str:
    """Remember the files, forget functions that are no more, and let nobody in who was not let in.

    A forgotten function stays in the database: an older worker may still call it.
    """
    row = sql.SQL("({}, {}, {}, {})")
    rows = [row.format(file.name, file.kind, file.checksum, plan.version) for file in step]
    functions = [file.name for file in plan.files if file.kind == "function"]
    has_functions = any(file.kind == "function" for file in step)
    forget = [_FORGET.format(functions)] if has_functions else []
    grant = [_GRANT] if has_functions and "roles" in functions else []
    remember = _REMEMBER.format(sql.SQL(",\n  ").join(rows))
    return sql.Composed([remember, *forget, _REVOKE, *grant]).as_string()


_REMEMBER = sql.SQL("""\
insert into holdfast.migration (name, kind, checksum, version) values
  {}
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
""")

_FORGET = sql.SQL("""\
delete from holdfast.migration
where kind = 'function'
  and name <> all ({});
""")

_AS_OWNER = """\
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set SCOPE role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;"""

# Default privileges cannot do this: those of one schema only add to EXECUTE for PUBLIC, and those of the
# role would reach into functions that are not ours.
_REVOKE = sql.SQL("""\
revoke all on all routines in schema holdfast from public;
""")

# A function that was dropped and made anew has lost its rights, and a new one has none yet.
_GRANT = sql.SQL("""\
select holdfast.grant_rights();
""")

_LET_IN = "select holdfast.create_roles()"

# Read from the catalog: to_regclass() asks the session's memory of it, which may be older than what the
# installer before us committed a moment ago.
_IS_THERE = """
select exists (
  select
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where n.nspname = 'holdfast'
    and c.relname = 'migration'
)
"""

_RECORDS = """
select name, kind, checksum, version
from holdfast.migration
"""

# For those who may not read the table.
_SHOWN = """
select name, kind, checksum, version
from holdfast.installed
"""


def _execute(conn: Connection[Any], text: str) -> None:
    conn.execute(sql.SQL(text))


def _scalar(conn: Connection[Any], query: str, *arguments: Any) -> Any:
    return conn.cursor(row_factory=scalar_row).execute(query, arguments or None).fetchone()

"""Turns the driver's errors into Holdfast's own errors, in one place."""

import contextlib
import os
import re
from collections.abc import Iterator

import msgspec
import psycopg
from psycopg import errors as pg

from holdfast.database.dsn import without_driver
from holdfast.values.errors import (
    BadPayload,
    BadValue,
    Collision,
    DatabaseUnavailable,
    HoldfastError,
    IdConflict,
    NotAllowed,
    SchemaMissing,
    TooManyConnections,
    UnexpectedError,
    from_sqlstate,
)
from holdfast.values.secret import mask_dsn

# 26000: a prepared statement is missing. 42P05: it exists already. A pooler has changed the session.
_POOLED = frozenset({"26000", "42P05"})
_POOLED_HINT = (
    "Behind a pooler in transaction mode, such as PgBouncer, write Holdfast(dsn, transaction_pooling=True); "
    "on your own connection, set prepare_threshold=None."
)


@contextlib.contextmanager
def translated(dsn: str | None = None) -> Iterator[None]:
    """Raise PostgreSQL's errors as Holdfast's. Errors of the caller's own statements stay as they are."""
    try:
        yield
    except psycopg.Error as error:
        ours = _ours(error, dsn)
        if ours is None:
            raise
        raise ours from error
    except UnicodeEncodeError as error:
        raise BadPayload(f"a text cannot be stored: {error}") from error


@contextlib.contextmanager
def closed() -> Iterator[None]:
    """Raise any other error of PostgreSQL with only its message, because errors are logged.

    Its DETAIL may quote a whole row, with the payload and the secrets in it.
    """
    try:
        yield
    except psycopg.Error as error:
        if _ours(error, None) is not None:
            raise
        message = error.diag.message_primary or type(error).__name__
        raise UnexpectedError(f"{error.sqlstate}: {message}", code=error.sqlstate) from None


@contextlib.contextmanager
def collisions() -> Iterator[None]:
    """Raise `Collision` when this transaction failed because of another one and can be repeated."""
    try:
        yield
    except (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable, pg.QueryCanceled) as error:
        raise Collision(error.diag.message_primary or str(error)) from error
    except pg.CheckViolation as error:
        # A row was being written to the default partition while its day got its own partition.
        if error.diag.table_name != "finished_default" or error.diag.constraint_name:
            raise
        raise Collision(error.diag.message_primary or "") from None


def _ours(error: psycopg.Error, dsn: str | None) -> HoldfastError | None:
    state = error.sqlstate or ""
    diagnostic = error.diag
    if state.startswith("HF"):
        detail = msgspec.json.decode(diagnostic.message_detail or "{}")
        return from_sqlstate(state, diagnostic.message_primary or "", detail, diagnostic.message_hint)
    match error:
        case pg.UniqueViolation() if diagnostic.constraint_name == "job_pkey":
            return IdConflict("this id already belongs to a job", hint="Use a new id for a new job.")
        case psycopg.DataError() | pg.ProgramLimitExceeded() | pg.StatementTooComplex():
            return BadPayload(diagnostic.message_primary or str(error), hint=diagnostic.message_detail)
        case pg.CheckViolation() if diagnostic.schema_name == "holdfast" and diagnostic.constraint_name:
            return BadValue(f"refused: {diagnostic.constraint_name}", field=diagnostic.column_name)
        case pg.InsufficientPrivilege():
            return NotAllowed(diagnostic.message_primary or "", hint=diagnostic.message_hint)
        case pg.InvalidSchemaName() | pg.UndefinedFunction() | pg.UndefinedTable():
            return SchemaMissing(
                f"this database has no Holdfast, or another release of it: {diagnostic.message_primary}"
            )
        case _ if state in _POOLED:
            return DatabaseUnavailable(f"the session has changed: {error}".strip(), hint=_POOLED_HINT)
        case _ if _is_about_the_connection(error, state):
            return _refused(error, dsn) or unavailable(str(error).strip(), dsn)
        case _:
            return None


def _is_about_the_connection(error: psycopg.Error, state: str) -> bool:
    # No SQLSTATE: the connection broke or was never made. 08: connection exceptions. 53: no room on the disk
    # or for another connection. 57P: shutdown. 25006: the server has become a standby. 0A000: a prepared
    # statement no longer fits. A new connection helps in all these cases.
    if isinstance(error, psycopg.InterfaceError):
        return True
    lost = state.startswith(("08", "53", "57P")) or state in {"25006", "0A000"}
    return lost or (isinstance(error, psycopg.OperationalError) and not state)


# The reasons for which a server refuses a connection, and a hint for each.
_REFUSALS = {
    r'database "(.*)" does not exist': "Create it with createdb {0}, or name another database in the DSN.",
    r'role "(.*)" does not exist': "Create it with createuser {0}, or name another user in the DSN.",
    r"password authentication failed": "Check the user and the password in the DSN.",
    r"no pg_hba.conf entry": "Allow this user, database and host in pg_hba.conf on the server.",
}


# PostgreSQL for everyone, for all but superusers, for one role or database; and PgBouncer.
_NONE_LEFT = re.compile("too many (clients|connections)|remaining connection slots|no more connections")


def _refused(error: psycopg.Error, dsn: str | None) -> DatabaseUnavailable | None:
    """Return the error for a refused connection, if a server has answered."""
    if error.pgconn is None or "FATAL:" not in str(error):
        return None
    reason = str(error).rpartition("FATAL:")[2].strip()
    found = ((re.search(pattern, reason), hint) for pattern, hint in _REFUSALS.items())
    hint = next((hint.format(*match.groups()) for match, hint in found if match), None)
    shown = mask_dsn(dsn) if dsn else None
    if _NONE_LEFT.search(reason):
        return TooManyConnections(f"cannot connect to {shown or 'the database'}: {reason}", dsn=shown)
    return DatabaseUnavailable(f"cannot connect to {shown or 'the database'}: {reason}", hint=hint, dsn=shown)


def unavailable(message: str, dsn: str | None) -> DatabaseUnavailable:
    shown = mask_dsn(dsn) if dsn else None
    where = f" ({shown})" if shown else ""
    hint = _elsewhere(dsn) if dsn and _NO_SERVER.search(message) else None
    return DatabaseUnavailable(f"the database does not answer{where}: {message}", hint=hint, dsn=shown)


# No server listens at the address, or the host is unknown.
_NO_SERVER = re.compile("refused|resolve host|translate host name|No such file or directory")


def _elsewhere(dsn: str) -> str:
    """Return a hint that names the source of this DSN, and the default without one."""
    given = without_driver(os.environ.get("HOLDFAST_DSN", ""))
    source = "HOLDFAST_DSN names this database" if dsn == given else "Check the DSN"
    return f"{source}. Without a DSN, Holdfast uses an embedded PostgreSQL."

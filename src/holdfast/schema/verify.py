"""Checks that the schema in the database fits this release."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import Connection, errors as pg
from psycopg.rows import args_row

from holdfast.schema.plan import Plan, Record, load, newest
from holdfast.schema.records import RECORDS, SHOWN_RECORDS
from holdfast.values.errors import NotAllowed, SchemaMissing, SchemaOutdated


def verify(conn: Connection[Any], plan: Plan | None = None) -> None:
    """Check that this release can work with the database.

    It costs one query, and two for a role that may use Holdfast but not read its tables.

    Raises SchemaMissing, SchemaOutdated or SchemaTooNew.
    """
    cursor = conn.cursor(row_factory=args_row(Record))
    with _missing_schema():
        try:
            records = cursor.execute(RECORDS).fetchall()
        except pg.InsufficientPrivilege:
            records = cursor.execute(SHOWN_RECORDS).fetchall()
    _refuse_mismatch(plan or load(), records)


@contextmanager
def _missing_schema() -> Iterator[None]:
    try:
        yield
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        raise SchemaMissing from None
    except pg.InsufficientPrivilege as error:
        raise NotAllowed(
            error.diag.message_primary or "", hint="Let a DBA grant this role one of the holdfast_ roles."
        ) from None


def _refuse_mismatch(plan: Plan, records: Sequence[Record]) -> None:
    if missing := plan.missing(records):
        raise SchemaOutdated(
            f"The database lacks {missing[0].name}.sql of release {plan.version}",
            found=newest(records),
            needed=plan.number,
        )

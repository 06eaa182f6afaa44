"""The SQL files that a database has recorded in the table `holdfast.migration`."""

from typing import Any

from psycopg import Connection, errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import args_row, scalar_row

from holdfast.schema.plan import Record


def installed(conn: Connection[Any]) -> list[Record]:
    """Return the recorded files; none if Holdfast was never installed."""
    if not conn.cursor(row_factory=scalar_row).execute(_IS_THERE).fetchone():
        return []
    cursor = conn.cursor(row_factory=args_row(Record))
    try:
        return cursor.execute(RECORDS).fetchall()
    except pg.InsufficientPrivilege:
        if conn.info.transaction_status != TransactionStatus.IDLE:
            raise
        return cursor.execute(SHOWN_RECORDS).fetchall()


# Read from the catalog, because to_regclass() reads the session's cache, which may miss the commit of another
# installer.
_IS_THERE = """
select exists (
  select
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where n.nspname = 'holdfast'
    and c.relname = 'migration'
)
"""

RECORDS = """
select name, kind, checksum, version
from holdfast.migration
"""

# For roles that may not read the table.
SHOWN_RECORDS = """
select name, kind, checksum, version
from holdfast.installed
"""

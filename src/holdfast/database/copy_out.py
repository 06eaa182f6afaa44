"""Exports many rows by COPY, as a stream that never holds all of them in memory."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Literal

from psycopg import Connection, sql

from holdfast.database.translation import translated
from holdfast.values.call import Function

CHUNK = 1 << 20
# Makes the text independent of the settings of the role and the database.
_PLAIN = """\
set local datestyle = 'ISO'; set local intervalstyle = 'iso_8601'; set local timezone = 'UTC';
set local bytea_output = 'hex'; set local extra_float_digits = 1; set local statement_timeout = 0
"""
_ROWS = sql.SQL("select {} from (select holdfast.{}({}, {}, {}) as row) given")
_QUERIES = {
    "csv": ("(given.row).*", "format csv, header true, encoding 'UTF8'"),
    # JSON text has no line ends and neither of these two characters, so COPY never quotes it.
    "jsonl": ("row_to_json(given.row)", r"format csv, quote E'\x01', delimiter E'\x02', encoding 'UTF8'"),
}


def copy_out(
    connection: Connection[Any],
    function: Function,
    arguments: tuple[datetime, datetime, bool],
    shape: Literal["csv", "jsonl"],
    counted: Callable[[int], None],
) -> Iterator[bytes]:
    """Yield the rows of a function in chunks of about a megabyte, then call `counted` with their number.

    The connection must be in a transaction that does nothing else.
    """
    columns, options = _QUERIES[shape]
    rows = _ROWS.format(
        sql.SQL(columns), sql.Identifier(function.name), *(sql.Literal(value) for value in arguments)
    )
    command = sql.SQL("copy ({}) to stdout ({})").format(rows, sql.SQL(options))
    with translated(), connection.cursor() as cursor:
        cursor.execute(sql.SQL(_PLAIN))
        buffer = bytearray()
        with cursor.copy(command) as copy:
            for piece in copy:
                buffer += piece
                if len(buffer) >= CHUNK:
                    yield bytes(buffer)
                    buffer.clear()
        if buffer:
            yield bytes(buffer)
        counted(cursor.rowcount)

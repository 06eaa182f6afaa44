"""Runs a call on the caller's own connection or cursor, sync or async, in the caller's transaction."""

from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast.database.translation import translated
from holdfast.values.call import Call, Function
from holdfast.values.errors import BadValue

T = TypeVar("T")

CallerConnection = Connection[Any] | Cursor[Any]
CallerAsyncConnection = AsyncConnection[Any] | AsyncCursor[Any]


def run_on(connection: CallerConnection, call: Call[T]) -> T:
    """Run a call on the caller's own connection or cursor, inside the transaction that is open there."""
    owner = connection_of(connection)
    with translated(), owner.cursor(row_factory=tuple_row) as cursor:
        return call.read(cursor.execute(statement(call.function), call.values).fetchall())


async def arun_on(connection: CallerAsyncConnection, call: Call[T]) -> T:
    owner = aconnection_of(connection)
    with translated():
        async with owner.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement(call.function), call.values)
            return call.read(await cursor.fetchall())


def in_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Return whether a transaction is open there, even one that has failed."""
    return connection.info.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}


@cache
def statement(function: Function) -> str:
    """Return the SQL text that calls a function."""
    return call_text(function, ["%s"] * len(function.parameters))


def call_text(function: Function, places: Iterable[str]) -> str:
    """Return the same text with other placeholders for the values."""
    given = zip(function.parameters.items(), places, strict=True)
    arguments = ", ".join(f"{name} => {place}::{kind}" for (name, kind), place in given)
    asked = f"holdfast.{function.name}({arguments})"
    if function.value:
        return f"select {asked}::{function.value}"
    return f"select {function.columns} from {asked}"  # noqa: S608 - made of constants


def connection_of(connection: CallerConnection) -> Connection[Any]:
    match connection:
        case Connection():
            return connection
        case Cursor():
            return connection.connection
        case _:
            wanted = "a psycopg Connection or Cursor; async ones go with the a… methods"
            raise _not_a_connection(connection, wanted)


def aconnection_of(connection: CallerAsyncConnection) -> AsyncConnection[Any]:
    match connection:
        case AsyncConnection():
            return connection
        case AsyncCursor():
            return connection.connection
        case _:
            raise _not_a_connection(connection, "a psycopg AsyncConnection or AsyncCursor")


def _not_a_connection(connection: object, wanted: str) -> BadValue:
    # Name only the type, because the value may be a DSN with a password.
    return BadValue(f"conn must be {wanted}, not a {type(connection).__name__}", field="conn")

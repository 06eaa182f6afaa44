"""A call on the caller's own connection or cursor, sync or async: the caller's transaction decides."""

import contextlib
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.rows import tuple_row

from holdfast.calls import Call, Function
from holdfast.database.translation import translated
from holdfast.errors import BadValue

T = TypeVar("T")

CallerConnection = Connection[Any] | Cursor[Any]
CallerAsyncConnection = AsyncConnection[Any] | AsyncCursor[Any]


def run_on(connection: CallerConnection, call: Call[T]) -> T:
    """Carry a call on the caller's own connection or cursor, inside whatever transaction is open there."""
    owner = _owner(connection)
    with translated(), owner.cursor(row_factory=tuple_row) as cursor:
        return call.read(cursor.execute(statement(call.function), call.values).fetchall())


async def arun_on(connection: CallerAsyncConnection, call: Call[T]) -> T:
    owner = _aowner(connection)
    with translated():
        async with owner.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement(call.function), call.values)
            return call.read(await cursor.fetchall())


def run_all_on(connection: CallerConnection, calls: Iterable[Call[T]]) -> list[T]:
    """Carry several calls, all of them or none, on the caller's own connection.

    Only one in autocommit gets a transaction of ours: elsewhere the end of the transaction is the caller's.
    """
    owner = _owner(connection)
    with owner.transaction() if owner.autocommit else contextlib.nullcontext():
        return [run_on(owner, call) for call in calls]


async def arun_all_on(connection: CallerAsyncConnection, calls: Iterable[Call[T]]) -> list[T]:
    owner = _aowner(connection)
    async with owner.transaction() if owner.autocommit else contextlib.nullcontext():
        return [await arun_on(owner, call) for call in calls]


@cache
def statement(function: Function) -> str:
    """How a function is called."""
    arguments = ", ".join(f"{name} => %s::{kind}" for name, kind in function.parameters.items())
    return f"select {function.columns} from holdfast.{function.name}({arguments})"  # noqa: S608 - our own constants


def _owner(connection: CallerConnection) -> Connection[Any]:
    match connection:
        case Connection():
            return connection
        case Cursor():
            return connection.connection
        case _:
            raise _stranger(connection, "a psycopg Connection or Cursor; async ones go with the a… methods")


def _aowner(connection: CallerAsyncConnection) -> AsyncConnection[Any]:
    match connection:
        case AsyncConnection():
            return connection
        case AsyncCursor():
            return connection.connection
        case _:
            raise _stranger(connection, "a psycopg AsyncConnection or AsyncCursor")


def _stranger(connection: object, wanted: str) -> BadValue:
    # Named by its type alone: it may be a DSN, with the password in it.
    return BadValue(f"conn must be {wanted}, not a {type(connection).__name__}", field="conn")

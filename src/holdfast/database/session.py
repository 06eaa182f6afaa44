"""A worker's own connections: they have deadlines, notice silence, and come back by themselves."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from holdfast.calls import Call
from holdfast.database.carriers import statement
from holdfast.database.translation import closed, collisions, translated, unavailable
from holdfast.errors import BadValue, DatabaseUnavailable

T = TypeVar("T")

CONNECT_TIMEOUT = 10
DEADLINE = 30.0
# How long a call that nobody waits for any more may take to end by itself.
PARTING = 1.0


class _Line:
    """One connection, on which nothing is waited for longer than was said.

    Where time is up, the line is cut under the call: its socket is shut down, and whoever waits there
    wakes up at once. Cancelling the call instead would have psycopg ask the server to cancel it, and wait
    many seconds for a server that has fallen silent.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: AsyncConnection[Any] | None = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            # It may be nearly done, and then what it did is certain and its connection is still good.
            try:
                await asyncio.wait({task}, timeout=PARTING)
            finally:
                await self._cut(task)
            raise
        if not done:
            await self._cut(task)
            raise unavailable(f"no answer within {seconds:g} s", self._dsn)
        try:
            with translated(self._dsn):
                return task.result()
        except DatabaseUnavailable:
            await self.close()
            raise

    async def _cut(self, task: "asyncio.Task[Any]") -> None:
        if not task.done():
            if self._connection is None:  # not yet connected: there is nothing to ask a server about
                task.cancel()
            else:
                with contextlib.suppress(psycopg.Error, OSError), _socket_of(self._connection) as line:
                    line.shutdown(socket.SHUT_RDWR)
            await asyncio.wait({task}, timeout=PARTING)
            await self.close()
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody else asks for it


class Session(_Line):
    """A worker's own connection. It reconnects at the next call, and every call has a deadline.

    A call that was cut off raises `DatabaseUnavailable`: it may or may not have happened, and only the
    caller knows how to ask.
    """

    def __init__(
        self,
        dsn: str,
        settings: Sequence[tuple[str, str]] = (),
        *,
        deadline: float = DEADLINE,
        transaction_pooling: bool = False,
    ) -> None:
        super().__init__(dsn)
        self._deadline = deadline
        self._transaction_pooling = transaction_pooling
        self._settings = (*settings, ("default_transaction_isolation", "read committed"))
        self._lock = asyncio.Lock()

    async def run(self, call: Call[T], *, deadline: float | None = None) -> T:
        async with self._lock:
            return await self._within(deadline or self._deadline, self._carry(call))

    async def _carry(self, call: Call[T]) -> T:
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self._connect()
        with closed(), collisions():
            if not self._transaction_pooling:
                return await _ask(connection, call)
            # A setting of the session would stay behind in a connection that others use next.
            async with connection.transaction():
                await self._set(connection, local=True)
                return await _ask(connection, call)

    async def _connect(self) -> AsyncConnection[Any]:
        connection = self._connection = await _connect(self._dsn)
        if self._transaction_pooling:
            connection.prepare_threshold = None
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        else:
            try:
                await self._set(connection, local=False)
            except BaseException:
                await self.close()
                raise
        return connection

    async def _set(self, connection: AsyncConnection[Any], *, local: bool) -> None:
        setting = sql.SQL("set_config({}, {}, {})")
        wanted = [setting.format(name, value, local) for name, value in self._settings]
        await connection.execute(sql.SQL("select {}").format(sql.SQL(", ").join(wanted)))


class Listener(_Line):
    """A connection that waits for notifications, and proves itself alive by a query now and then."""

    async def listen(
        self, channels: Sequence[str], *, probe_every: float = 5.0
    ) -> AsyncGenerator[str | None, None]:
        """The payloads as they come; `None` at first and after each probe, when all is well.

        Raises `DatabaseUnavailable` when the connection is lost or no longer answers.
        """
        try:
            connection = await self._within(CONNECT_TIMEOUT, self._subscribe(channels))
            while True:
                yield None
                with translated(self._dsn):
                    async with contextlib.aclosing(connection.notifies(timeout=probe_every)) as notifications:
                        async for notification in notifications:
                            yield notification.payload
                await self._within(probe_every, self._probe(connection))
        finally:
            await self.close()

    async def _subscribe(self, channels: Sequence[str]) -> AsyncConnection[Any]:
        connection = self._connection = await _connect(self._dsn)
        for channel in channels:
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        return connection

    async def _probe(self, connection: AsyncConnection[Any]) -> None:
        await connection.execute("select 1")


def _socket_of(connection: AsyncConnection[Any]) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))


async def _connect(dsn: str) -> AsyncConnection[Any]:
    return await AsyncConnection.connect(complete(dsn), autocommit=True, row_factory=tuple_row)


async def _ask(connection: AsyncConnection[Any], call: Call[T]) -> T:
    cursor = await connection.execute(statement(call.function), call.values)
    return call.read(await cursor.fetchall())


def complete(dsn: str) -> str:
    """The DSN, with what it leaves open: when to give up, and how to find a peer that vanished."""
    ours: dict[str, str | int] = {
        "connect_timeout": CONNECT_TIMEOUT,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "application_name": "holdfast",
    }
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # Without libpq's words: they quote the DSN, with the password in it.
        hint = "Write postgresql://user@host/database, or host=… dbname=…."
        raise BadValue("the DSN cannot be read", field="dsn", hint=hint) from None
    return make_conninfo(dsn, **{name: value for name, value in ours.items() if name not in given})

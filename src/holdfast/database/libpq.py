"""Runs plain calls directly through libpq, on a connection of Holdfast's own.

    send ─► wait until readable ─► read        one write, one poll and one read for the whole call

A small call spends most of its client time in the driver. The driver makes a cursor, a transformer and a
loader, adapts each value, and first waits until it may write. An enqueue takes 70 to 100 µs there, and 25 µs
as texts for a prepared statement. A claim on an idle queue, where all code runs cold, takes 0.7 ms there and
0.25 ms here. So three kinds of calls go this way: an enqueue, the calls of a worker, and those that wait for
results. Bulk enqueues, operations, steps, and everything on the caller's connection go through the driver.

`Wire` has all calls to libpq. A sync and an async connection each wait in their own way. The driver uses a
generator between the two; here it would be slow, because code that runs rarely runs cold. Each frame then
costs three times what a benchmark in a loop shows.
"""

import asyncio
import math
import os
import select
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult
from psycopg.types.string import TextLoader

from holdfast.database.statements import call_text
from holdfast.values.call import Call, Function, Rows

T = TypeVar("T")

# A statement has done nothing if one of these is its only answer, so it may be sent again on another
# connection. 57P01 and 57P05: the server ends the session. The server sends in order, and reports a commit
# before anything later. If the statement had been committed, its completion would come first. 26000 and
# 0A000: the prepared statement is missing or no longer fits. The server finds that before a statement begins.
NEVER_RAN = frozenset({"57P01", "57P05", "26000", "0A000"})

_SUCCESS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class LibpqConnection(Connection[Any]):
    """A connection that can also run plain calls directly."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wire = Wire(self)

    def ask(self, call: Call[T]) -> T:
        wire = self.wire
        if not wire.is_prepared(call.function):
            wire.prepare(call.function)
            self._wait()
            wire.prepared(call.function)
        wire.send(call)
        self._wait()
        return call.read(wire.rows())

    def _wait(self) -> None:
        wire = self.wire
        if wire.unsent:
            both = select.poll()
            both.register(self.pgconn.socket, select.POLLIN | select.POLLOUT)
            while wire.unsent:
                both.poll()
                wire.flush()
            if wire.is_answered():
                return
        while True:
            wire.poll.poll()
            if wire.is_answered():
                return


class LibpqAsyncConnection(AsyncConnection[Any]):
    """A connection for an event loop that can also run plain calls directly."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wire = Wire(self)
        self.was_cut_off = False
        self._watched: int | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def ask(self, call: Call[T]) -> T:
        wire = self.wire
        if not wire.is_prepared(call.function):
            wire.prepare(call.function)
            await self.wait_for_answer()
            wire.prepared(call.function)
        wire.send(call)
        await self.wait_for_answer()
        return call.read(wire.rows())

    async def wait_for_answer(self) -> None:
        """Wait until the whole answer has come."""
        wire, socket = self.wire, self.pgconn.socket
        if wire.unsent:
            while wire.unsent:
                self.unwatch()
                await _socket_ready(socket, to_write=True)
                wire.flush()
            if wire.is_answered():
                return
        while True:
            if self._watched is None:
                await _socket_ready(socket)
            else:
                await self._wait_readable()
            if wire.is_answered():
                return

    def watch(self, on_input: Callable[["LibpqAsyncConnection"], None]) -> None:
        """Call `on_input` when something comes between calls.

        Calls then need not start and stop watching the socket, which takes 70 µs after an idle period. A copy
        of the socket is watched. When the connection breaks, libpq closes its own socket, whose number may be
        reused at once. A forked child may hold the socket too, and then it would stay readable without end.
        """
        if self._watched is None:
            try:
                line = os.dup(self.pgconn.socket)
            except OSError:
                return  # too many files are open, so only calls read the socket
            asyncio.get_running_loop().add_reader(line, self._on_readable, on_input)
            self._watched = line

    def unwatch(self) -> None:
        """Stop watching: needed before the driver itself waits, and at the end."""
        line, self._watched = self._watched, None
        if line is not None:
            asyncio.get_running_loop().remove_reader(line)
            os.close(line)

    def wake(self) -> None:
        """Have a waiting call check the socket."""
        if self._waiting is not None:
            _wake(self._waiting)

    def _on_readable(self, on_input: Callable[["LibpqAsyncConnection"], None]) -> None:
        if self._waiting is None:
            on_input(self)
        else:
            self.wake()

    async def _wait_readable(self) -> None:
        if self.wire.is_readable():
            return  # perhaps an error, after which uvloop watches no more
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None


class ListeningConnection(LibpqAsyncConnection):
    """A connection that waits for notifications, without the tasks that the driver makes for each."""

    async def notified(self, *, until: float) -> list[str]:
        """Return the payloads of new notifications; none if the loop's clock reaches `until` first."""
        await _socket_ready(self.pgconn.socket, until=until)
        self.pgconn.consume_input()
        payloads = []
        while (notification := self.pgconn.notifies()) is not None:
            payloads.append(notification.extra.decode(errors="replace"))
        return payloads


class Wire:
    """The calls to libpq that both kinds of connection share. One call runs at a time."""

    def __init__(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        self._pgconn = connection.pgconn
        self._codec = codec_of(connection)
        self._loader = Transformer(_TextAdapters(connection))
        self._known: set[Function] | None = set()
        self._results: list[PGresult] = []
        self.unsent = False
        self.poll = select.poll()
        self.poll.register(self._pgconn.socket, select.POLLIN)

    def prepare_nothing(self) -> None:
        """Prepare nothing from here on, because each transaction may run in another session."""
        self._known = None

    def is_readable(self) -> bool:
        """Return whether the server has closed the connection or sent anything. This takes 0.5 µs."""
        return bool(self.poll.poll(0))

    def is_prepared(self, function: Function) -> bool:
        return self._known is None or function in self._known

    def prepare(self, function: Function) -> None:
        self._results = []
        self._pgconn.send_prepare(_name(function), _command(function))
        self.unsent = bool(self._pgconn.flush())

    def prepared(self, function: Function) -> None:
        self.rows()
        if self._known is not None:
            self._known.add(function)

    def send(self, call: Call[Any]) -> None:
        codec = self._codec
        formats = [Format.BINARY if isinstance(value, bytes) else Format.TEXT for value in call.values]
        values = [
            value if value is None or form is Format.BINARY else str(value).encode(codec)
            for value, form in zip(call.values, formats, strict=True)
        ]
        # libpq reads a text up to its first NUL, and would silently send half of it.
        if any(b"\0" in value for value, form in zip(values, formats, strict=True) if value and not form):
            raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        self._results = []
        if self._known is None:
            self._pgconn.send_query_params(_command(call.function), values, param_formats=formats)
        else:
            self._pgconn.send_query_prepared(_name(call.function), values, formats)
        self.unsent = bool(self._pgconn.flush())

    def flush(self) -> None:
        """Send the rest of the data if the socket did not take all. This may also read the whole answer."""
        self._pgconn.consume_input()  # a server that waits for us to read reads nothing itself
        self.unsent = bool(self._pgconn.flush())

    def is_answered(self) -> bool:
        """Read the available data, and return whether the answer is complete."""
        pgconn, results = self._pgconn, self._results
        while True:
            try:
                pgconn.consume_input()
            except psycopg.OperationalError:
                if results and not _succeeded(results[0]):
                    return True  # the server gave a reason before it closed
                raise
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    return True
                results.append(result)
            # libpq reads 16 kB at a time. Without this loop, each 16 kB would take a turn of the event loop.
            if not self.is_readable():
                return False

    def rows(self) -> Rows:
        """Return the rows of the answer; raises the server's error."""
        result, *more = self._results
        if not _succeeded(result):
            raise error_from_result(result, self._codec)
        if more:  # complete, but followed by an error: the outcome is unknown
            raise psycopg.OperationalError("the connection was lost at the end of the call")
        # The driver's loaders are reused. They are four times as fast as reading each value from libpq.
        self._loader.set_pgresult(result)
        return self._loader.load_rows(0, result.ntuples, tuple)


class _TextAdapters:
    """The adapters for answers to plain calls: UUIDs and JSON stay text."""

    def __init__(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        self.connection = None if connection.info.encoding == "ascii" else connection
        self.adapters = AdaptersMap(connection.adapters)
        for kind in ("uuid", "jsonb"):
            self.adapters.register_loader(kind, TextLoader)


def codec_of(connection: Connection[Any] | AsyncConnection[Any]) -> str:
    """Return the encoding of texts for this server. Like the driver, use UTF-8 for SQL_ASCII."""
    codec = connection.info.encoding
    return "utf-8" if codec == "ascii" else codec


def _succeeded(result: PGresult) -> bool:
    return result.status in _SUCCESS


async def _socket_ready(socket: int, *, to_write: bool = False, until: float = math.inf) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(socket, _wake, ready)
    time_is_up = None if until == math.inf else loop.call_at(until, _wake, ready)
    try:
        if to_write:
            loop.add_writer(socket, _wake, ready)
        await ready
    finally:
        loop.remove_reader(socket)
        if to_write:
            loop.remove_writer(socket)
        if time_is_up is not None:
            time_is_up.cancel()


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


@cache
def _command(function: Function) -> bytes:
    return call_text(function, [f"${number}" for number in range(1, len(function.parameters) + 1)]).encode()


@cache
def _name(function: Function) -> bytes:
    return f"holdfast_{function.name}_{len(function.parameters)}".encode()

"""The shortest way for a plain call: straight through libpq, on a connection of our own.

    send ─► wait until readable ─► read        one write, one poll and one read for the whole call

Nearly all the time that a small call takes in this process is the driver's: a cursor, a transformer and a
loader made for it, its values adapted one by one, a wait that begins by asking whether it may write. That is
70 to 100 µs for an enqueue, where sending texts to a statement that stands prepared takes 25; and 0.7 ms for
a claim on an idle queue, where everything runs cold, instead of 0.25. So the one call that is made thousands
of times a second and all those of a worker take the short way, and the others the driver's.

What to ask of libpq is written once, in `Wire`; a sync and an async connection each wait in their own way.
There is no generator between them, as the driver has: what runs once in a while runs cold, and each frame
costs three times of what a benchmark in a loop says.
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

from holdfast.calls import Call, Function, Rows
from holdfast.database.statements import call_text

T = TypeVar("T")

# A statement that was answered by one of these and by nothing before has done nothing, so it may be sent
# again on another connection. 57P01 and 57P05 (the server ends the session): what the server sends it sends
# in order, and a statement of ours is committed after the server has written that it is complete; so had it
# been committed, that would stand before the farewell. 26000 and 0A000 (what was prepared is not there, or no
# longer fits): found before a statement begins.
NEVER_RAN = frozenset({"57P01", "57P05", "26000", "0A000"})

_SUCCESS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class LibpqConnection(Connection[Any]):
    """A connection that also knows the short way."""

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
    """The same for an event loop."""

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
        """Wait until all of the answer is there."""
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
        """Have `heard` called when something comes between calls.

        Calls then need not begin to watch the socket and end it, which takes 70 µs after a while of quiet.
        What is watched is a copy of it: libpq closes its own when the line breaks, whose number may be
        another's the next moment; and a forked child may have it, too, where it would stir for ever.
        """
        if self._watched is None:
            try:
                line = os.dup(self.pgconn.socket)
            except OSError:
                return  # too many files are open: each call watches for itself, and hears no news between
            asyncio.get_running_loop().add_reader(line, self._on_readable, on_input)
            self._watched = line

    def unwatch(self) -> None:
        """No more of it; needed before the driver itself waits for something, and at the end."""
        line, self._watched = self._watched, None
        if line is not None:
            asyncio.get_running_loop().remove_reader(line)
            os.close(line)

    def wake(self) -> None:
        """Have a call that waits look at the socket."""
        if self._waiting is not None:
            _wake(self._waiting)

    def _on_readable(self, on_input: Callable[["LibpqAsyncConnection"], None]) -> None:
        if self._waiting is None:
            on_input(self)
        else:
            self.wake()

    async def _wait_readable(self) -> None:
        if self.wire.is_readable():
            return  # be it an error, after which uvloop watches no more
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None


class ListeningConnection(LibpqAsyncConnection):
    """One that waits for notifications, with none of the tasks that the driver makes for each."""

    async def notified(self, *, until: float) -> list[str]:
        """The payloads of what has come; none when it is `until`, by the loop's clock."""
        await _socket_ready(self.pgconn.socket, until=until)
        self.pgconn.consume_input()
        payloads = []
        while (notification := self.pgconn.notifies()) is not None:
            payloads.append(notification.extra.decode(errors="replace"))
        return payloads


class Wire:
    """What both kinds of connection have in common: how to ask libpq. One question at a time."""

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
        """From here on nothing is prepared: the session is another one each time."""
        self._known = None

    def is_readable(self) -> bool:
        """Whether the server has hung up, or sent what nobody asked for: a look at the socket, in 0.5 µs."""
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
        # libpq takes a text up to its first NUL, and would send half of it without a word.
        if any(b"\0" in value for value, form in zip(values, formats, strict=True) if value and not form):
            raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        self._results = []
        if self._known is None:
            self._pgconn.send_query_params(_command(call.function), values, param_formats=formats)
        else:
            self._pgconn.send_query_prepared(_name(call.function), values, formats)
        self.unsent = bool(self._pgconn.flush())

    def flush(self) -> None:
        """Send more of what the socket did not take at once. This may read the whole answer too."""
        self._pgconn.consume_input()  # a server that waits for us to read does not read either
        self.unsent = bool(self._pgconn.flush())

    def is_answered(self) -> bool:
        """Read what has come; whether that was all of it."""
        pgconn, results = self._pgconn, self._results
        while True:
            try:
                pgconn.consume_input()
            except psycopg.OperationalError:
                if results and not _succeeded(results[0]):
                    return True  # it said why before it hung up
                raise
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    return True
                results.append(result)
            # libpq takes 16 kB at a time: a batch would go round the event loop for each of them.
            if not self.is_readable():
                return False

    def rows(self) -> Rows:
        """The answer; raises what the server said instead of one."""
        result, *more = self._results
        if not _succeeded(result):
            raise error_from_result(result, self._codec)
        if more:  # complete, and then not the end that was due: nobody knows whether it counts
            raise psycopg.OperationalError("the connection was lost at the end of the call")
        # The driver's loaders, kept: they take a quarter of what asking libpq for each value does.
        self._loader.set_pgresult(result)
        return self._loader.load_rows(0, result.ntuples, tuple)


class _TextAdapters:
    """How the answers to plain calls are read: UUIDs and JSON as the texts that they come as."""

    def __init__(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        self.connection = None if connection.info.encoding == "ascii" else connection
        self.adapters = AdaptersMap(connection.adapters)
        for kind in ("uuid", "jsonb"):
            self.adapters.register_loader(kind, TextLoader)


def codec_of(connection: Connection[Any] | AsyncConnection[Any]) -> str:
    """How texts are written for this server; as the driver does it: SQL_ASCII is anything."""
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

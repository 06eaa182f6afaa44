"""A worker's own connections, with deadlines, detection of a silent server, and automatic reconnects."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import Diagnostic
from psycopg.rows import tuple_row

from holdfast.database.libpq import LibpqAsyncConnection, ListeningConnection
from holdfast.database.outage import Outage
from holdfast.database.pooler import Pooler
from holdfast.database.statements import statement
from holdfast.database.translation import closed, collisions, translated, unavailable
from holdfast.values.call import Call
from holdfast.values.errors import BadValue, DatabaseUnavailable, HoldfastError

T = TypeVar("T")
C = TypeVar("C", bound=AsyncConnection[Any])
Settings = Sequence[tuple[str, str]]

CONNECT_TIMEOUT = 10
DEADLINE = 30.0
# How often a connection that only listens is checked.
PROBE_SECONDS = 5.0
# The time for an abandoned call to end.
ABANDON_SECONDS = 1.0
# A role's timeouts are meant for the statements of applications, and would interrupt every duty. A function
# cannot change the timeout of the statement that calls it, so the session sets it.
DUTY_SETTINGS = (
    ("statement_timeout", "10min"),
    ("idle_in_transaction_session_timeout", "1min"),
    ("transaction_timeout", "0"),
    ("client_min_messages", "warning"),
)


class _TimedConnection(Generic[C]):
    """A connection on which every wait has a limit.

    At the deadline its socket is shut down, and the waiting call wakes at once. Cancelling the call would
    take longer: psycopg would ask the server to cancel it, and wait many seconds for a silent server.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: C | None = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            # The call may be nearly done. Then its effect is certain, and the connection stays usable.
            try:
                await asyncio.wait({task}, timeout=ABANDON_SECONDS)
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
            if self._connection is None:  # not yet connected: there is no socket to shut down
                task.cancel()
            else:
                _shut_down(self._connection)
            await asyncio.wait({task}, timeout=ABANDON_SECONDS)
            await self.close()
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # read the exception


class Session(_TimedConnection[LibpqAsyncConnection]):
    """A worker's own connection. It reconnects at the next call, and every call has a deadline.

    A plain call on an open connection runs directly through libpq and without a task, because starting and
    awaiting a task takes longer than the rest.

    An interrupted call raises `DatabaseUnavailable`. It may or may not have taken effect, and only the caller
    can check that.

    Each warning of the server is passed to `warned`.
    """

    def __init__(
        self,
        dsn: str,
        settings: Sequence[tuple[str, str]] = (),
        *,
        deadline: float = DEADLINE,
        pooler: Pooler,
        outage: Outage | None = None,
        warned: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(dsn)
        self._outage = outage or Outage()
        self._purpose = dict(settings).get("application_name", "")
        # The number of outages that had ended when the connection was made; `None` without a connection.
        self._outages_before: int | None = None
        self._deadline = deadline
        self._warned = warned
        self._pooler = pooler
        self.settings = (*settings, ("default_transaction_isolation", "read committed"))
        self._lock = asyncio.Lock()
        self._used_at = 0.0

    async def run(
        self, call: Call[T], *, deadline: float | None = None, settings: Settings | None = None
    ) -> T:
        """Run a call. With `settings` it is a transaction that waits for the disk, unless they differ."""
        seconds = deadline or self._deadline
        async with self._lock:
            connection = self._connection
            simple = call.plain and settings is None and not self._pooler.transaction_mode
            try:
                if connection is None or connection.closed or not simple:
                    answer = await self._within(seconds, self._connect_and_ask(call, settings))
                else:
                    answer = await self._ask(connection, call, seconds)
            except DatabaseUnavailable as error:
                self._report_failure(error)
                raise
            except HoldfastError:
                self.report_answer()
                raise
            self.report_answer()
            self._used_at = time.monotonic()
            return answer

    async def run_as(self, call: Call[T], settings: Settings | None, *, deadline: float | None = None) -> T:
        """Run a call for another session, which has these settings and no connection."""
        return await self.run(call, settings=settings, deadline=deadline)

    async def close_unused(self, seconds: float) -> None:
        """Close the connection if no call has used it for this long. The next call opens another."""
        if not self._lock.locked() and time.monotonic() - self._used_at > seconds:
            await self.close()

    def _report_failure(self, error: DatabaseUnavailable) -> None:
        self._outage.failed(self._purpose, error, made=self._outages_before)
        self._outages_before = None

    def report_answer(self) -> None:
        """Note that the database has answered, so that an outage of this connection ends."""
        if self._outage.failing:
            self._outage.recovered(self._purpose)

    async def open(self) -> None:
        """Connect early, while other work runs. Otherwise the first call connects."""
        async with self._lock:
            if self._connection is None:
                await self._within(self._deadline, self._connect())
                self._outages_before = self._outage.ended
                self._used_at = time.monotonic()

    async def _ask(self, connection: LibpqAsyncConnection, call: Call[T], seconds: float) -> T:
        deadline = asyncio.get_running_loop().call_later(seconds, _cut_off, connection)
        try:
            answer = await connection.ask(call)
            if connection.was_cut_off:  # cut off just after the answer came
                await self.close()
            return answer  # noqa: TRY300 - the handlers below are for the call alone
        except asyncio.CancelledError:
            await self._finish_abandoned(connection, call)
            raise
        except Exception as error:  # noqa: BLE001 - raised again, translated
            try:
                with translated(self._dsn), closed(), collisions():
                    raise
            except DatabaseUnavailable:
                await self.close()
                if connection.was_cut_off:
                    raise unavailable(f"no answer within {seconds:g} s", self._dsn) from error
                raise
        finally:
            deadline.cancel()

    async def _finish_abandoned(self, connection: LibpqAsyncConnection, call: Call[Any]) -> None:
        """Wait briefly for an abandoned call, as `_within` does, to keep its connection usable."""
        good = False
        try:
            with contextlib.suppress(TimeoutError, psycopg.Error):
                async with asyncio.timeout(ABANDON_SECONDS):
                    await connection.wait_for_answer()
                    good = connection.wire.is_prepared(call.function)
        finally:
            if not good:
                await self.close()

    async def _connect_and_ask(self, call: Call[T], settings: Settings | None) -> T:
        connection = self._connection
        if connection is None or connection.closed:
            self._outages_before = None
            connection = await self._connect()
            self._outages_before = self._outage.ended
        with closed(), collisions():
            # A session setting would remain in a connection that other clients use next.
            own = self.settings if self._pooler.transaction_mode else ()
            if settings is None and not own:
                return await _ask(connection, call)
            async with connection.transaction():
                if own:
                    await connection.execute(setting(own, local=True))
                if settings is not None:
                    await connection.execute("set local synchronous_commit to default")
                if settings:
                    await connection.execute(setting(settings, local=True))
                return await _ask(connection, call)

    async def _connect(self) -> LibpqAsyncConnection:
        connection = self._connection = await LibpqAsyncConnection.connect(
            with_defaults(self._dsn), autocommit=True, row_factory=tuple_row
        )
        if self._warned is not None:
            connection.add_notice_handler(partial(_report_warning, self._warned))
        try:
            await self._pooler.adetect(connection)
            if self._pooler.transaction_mode:
                connection.prepare_threshold = None
                connection.wire.prepare_nothing()
                await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            else:
                await connection.execute(setting(self.settings, local=False))
        except BaseException:
            await self.close()
            raise
        return connection


class ListeningSession(Session):
    """A session that receives notifications between its calls. A woken worker can claim on it at once.

    `heard` is called with the payloads of the notifications that came. It is also called without any: after
    each connect, because some may have been missed before, and after `lost`, so that a claim reconnects.
    `lost` is called when a listening connection is gone. The next call detects a server that is silent.
    """

    def __init__(
        self,
        dsn: str,
        settings: Sequence[tuple[str, str]] = (),
        *,
        deadline: float = DEADLINE,
        channels: Sequence[Call[str] | str],
        heard: Callable[[set[bytes]], None],
        lost: Callable[[DatabaseUnavailable], None],
        pooler: Pooler,
        outage: Outage | None = None,
        warned: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(dsn, settings, deadline=deadline, pooler=pooler, outage=outage, warned=warned)
        self._channels = channels
        self._heard = heard
        self._lost = lost
        self._one_at_a_time = asyncio.Lock()
        self._listening = self._reconnected = False
        self._heard_by_driver: set[bytes] = set()

    async def run(
        self, call: Call[T], *, deadline: float | None = None, settings: Settings | None = None
    ) -> T:
        async with self._one_at_a_time:
            if settings is not None or not call.plain:
                self._unwatch()  # the driver watches the socket itself
            try:
                return await super().run(call, deadline=deadline, settings=settings)
            except DatabaseUnavailable as error:
                self._report_lost(error)
                raise
            finally:
                self._watch()

    async def open(self) -> None:
        async with self._one_at_a_time:
            await super().open()
            self._watch()

    async def close(self) -> None:
        self._unwatch()
        await super().close()

    async def _connect(self) -> LibpqAsyncConnection:
        self._unwatch()  # the previous connection, which has ended
        connection = await super()._connect()
        # The driver reads notifications too, during calls that it sends itself.
        connection.add_notify_handler(lambda notify: self._heard_by_driver.add(notify.payload.encode()))
        try:
            for channel in () if self._pooler.transaction_mode else self._channels:
                name = channel if isinstance(channel, str) else await connection.ask(channel)
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(name)))
        except BaseException:
            await self.close()
            raise
        self._listening = self._reconnected = True
        return connection

    def _watch(self) -> None:
        """Report notifications that came during the call, and watch for more."""
        connection = self._connection
        if connection is None or connection.closed:
            self._unwatch()
            self._report_lost(DatabaseUnavailable("an interrupted call has closed the connection"))
            return
        connection.watch(self._on_input)
        self._report_notifications(connection)

    def _unwatch(self) -> None:
        if self._connection is not None:
            self._connection.unwatch()

    def _report_notifications(self, connection: LibpqAsyncConnection) -> None:
        payloads, self._heard_by_driver = self._heard_by_driver, set()
        while (notification := connection.pgconn.notifies()) is not None:
            payloads.add(notification.extra)
        if payloads or self._reconnected:
            self._reconnected = False
            self._heard(payloads)

    def _on_input(self, connection: LibpqAsyncConnection) -> None:
        """Read input that came between calls."""
        try:
            with translated(self._dsn):
                while connection.wire.is_readable():
                    connection.pgconn.consume_input()
        except DatabaseUnavailable as error:
            self._unwatch()
            self._connection = None
            connection.pgconn.finish()
            self._report_failure(error)
            self._report_lost(error)
        else:
            self._report_notifications(connection)

    def _report_lost(self, error: DatabaseUnavailable) -> None:
        if self._listening:
            self._listening = False
            self._lost(error)
            self._heard(set())


class Listener(_TimedConnection[ListeningConnection]):
    """A connection that waits for notifications, and is regularly checked by a query."""

    async def listen(self, channels: Sequence[str]) -> AsyncGenerator[str | None, None]:
        """Yield the payloads as they come; `None` at first and after each check that passed.

        Raises `DatabaseUnavailable` when the connection is lost or no longer answers.
        """
        loop = asyncio.get_running_loop()
        try:
            connection = await self._within(CONNECT_TIMEOUT, self._subscribe(channels))
            while True:
                yield None
                probe_at = loop.time() + PROBE_SECONDS
                while payloads := await self._notified(connection, until=probe_at):
                    for payload in payloads:
                        yield payload
                await self._within(PROBE_SECONDS, self._probe(connection))
        finally:
            await self.close()

    async def _notified(self, connection: ListeningConnection, *, until: float) -> list[str]:
        try:
            return await connection.notified(until=until)
        except psycopg.Error:
            with translated(self._dsn):
                raise

    async def _subscribe(self, channels: Sequence[str]) -> ListeningConnection:
        connection = self._connection = await ListeningConnection.connect(
            with_defaults(self._dsn), autocommit=True
        )
        for channel in channels:
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        return connection

    async def _probe(self, connection: ListeningConnection) -> None:
        await connection.execute("select 1")


def setting(settings: Sequence[tuple[str, str]], *, local: bool) -> sql.Composed:
    """Return a statement that sets these settings. It skips settings that an older server does not know."""
    one = sql.SQL("case when current_setting({0}, true) is not null then set_config({0}, {1}, {2}) end")
    return sql.SQL("select {}").format(
        sql.SQL(", ").join(one.format(name, value, local) for name, value in settings)
    )


def _report_warning(warned: Callable[[str], None], notice: Diagnostic) -> None:
    if notice.severity_nonlocalized == "WARNING":
        warned(notice.message_primary or "")


def _shut_down(connection: AsyncConnection[Any]) -> None:
    """Shut down the socket, so that a waiting call wakes."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)


def _cut_off(connection: LibpqAsyncConnection) -> None:
    connection.was_cut_off = True  # not the clock: uvloop's timers fire up to a millisecond early
    _shut_down(connection)
    connection.wake()  # needed if the loop has stopped watching the socket, as uvloop does after an error


async def _ask(connection: LibpqAsyncConnection, call: Call[T]) -> T:
    if call.plain:
        return await connection.ask(call)
    cursor = await connection.execute(statement(call.function), call.values)
    return call.read(await cursor.fetchall())


def with_defaults(dsn: str) -> str:
    """Return the DSN with defaults for timeouts, keepalives, name and encoding, if it does not set them."""
    ours: dict[str, str | int] = {
        "connect_timeout": CONNECT_TIMEOUT,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "application_name": "holdfast",
        # A database in SQL_ASCII would otherwise return every text as bytes.
        "client_encoding": "UTF8",
    }
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # libpq's message is left out, because it quotes the DSN and its password.
        hint = "Write postgresql://user@host/database, or host=… dbname=…."
        raise BadValue("the DSN cannot be read", field="dsn", hint=hint) from None
    return make_conninfo(dsn, **{name: value for name, value in ours.items() if name not in given})

"""The pools of a process, for whoever enqueues, looks and operates.

They have no thread and no task of their own: a connection that cannot be made is told at once and with its
reason, and an event loop that ends need not wait for anything of ours. (The pools of `psycopg_pool` only say
"timeout", after ten seconds; and their tasks now and then outlive the cancellation at the end of
`asyncio.run`, which then waits for ever.)

**A connection that died on the shelf is nobody's error.** Nothing but a round trip proves a connection, and a
round trip is what an enqueue itself takes. So whoever leases a connection gets a proven one; but a plain call
goes on one that only looks well, and is sent again where it certainly did nothing:

    used a moment ago ── the socket is silent ──► ask ──► the server says farewell instead ──┐
          │                    │                   └────► answer                             │
          │ lain for long      │ it has something to say                                     │
          └────────► prove ◄───┘                  the next one on the shelf, else a new one ◄┘

A server that restarts, or ends a session, closes the socket: that is seen by looking, for half a microsecond.
If it does so between the look and the call, its farewell is the answer, and `libpq.NEVER_RAN` says why the
call may be sent again then; an answer that was lost may not, and is told. A peer that vanished without a word
shows in no look: that is what the proof of a connection that has lain for long is for, with keepalives behind
it.
"""

import asyncio
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from holdfast import calls
from holdfast.calls import Call
from holdfast.database.copy_in import SMALLEST_COPY, Batch, aload, batches, load
from holdfast.database.libpq import NEVER_RAN, LibpqAsyncConnection, LibpqConnection
from holdfast.database.outage import Outage
from holdfast.database.pooler import Pooler
from holdfast.database.session import (
    CONNECT_TIMEOUT,
    DEADLINE,
    DUTY_SETTINGS,
    Listener,
    ListeningSession,
    Session,
    setting,
    with_defaults,
)
from holdfast.database.statements import arun_on, run_on
from holdfast.database.translation import translated
from holdfast.values.errors import DatabaseUnavailable
from holdfast.values.job import JobId, NewJob

T = TypeVar("T")
C = TypeVar("C", LibpqConnection, LibpqAsyncConnection)
S = TypeVar("S", bound="_IdleConnections[Any]")

# How long a connection that nobody needs is kept.
IDLE_SECONDS = 300.0
# How long one is used again without a proof, if it looks well.
TRUSTED_SECONDS = 1.0
# A role's or a database's default could be stricter, and claims and duties refuse to run there.
_READ_COMMITTED = "set session characteristics as transaction isolation level read committed"


class Database:
    """The pools of one process: a sync one, and an async one for each event loop that asks.

    `transaction_pooling` is for PgBouncer in transaction mode: nothing that lives in a session is used,
    neither settings nor prepared statements nor LISTEN. If it is None, the first connection finds out.
    """

    def __init__(self, dsn: str, *, transaction_pooling: bool | None = None, pool_size: int = 10) -> None:
        self.dsn = dsn
        self.pooler = Pooler(dsn, transaction_mode=transaction_pooling)
        self.pool_size = pool_size
        self._lock = threading.Lock()
        self._target = _Target(dsn, self.pooler, pool_size)
        self._pool: _Pool | None = None
        self._apools: dict[asyncio.AbstractEventLoop, _AsyncPool] = {}

    @property
    def transaction_pooling(self) -> bool | None:
        """Return the mode that was configured or detected; None until one is known."""
        return self.pooler.transaction_mode if self.pooler.is_known else None

    def run(self, call: Call[T]) -> T:
        if call.plain:
            try:
                return self._current().ask(call)
            except Exception:
                with translated(self.dsn):  # only here: nothing is entered and left where all goes well
                    raise
        with self.pooled_connection() as connection:
            return run_on(connection, call)

    async def arun(self, call: Call[T]) -> T:
        if call.plain:
            try:
                return await self._acurrent().ask(call)
            except Exception:
                with translated(self.dsn):
                    raise
        async with self.apooled_connection() as connection:
            return await arun_on(connection, call)

    def load(self, jobs: Iterable[NewJob]) -> list[JobId]:
        """Enqueue all of these or none; their ids."""
        first, rest = _first_of(batches(jobs))
        if len(first) < SMALLEST_COPY:  # and there are no more: one call is one transaction
            return [*self.run(calls.enqueue_many(first))] if first else []
        with self.pooled_connection() as connection, connection.transaction():
            return load(connection, rest, streaming=True)

    async def aload(self, jobs: Iterable[NewJob]) -> list[JobId]:
        first, rest = _first_of(batches(jobs))
        if len(first) < SMALLEST_COPY:
            return [*await self.arun(calls.enqueue_many(first))] if first else []
        async with self.apooled_connection() as connection, connection.transaction():
            return await aload(connection, rest, streaming=True)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """A dedicated connection in autocommit, outside the pool: for migrations."""
        with translated(self.dsn), psycopg.connect(with_defaults(self.dsn), autocommit=True) as connection:
            self.pooler.detect(connection)
            connection.prepare_threshold = None  # what it asks twice does not pay for losing a statement
            yield connection

    def run_patiently(self, call: Call[T]) -> T:
        """Run a call that may take minutes, whatever timeouts the role or the database has."""
        with self.connection() as connection, translated(self.dsn), connection.transaction():
            connection.execute("set transaction isolation level read committed")
            connection.execute(setting(DUTY_SETTINGS, local=True))
            return run_on(connection, call)

    def session(
        self,
        *settings: tuple[str, str],
        deadline: float = DEADLINE,
        outage: Outage | None = None,
        warned: Callable[[str], None] | None = None,
    ) -> Session:
        """A connection of a worker's own, with these session settings."""
        return Session(
            self.dsn,
            settings,
            deadline=deadline,
            pooler=self.pooler,
            outage=outage,
            warned=warned,
        )

    def listening_session(
        self,
        *settings: tuple[str, str],
        deadline: float,
        channels: Sequence[Call[str]],
        heard: Callable[[], None],
        lost: Callable[[DatabaseUnavailable], None],
        outage: Outage | None = None,
    ) -> Session:
        """One that also tells of notifications; not through a pooler of transactions."""
        return ListeningSession(
            self.dsn,
            settings,
            deadline=deadline,
            channels=channels,
            heard=heard,
            lost=lost,
            pooler=self.pooler,
            outage=outage,
        )

    def listener(self) -> Listener:
        return Listener(self.dsn)

    async def alistens(self) -> bool:
        """Return whether LISTEN works; a pooler in transaction mode would lose it."""
        if not self.pooler.is_known:
            await asyncio.to_thread(self._look)
        return not self.pooler.transaction_mode

    def _look(self) -> None:
        with self.connection():
            pass  # the connection itself detects a pooler

    def close(self) -> None:
        """Close what is not in use; what is, closes when it is given back."""
        with self._lock:
            pool, self._pool = self._pool, None
            apools, self._apools = self._apools, {}
        for apool in apools.values():
            apool.close()
        if pool is not None:
            pool.close()

    @contextlib.contextmanager
    def pooled_connection(self) -> Iterator[Connection[Any]]:
        """A connection of the pool, in autocommit, for as long as the block lasts."""
        with translated(self.dsn), self._current().connection() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def apooled_connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        with translated(self.dsn):
            async with self._acurrent().connection() as connection:
                yield connection

    @contextlib.contextmanager
    def handler_connection(self) -> Iterator[Connection[Any]]:
        """The same for code that is not ours: what it raises there stays as it is."""
        with contextlib.ExitStack() as stack:
            with translated(self.dsn):
                connection = stack.enter_context(self._current().connection())
            yield connection

    @contextlib.asynccontextmanager
    async def ahandler_connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        async with contextlib.AsyncExitStack() as stack:
            with translated(self.dsn):
                connection = await stack.enter_async_context(self._acurrent().connection())
            yield connection

    def _current(self) -> "_Pool":
        with self._lock:
            if self._pool is None or self._pool.process != os.getpid():  # a fork shares no connection
                self._pool = self._closing_after_us(_Pool(self._target))
            return self._pool

    def _acurrent(self) -> "_AsyncPool":
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._apools.get(loop)
            if pool is None:
                self._close_ended_loops()
                pool = self._apools[loop] = self._closing_after_us(_AsyncPool(self._target))
            return pool

    def _closing_after_us(self, pool: S) -> S:
        # Whoever forgets to close us leaves no connection open behind.
        weakref.finalize(self, pool.abandon)
        return pool

    def _close_ended_loops(self) -> None:
        for loop in [loop for loop in self._apools if loop.is_closed()]:
            self._apools.pop(loop).close()


class _Target(NamedTuple):
    """Where a pool connects to. It knows no `Database`, which may go before its pools do."""

    dsn: str
    pooler: Pooler
    pool_size: int


class _IdleConnections(Generic[C]):
    """Connections for whoever comes next, the one used last on top."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._idle: deque[tuple[float, C]] = deque()
        self._closed = False

    def pop(self) -> tuple[C, bool] | None:
        """The connection used last, and whether it may be trusted: used a moment ago, and silent since."""
        try:
            since, connection = self._idle.pop()
        except IndexError:
            return None
        recent = since > time.monotonic() - TRUSTED_SECONDS
        return connection, recent and not connection.wire.is_readable()

    def put(self, connection: C) -> None:
        now = time.monotonic()
        unused = connection.pgconn.transaction_status == TransactionStatus.IDLE
        if unused and not self._closed:
            self._idle.append((now, connection))
        else:
            connection.pgconn.finish()
        try:
            while self._idle[0][0] < now - IDLE_SECONDS:
                _, unneeded = self._idle.popleft()
                unneeded.pgconn.finish()
        except IndexError:  # nothing is left
            pass

    def abandon(self) -> None:
        if self.process == os.getpid():
            self.close()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(IndexError):
            while True:
                _, connection = self._idle.pop()
                connection.pgconn.finish()


class _Pool(_IdleConnections[LibpqConnection]):
    def __init__(self, target: _Target) -> None:
        super().__init__()
        self._target = target
        # A token for each connection that may be open: a semaphore takes 5.5 µs, this 0.5.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(target.pool_size):
            self._permits.put(None)

    @contextlib.contextmanager
    def connection(self) -> Iterator[LibpqConnection]:
        self._acquire_permit()
        try:
            connection = self._next_idle(trusting=False) or self._connect()
            try:
                yield connection
            finally:
                self.put(connection)
        finally:
            self._permits.put(None)

    def ask(self, call: Call[T]) -> T:
        """Carry a plain call, without a proof beforehand where the connection looks well."""
        self._acquire_permit()
        try:
            while (connection := self._next_idle(trusting=True)) is not None:
                try:
                    return connection.ask(call)
                except psycopg.Error as error:
                    if error.sqlstate not in NEVER_RAN:
                        raise
                    connection.close()
                finally:
                    self.put(connection)
            connection = self._connect()
            try:
                return connection.ask(call)
            finally:
                self.put(connection)
        finally:
            self._permits.put(None)

    def _acquire_permit(self) -> None:
        try:
            self._permits.get(timeout=CONNECT_TIMEOUT)
        except Empty:
            raise _all_in_use(self._target) from None

    def _next_idle(self, *, trusting: bool) -> LibpqConnection | None:
        while (taken := self.pop()) is not None:
            connection, trusted = taken
            if trusting and trusted:
                return connection
            try:
                connection.execute("")
            except psycopg.Error:
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                return connection
        return None

    def _connect(self) -> LibpqConnection:
        connection = LibpqConnection.connect(with_defaults(self._target.dsn), autocommit=True)
        try:
            self._target.pooler.detect(connection)
            if self._target.pooler.transaction_mode:
                connection.prepare_threshold = None
                connection.wire.prepare_nothing()
            else:
                connection.execute(_READ_COMMITTED)
        except BaseException:
            connection.close()
            raise
        return connection


class _AsyncPool(_IdleConnections[LibpqAsyncConnection]):
    """The same for one event loop, which may end without closing it."""

    def __init__(self, target: _Target) -> None:
        super().__init__()
        self._target = target
        self._permits = asyncio.BoundedSemaphore(target.pool_size)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[LibpqAsyncConnection]:
        await self._acquire_permit()
        try:
            connection = await self._next_idle(trusting=False) or await self._connect()
            try:
                yield connection
            finally:
                self.put(connection)
        finally:
            self._permits.release()

    async def ask(self, call: Call[T]) -> T:
        await self._acquire_permit()
        try:
            while (connection := await self._next_idle(trusting=True)) is not None:
                try:
                    return await connection.ask(call)
                except psycopg.Error as error:
                    if error.sqlstate not in NEVER_RAN:
                        raise
                    await connection.close()
                finally:
                    self.put(connection)
            connection = await self._connect()
            try:
                return await connection.ask(call)
            finally:
                self.put(connection)
        finally:
            self._permits.release()

    async def _acquire_permit(self) -> None:
        if not self._permits.locked():  # then it does not wait, and needs no timeout around it
            await self._permits.acquire()
            return
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await self._permits.acquire()
        except TimeoutError:
            raise _all_in_use(self._target) from None

    async def _next_idle(self, *, trusting: bool) -> LibpqAsyncConnection | None:
        while (taken := self.pop()) is not None:
            connection, trusted = taken
            if trusting and trusted:
                return connection
            try:
                await connection.execute("")
            except psycopg.Error:
                await connection.close()
            except BaseException:
                await connection.close()
                raise
            else:
                return connection
        return None

    async def _connect(self) -> LibpqAsyncConnection:
        connection = await LibpqAsyncConnection.connect(with_defaults(self._target.dsn), autocommit=True)
        try:
            await self._target.pooler.adetect(connection)
            if self._target.pooler.transaction_mode:
                connection.prepare_threshold = None
                connection.wire.prepare_nothing()
            else:
                await connection.execute(_READ_COMMITTED)
        except BaseException:
            await connection.close()
            raise
        return connection


def _all_in_use(target: _Target) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"all {target.pool_size} connections of the pool were in use for {CONNECT_TIMEOUT} s",
        hint="Hold them for shorter, or raise pool_size.",
        dsn=target.dsn,
    )


def _first_of(batches: Iterator[Batch]) -> tuple[Batch, Iterator[Batch]]:
    """The first batch, and all of them."""
    first = next(batches, Batch())
    return first, itertools.chain([first], batches)

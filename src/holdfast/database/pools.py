"""The pools of a process, for whoever enqueues, looks and operates.

They have no thread and no task of their own: a connection that cannot be made is told at once and with its
reason, and an event loop that ends need not wait for anything of ours. (The pools of `psycopg_pool` only say
"timeout", after ten seconds; and their tasks now and then outlive the cancellation at the end of
`asyncio.run`, which then waits for ever.)
"""

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from holdfast.calls import Call
from holdfast.database.carriers import arun_all_on, arun_on, run_all_on, run_on
from holdfast.database.session import CONNECT_TIMEOUT, DEADLINE, Listener, Session, complete
from holdfast.database.translation import translated
from holdfast.errors import DatabaseUnavailable

T = TypeVar("T")
C = TypeVar("C", Connection[Any], AsyncConnection[Any])
S = TypeVar("S", bound="_Shelf[Any]")

# How long a connection that nobody needs is kept.
IDLE_SECONDS = 300.0
# A role's or a database's default could be stricter, and claims and duties refuse to run there.
_READ_COMMITTED = "set session characteristics as transaction isolation level read committed"


class Database:
    """The pools of one process: a sync one, and an async one for each event loop that asks.

    `transaction_pooling` is for PgBouncer in transaction mode: nothing that lives in a session is used,
    neither settings nor prepared statements nor LISTEN.
    """

    def __init__(self, dsn: str, *, transaction_pooling: bool = False, pool_size: int = 10) -> None:
        self.dsn = dsn
        self.transaction_pooling = transaction_pooling
        self.pool_size = pool_size
        self._lock = threading.Lock()
        self._target = _Target(dsn, transaction_pooling=transaction_pooling, pool_size=pool_size)
        self._pool: _Pool | None = None
        self._apools: dict[asyncio.AbstractEventLoop, _AsyncPool] = {}

    def run(self, call: Call[T]) -> T:
        with self._leased() as connection:
            return run_on(connection, call)

    async def arun(self, call: Call[T]) -> T:
        async with self._aleased() as connection:
            return await arun_on(connection, call)

    def run_all(self, calls: Iterable[Call[T]]) -> list[T]:
        """Carry several calls in one transaction."""
        with self._leased() as connection:
            return run_all_on(connection, calls)

    async def arun_all(self, calls: Iterable[Call[T]]) -> list[T]:
        async with self._aleased() as connection:
            return await arun_all_on(connection, calls)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """A dedicated connection in autocommit, outside the pool: for migrations."""
        with translated(self.dsn), psycopg.connect(complete(self.dsn), autocommit=True) as connection:
            yield connection

    def session(self, *settings: tuple[str, str], deadline: float = DEADLINE) -> Session:
        """A connection of a worker's own, with these session settings."""
        return Session(self.dsn, settings, deadline=deadline, transaction_pooling=self.transaction_pooling)

    def listener(self) -> Listener:
        return Listener(self.dsn)

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
    def _leased(self) -> Iterator[Connection[Any]]:
        with self._lock:
            if self._pool is None or self._pool.process != os.getpid():  # a fork shares no connection
                self._pool = self._looked_after(_Pool(self._target))
            pool = self._pool
        with translated(self.dsn), pool.leased() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _aleased(self) -> AsyncIterator[AsyncConnection[Any]]:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._close_ended_loops()
            pool = self._apools.get(loop)
            if pool is None:
                pool = self._apools[loop] = self._looked_after(_AsyncPool(self._target))
        with translated(self.dsn):
            async with pool.leased() as connection:
                yield connection

    def _looked_after(self, shelf: S) -> S:
        # Whoever forgets to close us leaves no connection open behind.
        weakref.finalize(self, shelf.abandon)
        return shelf

    def _close_ended_loops(self) -> None:
        for loop in [loop for loop in self._apools if loop.is_closed()]:
            self._apools.pop(loop).close()


class _Target(NamedTuple):
    """Where a pool connects to. It knows no `Database`, which may go before its pools do."""

    dsn: str
    transaction_pooling: bool
    pool_size: int


class _Shelf(Generic[C]):
    """Connections for whoever comes next, the one used last on top."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._kept: deque[tuple[float, C]] = deque()
        self._closed = False

    def take(self) -> C | None:
        with contextlib.suppress(IndexError):
            return self._kept.pop()[1]
        return None

    def put(self, connection: C) -> None:
        unused = connection.pgconn.transaction_status == TransactionStatus.IDLE
        if unused and not self._closed:
            self._kept.append((time.monotonic(), connection))
        else:
            connection.pgconn.finish()
        with contextlib.suppress(IndexError):
            while self._kept[0][0] < time.monotonic() - IDLE_SECONDS:
                _, unneeded = self._kept.popleft()
                unneeded.pgconn.finish()

    def abandon(self) -> None:
        if self.process == os.getpid():
            self.close()

    def close(self) -> None:
        self._closed = True
        while (connection := self.take()) is not None:
            connection.pgconn.finish()


class _Pool(_Shelf[Connection[Any]]):
    def __init__(self, target: _Target) -> None:
        super().__init__()
        self._target = target
        self._free = threading.BoundedSemaphore(target.pool_size)

    @contextlib.contextmanager
    def leased(self) -> Iterator[Connection[Any]]:
        if not self._free.acquire(timeout=CONNECT_TIMEOUT):
            raise _all_in_use(self._target)
        try:
            connection = self._proven() or self._connect()
            try:
                yield connection
            finally:
                self.put(connection)
        finally:
            self._free.release()

    def _proven(self) -> Connection[Any] | None:
        while (connection := self.take()) is not None:
            try:
                connection.execute("")
            except psycopg.Error:
                connection.close()
            else:
                return connection
        return None

    def _connect(self) -> Connection[Any]:
        connection = psycopg.connect(complete(self._target.dsn), autocommit=True)
        try:
            if self._target.transaction_pooling:
                connection.prepare_threshold = None
            else:
                connection.execute(_READ_COMMITTED)
        except BaseException:
            connection.close()
            raise
        return connection


class _AsyncPool(_Shelf[AsyncConnection[Any]]):
    """The same for one event loop, which may end without closing it."""

    def __init__(self, target: _Target) -> None:
        super().__init__()
        self._target = target
        self._free = asyncio.BoundedSemaphore(target.pool_size)

    @contextlib.asynccontextmanager
    async def leased(self) -> AsyncIterator[AsyncConnection[Any]]:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await self._free.acquire()
        except TimeoutError:
            raise _all_in_use(self._target) from None
        try:
            connection = await self._proven() or await self._connect()
            try:
                yield connection
            finally:
                self.put(connection)
        finally:
            self._free.release()

    async def _proven(self) -> AsyncConnection[Any] | None:
        while (connection := self.take()) is not None:
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

    async def _connect(self) -> AsyncConnection[Any]:
        connection = await AsyncConnection.connect(complete(self._target.dsn), autocommit=True)
        try:
            if self._target.transaction_pooling:
                connection.prepare_threshold = None
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

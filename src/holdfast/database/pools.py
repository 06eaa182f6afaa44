"""The connection pools of a process, for everything except a worker's own connections.

A pool has no thread and no task. So a failed attempt to connect raises its error at once, and nothing has to
end before an event loop does. (The pools of `psycopg_pool` only raise "timeout" after ten seconds. Their
tasks sometimes outlive the cancellation at the end of `asyncio.run`, which then waits without end.)

**An idle connection that has died causes no error.** Only a round trip proves that a connection works. So a
block that checks out a connection gets one that was just proven. A plain call, such as an enqueue, is itself
one round trip, and a proof would add another. It skips the proof if the connection looks usable:

1. Take the idle connection that was used last. If there is none, open a new one and send the call.
2. If the connection was used a moment ago and its socket is not readable, send the call without a proof.
3. Otherwise prove the connection, and then send the call. If the proof fails, start again at 1.
4. If the server ended the session before the call ran, start again at 1.

A server that restarts or ends a session closes the socket, and a closed socket is readable. The check of the
socket takes half a microsecond. If the session ends after the check, `libpq.NEVER_RAN` explains why the call
may be sent again. A call whose answer was lost may not be sent again, and raises.

A peer that vanished silently passes the check of the socket. Therefore a connection is proven after a longer
idle time, and keepalives watch it.
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

from holdfast.database import enqueue_many
from holdfast.database.copy_in import SMALLEST_COPY, Batch, aload, batches, load
from holdfast.database.libpq import NEVER_RAN, LibpqAsyncConnection, LibpqConnection
from holdfast.database.outage import Outage, Refusals
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
from holdfast.values.call import Call
from holdfast.values.errors import DatabaseUnavailable
from holdfast.values.job import JobId, NewJob

T = TypeVar("T")
C = TypeVar("C", LibpqConnection, LibpqAsyncConnection)
S = TypeVar("S", bound="_IdleConnections[Any]")

# An idle connection may be kept for this time. The pool closes older ones when a connection comes back.
IDLE_SECONDS = 300.0
# A connection that was idle for less than this is used without a proof if its socket is not readable.
TRUSTED_SECONDS = 1.0
# The default of a role or a database may be stricter, and claims and duties refuse to run with it.
_READ_COMMITTED = "set session characteristics as transaction isolation level read committed"


class Database:
    """The pools of one process: a sync one, and an async one for each event loop.

    `transaction_pooling` is for PgBouncer in transaction mode. It makes the pools avoid everything that
    belongs to a session: settings, prepared statements and LISTEN. If it is None, the first connection
    detects the mode.
    """

    def __init__(self, dsn: str, *, transaction_pooling: bool | None = None, pool_size: int = 10) -> None:
        self.dsn = dsn
        self.pooler = Pooler(dsn, transaction_mode=transaction_pooling)
        self.pool_size = pool_size
        self.refusals = Refusals()
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
                with translated(self.dsn):  # only after an error, because it would slow down each call
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
        """Enqueue these jobs, all or none, and return their ids."""
        first, all_batches = _first_of(batches(jobs))
        if len(first) < SMALLEST_COPY:  # so it is the only batch, and one call enqueues all jobs or none
            return [*self.run(enqueue_many.enqueue_many(first))] if first else []
        with self.pooled_connection() as connection, connection.transaction():
            return load(connection, all_batches, streaming=True)

    async def aload(self, jobs: Iterable[NewJob]) -> list[JobId]:
        first, all_batches = _first_of(batches(jobs))
        if len(first) < SMALLEST_COPY:
            return [*await self.arun(enqueue_many.enqueue_many(first))] if first else []
        async with self.apooled_connection() as connection, connection.transaction():
            return await aload(connection, all_batches, streaming=True)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """Open a connection in autocommit outside the pool: for migrations."""
        with translated(self.dsn), psycopg.connect(with_defaults(self.dsn), autocommit=True) as connection:
            self.pooler.detect(connection)
            connection.prepare_threshold = None  # a pooler may lose prepared statements
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
        """Return a connection for one worker, with these session settings."""
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
        channels: Sequence[Call[str] | str],
        heard: Callable[[set[bytes]], None],
        lost: Callable[[DatabaseUnavailable], None],
        outage: Outage | None = None,
        warned: Callable[[str], None] | None = None,
    ) -> Session:
        """Return a session that also reports notifications. It needs a connection that keeps its session."""
        return ListeningSession(
            self.dsn,
            settings,
            deadline=deadline,
            channels=channels,
            heard=heard,
            lost=lost,
            pooler=self.pooler,
            outage=outage,
            warned=warned,
        )

    def listener(self) -> Listener:
        return Listener(self.dsn)

    async def alistens(self) -> bool:
        """Return whether LISTEN works; a pooler in transaction mode would lose it."""
        if not self.pooler.is_known:
            await asyncio.to_thread(self._detect_pooler)
        return not self.pooler.transaction_mode

    def _detect_pooler(self) -> None:
        with self.connection():
            pass  # connection() has detected it

    def close(self) -> None:
        """Close idle connections. A connection in use closes when it is returned to the pool."""
        with self._lock:
            pool, self._pool = self._pool, None
            apools, self._apools = self._apools, {}
        for apool in apools.values():
            apool.close()
        if pool is not None:
            pool.close()

    def close_unused(self, seconds: float) -> None:
        """Close the connections that were not used for this long."""
        with self._lock:
            pool, apools = self._pool, list(self._apools.values())
        if pool is not None:
            pool.close_unused(seconds)
        for apool in apools:
            apool.close_unused(seconds)

    @contextlib.contextmanager
    def pooled_connection(self) -> Iterator[Connection[Any]]:
        """Check out a connection in autocommit for the length of the block."""
        with translated(self.dsn), self._current().connection() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def apooled_connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        with translated(self.dsn):
            async with self._acurrent().connection() as connection:
                yield connection

    @contextlib.contextmanager
    def handler_connection(self) -> Iterator[Connection[Any]]:
        """Check out a connection for a handler's code. Its errors are not translated."""
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
            if self._pool is None or self._pool.process != os.getpid():  # a fork needs its own pool
                self._pool = self._with_finalizer(_Pool(self._target))
            return self._pool

    def _acurrent(self) -> "_AsyncPool":
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._apools.get(loop)
            if pool is None:
                self._close_ended_loops()
                pool = self._apools[loop] = self._with_finalizer(_AsyncPool(self._target))
            return pool

    def _with_finalizer(self, pool: S) -> S:
        # If this Database is never closed, its connections are closed when it is garbage-collected.
        pool.finalizer = weakref.finalize(self, pool.abandon)
        return pool

    def _close_ended_loops(self) -> None:
        for loop in [loop for loop in self._apools if loop.is_closed()]:
            self._apools.pop(loop).close()


class _Target(NamedTuple):
    """The server of a pool.

    A pool refers to this instead of its `Database`. Otherwise it would keep the `Database` alive, whose pools
    are closed when it is garbage-collected.
    """

    dsn: str
    pooler: Pooler
    pool_size: int


class _IdleConnections(Generic[C]):
    """A stack of idle connections, with the last used one on top. The base of both pools."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._idle: deque[tuple[float, C]] = deque()
        self._closed = False
        # Holds the pool until its `Database` ends, so a pool that is closed earlier detaches it.
        self.finalizer: weakref.finalize[..., Any] | None = None

    def pop(self) -> tuple[C, bool] | None:
        """Take the connection used last, and return it with whether it looks usable without a proof."""
        try:
            since, connection = self._idle.pop()
        except IndexError:
            return None
        recent = since > time.monotonic() - TRUSTED_SECONDS
        return connection, recent and not connection.wire.is_readable()

    def put(self, connection: C) -> None:
        """Keep a connection for the next call if it is usable; close it otherwise. Close outdated ones."""
        now = time.monotonic()
        # Neither closed, nor in a transaction, nor in a call that was interrupted.
        is_usable = connection.pgconn.transaction_status == TransactionStatus.IDLE
        if is_usable and not self._closed:
            self._idle.append((now, connection))
        else:
            connection.pgconn.finish()
        try:
            if self._idle[0][0] < now - IDLE_SECONDS:
                self.close_unused(IDLE_SECONDS)
        except IndexError:  # none is left
            pass

    def close_unused(self, seconds: float) -> None:
        """Close the connections that were not used for this long. Another thread may call this."""
        since = time.monotonic() - seconds
        with contextlib.suppress(IndexError):  # none is left
            while self._idle[0][0] < since:
                at, connection = self._idle.popleft()
                if at >= since:  # another thread took the outdated one
                    self._idle.append((at, connection))
                    return
                connection.pgconn.finish()

    def abandon(self) -> None:
        """Close the connections, unless they belong to the parent of this forked process."""
        if self.process == os.getpid():
            self.close()

    def close(self) -> None:
        self._closed = True
        if self.finalizer is not None:
            self.finalizer.detach()
        with contextlib.suppress(IndexError):
            while True:
                _, connection = self._idle.pop()
                connection.pgconn.finish()


class _Pool(_IdleConnections[LibpqConnection]):
    def __init__(self, target: _Target) -> None:
        super().__init__()
        self._target = target
        # One token for each connection that may be open. A semaphore takes 5.5 µs, this queue 0.5 µs.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(target.pool_size):
            self._permits.put(None)

    @contextlib.contextmanager
    def connection(self) -> Iterator[LibpqConnection]:
        """Check out a proven connection for the length of the block."""
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
        """Run a plain call on a connection that looks usable. The module's docstring lists the steps."""
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
                    self.put(connection)  # a closed connection is not kept
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
        """Take an idle connection that is proven or, if `trusting`, looks usable. Close those that fail."""
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
    """The pool of one event loop, which may end without closing the pool."""

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
        if not self._permits.locked():  # a permit is free, so no timeout is needed
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
        hint="Hold connections for a shorter time, or raise pool_size.",
        dsn=target.dsn,
    )


def _first_of(batches: Iterator[Batch]) -> tuple[Batch, Iterator[Batch]]:
    """Return the first batch, and an iterator of all batches."""
    first = next(batches, Batch())
    return first, itertools.chain([first], batches)

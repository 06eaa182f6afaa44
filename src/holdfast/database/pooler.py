"""Detects a pooler in transaction mode in front of the database, such as PgBouncer.

In this mode, each transaction may run in another session of the server. Prepared statements, LISTEN and
settings get lost, or reach other clients. Each `Database` checks for it once, with its first connection:

    the server's pid is the one announced to the connection ─── yes ──► no pooler
                         │ no: a pooler has invented that pid
    two connections share sessions ─── yes ──► transaction mode
                         └─ no ──► session mode

The first check costs one round trip. The second runs only behind a pooler.
"""

import asyncio
import contextlib
import select
import time
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import ExecStatus
from psycopg.rows import scalar_row

from holdfast.telemetry import emit

_PID = "select pg_backend_pid()"
# In session mode a query waits while the pool has no free session.
_PATIENCE_SECONDS = 1.0
# Each connection asks twice in a row, to detect a pooler that alternates between two sessions.
_ORDER = (0, 1, 1, 0) * 3


class Pooler:
    """The pooler in front of a `Database`, as detected once for all its connections."""

    def __init__(self, dsn: str, *, transaction_mode: bool | None) -> None:
        """`transaction_mode` is the user's setting; None asks for detection."""
        self._dsn = dsn
        self.is_configured = transaction_mode is not None
        self.is_known = self.is_configured
        self.transaction_mode = bool(transaction_mode)

    def detect(self, connection: Connection[Any]) -> None:
        """Detect the mode, starting from a new connection."""
        if self.is_known:
            return
        pid = connection.cursor(row_factory=scalar_row).execute(_PID, prepare=False).fetchone()
        is_behind_one = pid != connection.info.backend_pid
        self._conclude(is_behind_one and share_sessions(self._dsn))

    async def adetect(self, connection: AsyncConnection[Any]) -> None:
        if self.is_known:
            return
        cursor = await connection.cursor(row_factory=scalar_row).execute(_PID, prepare=False)
        is_behind_one = await cursor.fetchone() != connection.info.backend_pid
        self._conclude(is_behind_one and await asyncio.to_thread(share_sessions, self._dsn))

    def _conclude(self, transaction_mode: bool | None) -> None:
        if transaction_mode is None or self.is_known:  # None: try again with the next connection
            return
        self.transaction_mode, self.is_known = transaction_mode, True
        if transaction_mode:
            emit("pooler.found", mode="transaction", setting="transaction_pooling=True")


def share_sessions(dsn: str) -> bool | None:
    """Return whether two connections share sessions, or None if they could not be made.

    In session mode a connection keeps its session, and no other connection gets it. So True is certain.
    """
    pids: tuple[set[int], set[int]] = (set(), set())
    with contextlib.suppress(psycopg.Error), contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(contextlib.closing(psycopg.connect(dsn, autocommit=True, connect_timeout=5)))
            for _ in pids
        ]
        for index in _ORDER:
            pid = _pid(connections[index])
            if pid is None:  # a query that waits for a session is a sign of session mode
                return False
            pids[index].add(pid)
            if pids[0] & pids[1] or len(pids[index]) > 1:
                return True
        return False
    return None


def _pid(connection: Connection[Any]) -> int | None:
    """Return the pid of the session that answers, or None if no answer comes in time."""
    pgconn, poll = connection.pgconn, select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    pgconn.send_query(_PID.encode())
    pgconn.flush()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while pgconn.is_busy():
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        pgconn.consume_input()
    result = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    if result is None or result.status != ExecStatus.TUPLES_OK:
        raise psycopg.OperationalError("the pooler refused a query")
    return int(result.get_value(0, 0) or b"0")

"""Whether a pooler in transaction mode stands before the database, such as PgBouncer.

There, each transaction may run in another session of the server: prepared statements, LISTEN and settings get
lost, or reach somebody else. Each `Database` finds out once, with its first connection:

    the server has the pid that the connection was told ─── yes ──► no pooler
                         │ no: a pooler made that one up
    two connections get each other's sessions ─── yes ──► transaction mode
                         └─ no ──► session mode

The first question costs one round trip. The second one is asked only behind a pooler.
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

from holdfast.events import emit

_PID = "select pg_backend_pid()"
# In session mode a connection waits while the pool has no session left for it.
_PATIENCE_SECONDS = 1.0
# Twice in a row, so that a pooler that hands out two sessions in turn is found too.
_ORDER = (0, 1, 1, 0) * 3


class Pooler:
    """What is known of the pooler, for all connections of one `Database`."""

    def __init__(self, dsn: str, *, transaction_mode: bool | None) -> None:
        """`transaction_mode` is what the user said, if anything."""
        self._dsn = dsn
        self.told = transaction_mode is not None
        self.is_known = self.told
        self.transaction_mode = bool(transaction_mode)

    def look(self, connection: Connection[Any]) -> None:
        """Find out by way of a connection that was just made."""
        if self.is_known:
            return
        pid = connection.cursor(row_factory=scalar_row).execute(_PID, prepare=False).fetchone()
        stands_there = pid != connection.info.backend_pid
        self._conclude(stands_there and hands_on_sessions(self._dsn))

    async def alook(self, connection: AsyncConnection[Any]) -> None:
        if self.is_known:
            return
        cursor = await connection.cursor(row_factory=scalar_row).execute(_PID, prepare=False)
        stands_there = await cursor.fetchone() != connection.info.backend_pid
        self._conclude(stands_there and await asyncio.to_thread(hands_on_sessions, self._dsn))

    def _conclude(self, transaction_mode: bool | None) -> None:
        if transaction_mode is None or self.is_known:
            return
        self.transaction_mode, self.is_known = transaction_mode, True
        if transaction_mode:
            emit("pooler.found", mode="transaction", setting="transaction_pooling=True")


def hands_on_sessions(dsn: str) -> bool | None:
    """Return whether two connections get each other's sessions; None if they could not be made.

    In session mode neither changes its session, and no two have the same at once. So a yes is certain.
    """
    seen: tuple[set[int], set[int]] = (set(), set())
    with contextlib.suppress(psycopg.Error), contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(contextlib.closing(psycopg.connect(dsn, autocommit=True, connect_timeout=5)))
            for _ in seen
        ]
        for which in _ORDER:
            pid = _pid(both[which])
            if pid is None:
                return False
            seen[which].add(pid)
            if seen[0] & seen[1] or len(seen[which]) > 1:
                return True
        return False
    return None


def _pid(connection: Connection[Any]) -> int | None:
    """Return the pid of the session that answers; None if no answer comes in time."""
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

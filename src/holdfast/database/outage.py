"""Reports once when a worker loses its database and once when it is back, for all connections together.

Each connection notices an outage by itself. The outage begins when the first one fails, and ends when all of
them work again. An idle connection may be found broken later. It was made before that outage ended, so its
failure does not begin a new one.
"""

import math
import random
import threading
import time
from collections.abc import Iterator

from holdfast.telemetry import emit
from holdfast.values.errors import DatabaseUnavailable, TooManyConnections

# A worker warns again of refused connections only after none was refused for this long.
REFUSED_SECONDS = 60.0
# The first and the longest pause before a starting worker that was refused tries again.
FIRST_CONNECT_PAUSE = 0.25
LONGEST_CONNECT_PAUSE = 4.0


def connect_pauses() -> Iterator[float]:
    """Yield the pauses between tries to connect, without end.

    They are random, because many workers may start together.
    """
    pause = FIRST_CONNECT_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        pause = min(pause * 2, LONGEST_CONNECT_PAUSE)


class Refusals:
    """Warns that the server has no connection left: once, however many calls of the process find that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warn_at = -math.inf

    def warn(self, error: TooManyConnections, **fields: str) -> None:
        with self._lock:
            now, warn_at = time.monotonic(), self._warn_at
            self._warn_at = now + REFUSED_SECONDS
        if now >= warn_at:
            emit("connections.refused", **fields, needs="1 when idle, 3 when busy", error=error)


class Outage:
    """An outage as one worker sees it, shared by its connections, which run in several threads."""

    def __init__(self, refusals: Refusals | None = None) -> None:
        self._refusals = refusals or Refusals()
        self._lock = threading.Lock()
        self._since = 0.0
        self._worker = ""
        # The connections that have failed since the outage began. Empty without an outage.
        self.failing: set[str] = set()
        # The number of outages that have ended.
        self.ended = 0

    def name_worker(self, worker: str) -> None:
        """Set the worker's id for the events that follow."""
        self._worker = worker

    def failed(self, purpose: str, error: DatabaseUnavailable, *, made: int | None) -> None:
        """Note that this connection failed.

        `made` is the number of outages that had ended when it was made, or `None` if it could not be made.
        """
        if isinstance(error, TooManyConnections):
            self._refusals.warn(error, worker=self._worker)
            return
        with self._lock:
            if made is not None and made < self.ended:
                return
            first = not self.failing
            self.failing.add(purpose)
            if first:
                self._since = time.monotonic()
        if first:
            emit("database.lost", worker=self._worker, error=error)

    def recovered(self, purpose: str) -> None:
        """Note that this connection works again."""
        with self._lock:
            if purpose not in self.failing:
                return
            self.failing.discard(purpose)
            last, seconds = not self.failing, time.monotonic() - self._since
            self.ended += last
        if last:
            emit("database.back", worker=self._worker, after=f"{seconds:.1f}s")

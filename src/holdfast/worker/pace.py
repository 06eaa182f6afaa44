"""Measures how many jobs a worker runs in a second."""

import time

# The window in which the rate is measured. A shorter one is too inexact, except with many jobs.
RATE_WINDOW = 0.1
FIRST_RATE_WINDOW = 0.002
ENOUGH_JOBS = 10


class Pace:
    """Jobs per second, over about the last half second.

    After an idle period the rate is read after a few milliseconds. A worker may run 20,000 jobs in half a
    second, and would otherwise be short of jobs for much of it.
    """

    def __init__(self) -> None:
        # Jobs that ended since the rate was last read.
        self.jobs = 0
        self.per_second = 0.0
        self._since = time.monotonic()
        self._window = RATE_WINDOW

    def begin(self) -> None:
        """Start again after an idle period, which must not count."""
        self.jobs, self._since, self._window = 0, time.monotonic(), FIRST_RATE_WINDOW

    def measure(self) -> float:
        """Measure the rate again if enough time has passed, and return it."""
        elapsed = time.monotonic() - self._since
        if elapsed >= RATE_WINDOW or (elapsed >= self._window and self.jobs >= ENOUGH_JOBS):
            # The longer the window, the less the earlier rate counts. Each of the first windows replaces the
            # rate.
            weight = min(max(elapsed, 0.5), 1.0) if self._window == RATE_WINDOW else 1.0
            self.per_second = (1 - weight) * self.per_second + weight * self.jobs / elapsed
            self.jobs, self._since = 0, time.monotonic()
            self._window = min(self._window * 4, RATE_WINDOW)
        return self.per_second

"""Wakes the event loop at each millisecond while many jobs run, so that short sleeps stay short.

An event loop waits in whole milliseconds. If it begins to wait 0.1 ms before a handler's sleep is over, it
wakes 0.9 ms too late. A hundred handlers that sleep for one millisecond each are soon in step. They then lose
a tenth of their time to this.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
import time

from holdfast.worker.held import HeldJobs

# From this many jobs a second on, a thousand wake-ups a second pay off. They take 1 % of a core.
BUSY_RATE = 5000
MILLISECOND = 1_000_000
# The loop rounds its clock down to milliseconds, so a sleep is over just after a full one.
JUST_AFTER = 20_000
TIMES_ARE_OF_THE_CLOCK = 1  # TFD_TIMER_ABSTIME


class MillisecondTimer:
    def __init__(self, held: HeldJobs) -> None:
        self._held = held
        self._timer: int | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def adjust(self, pace: float) -> None:
        """Run the timer from BUSY_RATE jobs a second on, and stop it below."""
        if pace < BUSY_RATE:
            self.stop()
        elif self._timer is None and self._held.running:
            self._timer = _every_millisecond()
            if self._timer is not None:
                asyncio.get_running_loop().add_reader(self._timer, self._expired)

    def stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            asyncio.get_running_loop().remove_reader(timer)
            os.close(timer)

    def _expired(self) -> None:
        if self._timer is not None and self._held.running:
            with contextlib.suppress(BlockingIOError):
                os.read(self._timer, 8)
        else:
            self.stop()  # no handler sleeps


def _every_millisecond() -> int | None:
    """Return a descriptor that is readable at every millisecond; None if the system has no such timer."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # Python has these two from 3.13 on
    timer: int = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        return None  # too many files are open
    first = (time.monotonic_ns() // MILLISECOND + 1) * MILLISECOND + JUST_AFTER
    # The interval and the first time, each in seconds and nanoseconds.
    times = (ctypes.c_long * 4)(0, MILLISECOND, *divmod(first, 10**9))
    libc.timerfd_settime(timer, TIMES_ARE_OF_THE_CLOCK, times, None)
    return timer

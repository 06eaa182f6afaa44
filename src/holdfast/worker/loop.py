"""The worker's only loop: every background duty is a step that it repeats."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from holdfast.telemetry import emit
from holdfast.values.errors import HoldfastError, TooManyConnections, WorkerLost

Step = Callable[[], Awaitable[float | None]]

LONGEST_PAUSE = 2.0
# A new worker delays its background work for this long, so that its first jobs get the machine.
STARTUP_SECONDS = 0.25


async def every(
    seconds: float, step: Step, *, name: str, wake: asyncio.Event | None = None, first: float | None = 0.0
) -> None:
    """Repeat a step until cancelled: after `seconds`, after the pause that it returns, or when `wake` is set.

    The first run comes after `first` seconds, even if `wake` is set before. With None it comes when `wake` is
    set.

    A step that fails is logged and tried again, because a worker survives an outage of the database. Only
    `WorkerLost` is raised.
    """
    wake = wake or asyncio.Event()
    failures = 0
    last_error: Exception | None = None
    if first is None:
        await wake.wait()
    else:
        await asyncio.sleep(first)
    while True:
        wake.clear()
        try:
            pause = await step()
            if failures:
                emit(f"{name}.resumed", failures=failures, error=last_error)
            failures = 0
        except WorkerLost:
            raise
        except Exception as error:  # noqa: BLE001 - a bug in one duty must not end the worker
            wake.clear()  # the failure itself may have set it during the step
            failures, last_error = failures + 1, error
            pause = _pause(failures, seconds)
            kind = "failed" if isinstance(error, HoldfastError) else "broken"
            # The 1st, 2nd, 4th, 8th …: an outage is not logged a thousand times.
            # And refused connections are reported once, by the session.
            if failures & (failures - 1) == 0 and not isinstance(error, TooManyConnections):
                emit(f"{name}.{kind}", error=error, failures=failures)
        await wait(wake, seconds if pause is None else pause)


def _pause(failures: int, seconds: float) -> float:
    """Return a random pause that grows with each failure, but not beyond the step's own interval."""
    longest = min(seconds or LONGEST_PAUSE, LONGEST_PAUSE)
    return min(0.1 * 2.0 ** min(failures, 10), longest) * random.uniform(0.5, 1.0)  # noqa: S311


async def wait(wake: asyncio.Event, seconds: float) -> None:
    """Wait until `wake` is set; a timer sets it after `seconds`."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    # A timer that sets the event is faster than asyncio.timeout, and a claim may wait for this.
    timer = asyncio.get_running_loop().call_later(seconds, wake.set)
    try:
        await wake.wait()
    finally:
        timer.cancel()

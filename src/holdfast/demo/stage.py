"""Sets up the database of the demo, and keeps the demo from hanging."""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

CLEAN_UP_SECONDS = 6.0


@contextmanager
def on_a_database(dsn: str | None) -> Iterator[None]:
    """Set the database for this process and those it starts: the given one, or a new embedded one.

    The embedded one lives in a temporary directory, so that it meets no other data and leaves none.
    """
    if dsn:
        with _environment(HOLDFAST_DSN=dsn):
            yield
    else:
        directory = tempfile.TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True)
        with directory as home, _environment(HOLDFAST_DSN="", HOLDFAST_HOME=home):
            yield


@contextmanager
def _environment(**ours: str) -> Iterator[None]:
    before = {name: os.environ[name] for name in ours if name in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the time of the demo, even if a database hangs, and clean up after a signal."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"something hung: it had not ended after {seconds:.0f} s")

    def go(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {
        signal.SIGALRM: signal.signal(signal.SIGALRM, ring),
        signal.SIGTERM: signal.signal(signal.SIGTERM, go),
        signal.SIGHUP: signal.signal(signal.SIGHUP, go),
    }
    signal.setitimer(signal.ITIMER_REAL, seconds, CLEAN_UP_SECONDS)  # once more, if cleaning up hangs as well
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)

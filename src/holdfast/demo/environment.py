"""The database and the time limit of the demo."""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

CLEAN_UP_SECONDS = 6.0


@contextmanager
def database_for_demo(dsn: str | None) -> Iterator[None]:
    """Set the database of this process and its workers: the given one, or a new embedded one.

    The embedded one is in a temporary directory, so it finds no other data and leaves none.
    """
    if dsn:
        with _environment(HOLDFAST_DSN=dsn):
            yield
    else:
        directory = tempfile.TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True)
        with directory as home, _environment(HOLDFAST_DSN="", HOLDFAST_HOME=home):
            yield


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time of the demo, even if a database hangs, and clean up after a signal."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"something hung: it had not ended after {seconds:.0f} s")

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {
        signal.SIGALRM: signal.signal(signal.SIGALRM, expire),
        signal.SIGTERM: signal.signal(signal.SIGTERM, leave),
        signal.SIGHUP: signal.signal(signal.SIGHUP, leave),
    }
    signal.setitimer(signal.ITIMER_REAL, seconds, CLEAN_UP_SECONDS)  # again, if cleaning up hangs too
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)

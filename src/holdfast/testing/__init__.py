"""Fixtures for pytest: a real PostgreSQL, a fresh database for each test, and a clock that moves.

They are available as soon as Holdfast is installed:

    def test_a_welcome_is_sent_after_an_hour(hf, clock, drain, assert_enqueued):
        job = hf.enqueue("mail.welcome", {"user_id": 7}, delay=3600)
        assert_enqueued("mail.welcome", args={"user_id": 7}, delay=3600)
        clock.advance(hours=1)
        drain()
        assert job.refresh().state == "completed"

The server is the embedded one, without fsync. Set HOLDFAST_TEST_DSN to use another one. It needs a
superuser's DSN, because databases are created and dropped there.

Each fixture is also a function in this package, which takes the `Holdfast` as its first argument. Every
pytest run loads this package where Holdfast is installed. So it loads nothing that `import holdfast` does
not, and a worker only when one runs.
"""

from holdfast.testing.assertions import aassert_enqueued, arefute_enqueued, assert_enqueued, refute_enqueued
from holdfast.testing.clocks import Clock
from holdfast.testing.crashes import Crash, Crashes
from holdfast.testing.draining import adrain_queue, drain_queue
from holdfast.testing.fixtures import (
    SETTINGS,
    aassert_enqueued_fixture,
    adrain,
    arefute_enqueued_fixture,
    assert_enqueued_fixture,
    clock,
    crash,
    drain,
    hf,
    holdfast_dsn,
    holdfast_server,
    holdfast_template,
    inline_fixture,
    refute_enqueued_fixture,
)
from holdfast.testing.inline_mode import HandlerFailed, inline

__all__ = [
    "SETTINGS",
    "Clock",
    "Crash",
    "Crashes",
    "HandlerFailed",
    "aassert_enqueued",
    "aassert_enqueued_fixture",
    "adrain",
    "adrain_queue",
    "arefute_enqueued",
    "arefute_enqueued_fixture",
    "assert_enqueued",
    "assert_enqueued_fixture",
    "clock",
    "crash",
    "drain",
    "drain_queue",
    "hf",
    "holdfast_dsn",
    "holdfast_server",
    "holdfast_template",
    "inline",
    "inline_fixture",
    "refute_enqueued",
    "refute_enqueued_fixture",
]

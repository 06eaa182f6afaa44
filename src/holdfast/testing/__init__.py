"""Fixtures for pytest: a real PostgreSQL, a fresh database for each test, and a clock that moves.

They are there as soon as Holdfast is installed:

    def test_a_welcome_is_sent_after_an_hour(hf, clock, drain, assert_enqueued):
        job = hf.enqueue("mail.welcome", {"user_id": 7}, delay=3600)
        assert_enqueued("mail.welcome", args={"user_id": 7}, delay=3600)
        clock.advance(hours=1)
        drain()
        assert job.refresh().state == "completed"

The server is the embedded one, without fsync; set HOLDFAST_TEST_DSN to use another (a superuser's DSN:
databases are made and dropped there).

What the fixtures do is here as functions too, for those who do without them: each takes the `Holdfast`
first. The package is loaded in every run of pytest of everybody who has Holdfast, so it loads nothing that
`import holdfast` does not: a worker only when one is to run.
"""

from holdfast.testing.clocks import Clock
from holdfast.testing.crashing import Crash, Crashes
from holdfast.testing.draining import adrain_queue, drain_queue
from holdfast.testing.expecting import aassert_enqueued, arefute_enqueued, assert_enqueued, refute_enqueued
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
from holdfast.testing.inlining import HandlerFailed, inline

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

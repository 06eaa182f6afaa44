"""While jobs rush through, the event loop is woken at each millisecond; and at no other time."""

import asyncio
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.worker import millisecond_timer
from holdfast.worker.held import HeldJobs
from holdfast.worker.millisecond_timer import BUSY_RATE, MillisecondTimer
from tests.fixtures import Counts, Drain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its timer is Linux's")


def timers() -> int:
    """How many of them this process has open."""
    links = (_link(file) for file in Path("/proc/self/fd").iterdir())
    return sum(link == "anon_inode:[timerfd]" for link in links)


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except FileNotFoundError:  # that of the list itself
        return ""


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - it comes true by a callback of the loop
            await asyncio.sleep(0)


def test_its_timer_comes_again_and_again() -> None:
    timer = millisecond_timer._every_millisecond()
    assert timer is not None
    waiting = select.poll()
    waiting.register(timer, select.POLLIN)
    try:
        for _ in range(3):
            assert waiting.poll(15_000)
            assert int.from_bytes(os.read(timer, 8), sys.byteorder) >= 1
    finally:
        os.close(timer)


def test_it_ticks_at_a_brisk_pace_alone_and_while_something_runs() -> None:
    async def main() -> None:
        held, before = HeldJobs(), timers()
        keeps_time = MillisecondTimer(held)
        keeps_time.adjust(BUSY_RATE)
        assert not keeps_time.is_running  # for nothing runs
        held.running.add("a job")  # type: ignore[arg-type]  # it is only counted
        keeps_time.adjust(BUSY_RATE - 1)
        assert not keeps_time.is_running
        keeps_time.adjust(BUSY_RATE)
        keeps_time.adjust(BUSY_RATE)
        assert keeps_time.is_running
        assert timers() == before + 1
        keeps_time.adjust(BUSY_RATE - 1)
        assert not keeps_time.is_running
        keeps_time.adjust(BUSY_RATE)
        held.running.clear()
        await settled(lambda: not keeps_time.is_running)
        assert timers() == before

    asyncio.run(main())


def test_a_worker_keeps_time_while_its_handlers_run(
    hf: Holdfast, drain: Drain, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[MillisecondTimer] = []

    class Seen(MillisecondTimer):
        def __init__(self, held: HeldJobs) -> None:
            super().__init__(held)
            made.append(self)

        def _expired(self) -> None:
            """It must be told to stop."""

    @hf.task(name="sleep")
    async def sleep() -> None:
        await settled(lambda: made[0].is_running)

    monkeypatch.setattr("holdfast.worker.runtime.MillisecondTimer", Seen)
    monkeypatch.setattr(millisecond_timer, "BUSY_RATE", 0)
    before = timers()
    sleep.enqueue()
    drain()
    assert counts() == {"completed": 1}
    assert timers() == before


def test_a_worker_without_such_a_timer_does_without(
    hf: Holdfast, drain: Drain, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.task(name="sleep")
    async def sleep() -> None:
        await asyncio.sleep(0.001)

    monkeypatch.setattr(millisecond_timer, "BUSY_RATE", 0)
    monkeypatch.setattr(millisecond_timer, "_every_millisecond", lambda: None)
    hf.enqueue_many(sleep.call() for _ in range(20))
    drain()
    assert counts() == {"completed": 20}

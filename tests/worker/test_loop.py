"""The one loop: a step that fails is tried again, and told about."""

import asyncio
from typing import Any

import pytest

from holdfast import DatabaseUnavailable, WorkerLost
from holdfast.worker.loop import every
from tests.waiting import Told


def ran(step: Any, **options: Any) -> None:
    """Run the loop until the step has had enough."""

    async def main() -> None:
        enough = asyncio.Event()

        async def watched() -> Any:
            return await step(enough)

        loop = asyncio.create_task(every(options.pop("seconds", 0.001), watched, name="step", **options))
        ended = asyncio.create_task(enough.wait())
        await asyncio.wait({loop, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        loop.cancel()
        await asyncio.wait({loop})
        if not loop.cancelled():
            loop.result()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_step_that_fails_is_told_about_and_tried_again(told: Told) -> None:
    errors = [DatabaseUnavailable("away"), DatabaseUnavailable("away"), None, ZeroDivisionError()]

    async def step(enough: Any) -> None:
        if not errors:
            enough.set()
        elif error := errors.pop(0):
            raise error

    ran(step)
    assert [(name, fields["failures"]) for name, fields in told.events] == [
        ("step.failed", 1),
        ("step.failed", 2),
        ("step.resumed", 2),
        ("step.broken", 1),
        ("step.resumed", 1),
    ]


def test_the_first_time_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    sleep = asyncio.sleep

    def noted(seconds: float) -> Any:
        naps.append(seconds)
        return sleep(0)

    async def step(enough: Any) -> None:
        assert naps == [60]
        enough.set()

    monkeypatch.setattr("holdfast.worker.loop.asyncio.sleep", noted)
    ran(step, first=60)
    assert naps[0] == 60


def test_the_loss_of_the_worker_is_passed_on() -> None:
    async def step(_enough: Any) -> None:
        raise WorkerLost("gone")

    with pytest.raises(WorkerLost):
        ran(step)


def test_a_step_says_how_long_to_wait_and_is_woken_before() -> None:
    async def main() -> None:
        wake = asyncio.Event()
        looks: list[int] = []

        async def step() -> float:
            looks.append(1)
            return 3600

        loop = asyncio.create_task(every(3600, step, name="step", wake=wake))
        for expected in (1, 2, 3):
            while len(looks) < expected:  # noqa: ASYNC110
                await asyncio.sleep(0)
            wake.set()
        loop.cancel()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_failure_that_wakes_its_own_step_does_not_skip_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.loop._pause", lambda *_: 3600)

    async def main() -> None:
        wake = asyncio.Event()
        tries: list[int] = []

        async def step() -> None:
            tries.append(1)
            wake.set()  # a lost connection does this
            await asyncio.sleep(0)
            raise DatabaseUnavailable("away")

        loop = asyncio.create_task(every(3600, step, name="step", wake=wake))
        for expected in (1, 2):
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(tries) == expected
            wake.set()  # a signal during the pause still ends it
        loop.cancel()

    asyncio.run(main())


def test_a_long_outage_is_not_told_a_thousand_times(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.loop._pause", lambda *_: 0)
    failures = 0

    async def step(enough: Any) -> None:
        nonlocal failures
        failures += 1
        if failures == 1000:
            enough.set()
        raise DatabaseUnavailable("away")

    ran(step)
    assert len(told.events) == 10

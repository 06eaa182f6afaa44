"""A worker runs on Python's own loop, and on uvloop where that is installed."""

import asyncio
import sys
import threading

import pytest

from holdfast import Holdfast, JobState
from holdfast.worker import slots
from tests.fixtures import Counts, Drain, StartWorker, Until
from tests.waiting import Told


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    return request.param


def test_a_worker_says_on_which_loop_it_runs(
    hf: Holdfast, loop: str, drain: Drain, told: Told, counts: Counts
) -> None:
    loops: list[str] = []

    @hf.task(name="note")
    async def note() -> None:
        await asyncio.sleep(0.001)
        loops.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    @hf.task(name="plain")
    def plain() -> None: ...

    hf.enqueue_many(task.call() for task in (note, plain) for _ in range(50))
    drain(concurrency=5)
    assert counts() == {"completed": 100}
    assert set(loops) == {loop}
    assert told.named("worker.started")[0]["loop"] == loop
    assert told.named("worker.started")[0]["queues"] == "all"


def test_a_sleeper_is_woken_and_stopped(hf: Holdfast, loop: str, work: StartWorker, until: Until) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    worker = work(poll_interval=60)
    for _ in range(3):
        job = noop.enqueue()
        until(lambda job=job: job.refresh().state is JobState.COMPLETED)
    worker.stop()
    worker.wait()


def test_a_handler_that_cannot_be_stopped_is_left_behind(
    hf: Holdfast, loop: str, work: StartWorker, told: Told, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "CLEAN_UP_SECONDS", 0.1)
    gate = threading.Event()

    @hf.task(name="stubborn")
    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    stubborn.enqueue()
    worker = work(grace=0.1)
    until(lambda: hf.jobs.list(state="running"))
    worker.stop()
    worker.wait()
    assert told.wait_for("worker.abandoned")["handlers"] == 1

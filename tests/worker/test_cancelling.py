"""A job that is called off while a worker holds it: its handler is told, and both sides learn the end."""

import asyncio
import threading

import pytest

from holdfast import Context, Holdfast, JobState


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


def ended(until, job):
    return until(lambda: (seen := job.refresh()).state.final and seen)


def test_an_async_handler_is_cut_off(hf: Holdfast, work, until):
    cut_off = []

    @hf.task(name="slow")
    async def slow(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut_off.append(ctx.cancelled)
            raise

    job = slow.enqueue()
    work()
    until(lambda: job.refresh().state is JobState.RUNNING)
    assert job.cancel() == "requested"
    end = ended(until, job)
    assert (end.state, end.last_error) == (JobState.CANCELLED, "called off while it ran")
    assert cut_off == [True]
    assert job.cancel() == "cancelled"


def test_a_handler_that_completes_all_the_same_has_won(hf: Holdfast, work, until):
    @hf.task(name="stubborn")
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done"
        raise AssertionError

    job = stubborn.enqueue()
    work()
    until(lambda: job.refresh().state is JobState.RUNNING)
    assert job.cancel() == "requested"
    end = ended(until, job)
    assert (end.state, end.result) == (JobState.COMPLETED, "done")
    assert job.cancel() == "completed"


def test_a_slot_that_was_cut_off_runs_the_next_job(hf: Holdfast, work, until):
    @hf.task(name="slow")
    async def slow(n: int) -> int:
        if n == 0:
            await asyncio.Event().wait()
        await asyncio.sleep(0.01)
        return n

    first = slow.enqueue(n=0)
    work(concurrency=1)
    until(lambda: first.refresh().state is JobState.RUNNING)
    first.cancel()
    later = [slow.enqueue(n=n) for n in range(1, 4)]
    assert [ended(until, job).result for job in later] == [1, 2, 3]
    assert ended(until, first).state is JobState.CANCELLED


def test_a_thread_is_told_and_ends_when_it_looks(hf: Holdfast, work, until):
    @hf.task(name="loop")
    def loop(ctx: Context) -> None:
        while True:
            ctx.raise_if_cancelled()
            threading.Event().wait(0.01)

    job = loop.enqueue()
    work()
    until(lambda: job.refresh().state is JobState.RUNNING)
    assert job.cancel() == "requested"
    end = ended(until, job)
    assert (end.state, end.last_error) == (JobState.CANCELLED, "called off while it ran")


def test_a_thread_that_does_not_look_completes(hf: Holdfast, work, until, gate):
    @hf.task(name="deaf")
    def deaf() -> str:
        gate.wait()
        return "done"

    job = deaf.enqueue()
    work()
    until(lambda: job.refresh().state is JobState.RUNNING)
    assert job.cancel() == "requested"
    gate.set()
    assert ended(until, job).state is JobState.COMPLETED


def test_a_job_that_waits_in_the_workers_buffer_is_dropped(hf: Holdfast, work, until, gate, monkeypatch):
    monkeypatch.setattr("holdfast.worker.claimer.Rate.per_second", lambda _: 100.0)  # so that it prefetches
    ran = []

    @hf.task(name="blocked")
    def blocked(n: int) -> None:
        ran.append(n)
        gate.wait()

    first, second = (blocked.enqueue(n=n) for n in range(2))
    worker = work(concurrency=1)
    until(lambda: first.refresh().state is JobState.RUNNING)
    assert second.refresh().state is JobState.CLAIMED
    assert second.cancel() == "requested"
    end = ended(until, second)
    assert (end.state, end.last_error) == (JobState.CANCELLED, "called off before it started")
    gate.set()
    assert ended(until, first).state is JobState.COMPLETED
    worker.end()
    assert ran == [0]


def test_many_are_called_off_at_once(hf: Holdfast):
    @hf.task(name="a", queue="mail")
    async def a(n: int) -> None: ...

    jobs = hf.enqueue_many(a.call(n=n) for n in range(5))
    first = jobs[0]
    assert hf.cancel([first.id, str(first.id)]) == {first.id: "cancelled"}
    assert hf.cancel_matching(queue="mail") == (4, 0)
    assert asyncio.run(hf.acancel_matching(task="a")) == (0, 0)

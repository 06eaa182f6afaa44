"""A job that is called off while a worker holds it: its handler is told, and both sides learn the end."""

import asyncio
import threading
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import Context, Holdfast, Job, JobSnapshot, JobState
from holdfast.operations import claiming, workers
from holdfast.task import named_job
from tests.fixtures import Ask, StartWorker, Until


def ended(until: Until, job: Job[Any]) -> JobSnapshot:
    return until(lambda: (seen := job.refresh()).state.final and seen)


def test_an_async_handler_is_cut_off(hf: Holdfast, work: StartWorker, until: Until) -> None:
    cut_off: list[bool] = []

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
    assert (end.state, end.last_error) == (JobState.CANCELLED, "cancelled while it ran")
    assert cut_off == [True]
    assert job.cancel() == "cancelled"


def test_a_handler_that_completes_all_the_same_has_won(hf: Holdfast, work: StartWorker, until: Until) -> None:
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


def test_a_slot_that_was_cut_off_runs_the_next_job(hf: Holdfast, work: StartWorker, until: Until) -> None:
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


def test_a_thread_is_told_and_ends_when_it_looks(hf: Holdfast, work: StartWorker, until: Until) -> None:
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
    assert (end.state, end.last_error) == (JobState.CANCELLED, "cancelled while it ran")


def test_a_thread_that_does_not_look_completes(
    hf: Holdfast, work: StartWorker, until: Until, gate: threading.Event
) -> None:
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


def test_a_job_that_waits_in_the_workers_buffer_is_dropped(
    hf: Holdfast, work: StartWorker, until: Until, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.pace.Pace.measure", lambda *_: 100.0)  # so that it prefetches
    ran: list[int] = []

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
    assert (end.state, end.last_error) == (JobState.CANCELLED, "cancelled before it started")
    gate.set()
    assert ended(until, first).state is JobState.COMPLETED
    worker.end()
    assert ran == [0]


def test_many_are_called_off_at_once(hf: Holdfast) -> None:
    @hf.task(name="a", queue="mail")
    async def a(n: int) -> None: ...

    jobs = hf.enqueue_many(a.call(n=n) for n in range(5))
    first = jobs[0]
    assert hf.jobs.cancel_many([first.id, str(first.id)]) == {first.id: "cancelled"}
    assert hf.jobs.cancel_matching(queue="mail") == (4, 0)
    assert asyncio.run(hf.jobs.acancel_matching(task="a")) == (0, 0)


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_jobs_that_end_meanwhile_do_not_save_those_behind_them(
    hf: Holdfast, ask: Ask, monkeypatch: pytest.MonkeyPatch, holdfast_dsn: str, until: Until, twin: str
) -> None:
    """A batch of which some have just ended is smaller than asked for, and not the last one."""
    monkeypatch.setattr("holdfast.operations.jobs.CANCEL_BATCH", 10)
    answers: list[Any] = []

    def cancel() -> None:
        match twin:
            case "sync":
                answers.append(hf.jobs.cancel_matching(task="a"))
            case _:
                answers.append(asyncio.run(hf.jobs.acancel_matching(task="a")))

    hf.enqueue_many(named_job("a", n) for n in range(40))
    claimed = ask("select id, lease from holdfast.claim(amount => 40)")
    waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(holdfast_dsn) as finisher:
        for job in claimed[:5]:
            finisher.execute("select holdfast.complete(%s, %s)", job)
        thread = threading.Thread(target=cancel)
        thread.start()
        until(lambda: ask(waiting))
    thread.join()
    assert answers == [(0, 35)]


@pytest.mark.parametrize("is_async", [False, True])
def test_batches_add_up(hf: Holdfast, monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    monkeypatch.setattr("holdfast.operations.jobs.CANCEL_BATCH", 2)
    for _ in range(5):
        hf.enqueue("a")
    worker = hf.carrier.run(
        workers.register(
            name=None,
            queues=None,
            tasks=["a"],
            lease_time=timedelta(seconds=30),
            host="here",
            pid=1,
            version="1",
            channel=None,
        )
    )
    hf.carrier.run(claiming.claim(worker=worker, lease=str(uuid4()), queues=None, tasks=None, amount=2))
    done = asyncio.run(hf.jobs.acancel_matching(task="a")) if is_async else hf.jobs.cancel_matching(task="a")
    assert done == (3, 2)

"""A worker that is told to stop: it gives back, lets finish, cuts off, and leaves nothing behind."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast import Context, Holdfast, JobState
from holdfast.database import Session
from holdfast.worker import slots
from tests.fixtures import Ask, AsyncTask, Counts, Drain, StartWorker, Until
from tests.waiting import Told


@pytest.fixture
def slow(hf: Holdfast, gate: threading.Event) -> AsyncTask[str]:
    @hf.task(name="slow")
    async def slow() -> str:
        while not gate.is_set():  # noqa: ASYNC110 - the gate is in another thread
            await asyncio.sleep(0.01)
        return "done"

    return slow


@pytest.fixture
def running(hf: Holdfast, until: Until) -> Callable[[int], Any]:
    """Wait until so many jobs are seen at work."""
    return lambda amount: until(lambda: len(hf.jobs.list(state="running")) == amount)


def ours(dsn: str) -> list[str]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [
            name
            for (name,) in connection.execute(
                "select application_name from pg_stat_activity "
                "where datname = current_database() and application_name like 'holdfast%'"
            )
        ]


def test_what_runs_may_finish_and_what_waits_is_given_back_uncharged(
    hf: Holdfast,
    brisk: None,
    work: StartWorker,
    gate: threading.Event,
    slow: AsyncTask[str],
    told: Told,
    until: Until,
    counts: Counts,
    ask: Ask,
) -> None:
    @hf.task(name="quick")
    async def quick() -> None: ...

    hf.enqueue_many(quick.call() for _ in range(2000))
    hf.enqueue_many(slow.call() for _ in range(50))
    worker = work(concurrency=2)
    until(lambda: counts().get("completed") == 2000)
    until(lambda: counts().get("claimed", 0) > 2)
    worker.stop()
    assert told.wait_for("worker.stopping")["running"] == 2
    until(lambda: counts() == {"completed": 2000, "pending": 48, "claimed": 2} or "running" in counts())
    gate.set()
    worker.wait()
    assert counts() == {"completed": 2002, "pending": 48}
    assert ask("select max(attempt) from holdfast.job") == [(0,)]
    assert ask("select count(*) from holdfast.attempt_error") == [(0,)]
    assert hf.workers.list() == [] or {row.status for row in hf.workers.list()} == {"left"}


def test_after_the_grace_what_runs_is_cut_off_and_counted(
    hf: Holdfast, work: StartWorker, running: Callable[[int], Any], until: Until
) -> None:
    cleaned: list[bool] = []

    @hf.task(name="endless")
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)  # an async handler may clean up
            cleaned.append(True)

    job = endless.enqueue()
    worker = work(grace=0.1)
    running(1)
    worker.stop()
    worker.wait()
    seen = job.refresh()
    assert (seen.state, seen.attempt, cleaned) == (JobState.PENDING, 1, [True])
    assert job.errors()[0].error == "interrupted: its worker was stopped"


def test_a_suspect_whose_claim_was_cut_off_is_given_back_uncharged(
    holdfast_dsn: str,
    slow: AsyncTask[str],
    work: StartWorker,
    until: Until,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow.enqueue()
    ask("select from holdfast.claim(worker => holdfast.register())")
    ask("update holdfast.worker set heartbeat_at = heartbeat_at - interval '10 days'")
    ask("select holdfast.recover('9 days')")
    parting, part = threading.Event(), Session._finish_abandoned

    async def told_part(*args: Any) -> None:
        parting.set()
        await part(*args)

    monkeypatch.setattr(Session, "_finish_abandoned", told_part)
    with psycopg.connect(holdfast_dsn) as other:
        other.execute("lock table holdfast.running in exclusive mode")  # its start cannot be recorded
        worker = work()
        claimer = "datname = current_database() and application_name = 'holdfast claimer'"
        until(lambda: ask(f"select from pg_stat_activity where {claimer} and wait_event_type = 'Lock'"))
        worker.stop()
        assert parting.wait(10)
    worker.wait()
    assert ask("select state, attempt from holdfast.job") == [("pending", 0)]
    assert ask("select count(*) from holdfast.attempt_error") == [(0,)]


def test_the_second_time_it_does_not_wait(
    hf: Holdfast,
    work: StartWorker,
    slow: AsyncTask[str],
    running: Callable[[int], Any],
    told: Told,
) -> None:
    job = slow.enqueue()
    worker = work(grace=600)
    running(1)
    worker.stop()
    told.wait_for("worker.stopping")
    begun = time.monotonic()
    worker.stop()
    worker.wait()
    assert time.monotonic() - begun < 3
    assert (job.refresh().state, job.refresh().attempt) == (JobState.PENDING, 1)


def test_a_thread_that_never_returns_does_not_keep_the_worker(
    hf: Holdfast, work: StartWorker, gate: threading.Event, running: Callable[[int], Any], told: Told
) -> None:
    seen: list[bool] = []

    @hf.task(name="stuck")
    def stuck(ctx: Context) -> None:
        gate.wait()
        seen.append(ctx.cancelled)

    job = stuck.enqueue()
    worker = work(grace=0.1)
    running(1)
    worker.stop()
    worker.wait()
    assert told.wait_for("worker.abandoned")["handlers"] == 1
    assert (job.refresh().state, job.refresh().attempt) == (JobState.PENDING, 1)
    (thread,) = (one for one in threading.enumerate() if one.name.startswith("holdfast-"))
    gate.set()
    thread.join(10)
    assert seen == [True]
    assert job.refresh().state is JobState.PENDING


def test_a_handler_that_ignores_its_end_is_reported_for(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    running: Callable[[int], Any],
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "CLEAN_UP_SECONDS", 0.1)

    async def main() -> None:
        await asyncio.gather(worker.arun(), halfway())
        assert (await job.arefresh()).state is JobState.PENDING
        gate.set()
        await asyncio.wait(stubborn_tasks)
        assert (await job.arefresh()).state is JobState.PENDING
        await hf.aclose()

    async def halfway() -> None:
        while not hf.jobs.list(state="running"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        worker.stop()

    stubborn_tasks: list[asyncio.Task[Any]] = []

    @hf.task(name="stubborn")
    async def stubborn() -> None:
        task = asyncio.current_task()
        assert task
        stubborn_tasks.append(task)
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    job = stubborn.enqueue()
    worker = hf.worker(grace=0.1, concurrency=1)
    asyncio.run(main())
    assert told.wait_for("worker.abandoned")["handlers"] == 1
    assert job.refresh().attempt == 1


def test_a_cancelled_arun_gives_everything_back(
    hf: Holdfast, slow: AsyncTask[str], told: Told, running: Callable[[int], Any]
) -> None:
    jobs = hf.enqueue_many(slow.call() for _ in range(3))

    async def main() -> set[asyncio.Task[Any]]:
        run = asyncio.create_task(hf.worker(concurrency=3).arun())
        while len(await hf.jobs.alist(state="running")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await hf.aclose()
        return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    assert asyncio.run(main()) == set()
    assert {(job.refresh().state, job.refresh().attempt) for job in jobs} == {(JobState.PENDING, 1)}
    assert told.named("worker.stopped")


def test_nothing_is_left_behind_however_often_it_runs(
    hf: Holdfast, told: Told, until: Until, holdfast_dsn: str, counts: Counts
) -> None:
    @hf.task(name="plain")
    def plain() -> None: ...

    @hf.task(name="coroutine")
    async def coroutine() -> None: ...

    async def main() -> list[asyncio.Task[Any]]:
        await hf.worker().arun(drain=True)
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    hf.close()
    threads = set(threading.enumerate())
    for _ in range(2):
        hf.enqueue_many(task.call() for task in (plain, coroutine) for _ in range(20))
        assert asyncio.run(main()) == []
        hf.worker().run(drain=True)
        hf.close()
        gc.collect()
        left = [one for one in set(threading.enumerate()) - threads if not one.name.startswith("asyncio_")]
        for one in left:
            one.join(5)
        assert not any(one.is_alive() for one in left)
        until(lambda: ours(holdfast_dsn) == [])
    assert counts() == {"completed": 80}


def test_a_worker_in_another_thread_leaves_signals_alone(hf: Holdfast, work: StartWorker) -> None:
    worker = work()
    worker.stop()
    worker.wait()
    worker.stop()  # once more is no harm


def test_signal_handlers_are_put_back(hf: Holdfast, drain: Drain) -> None:
    import signal

    def mine(*_: Any) -> None:
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        drain()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)

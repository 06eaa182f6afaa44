"""A handler that blocks the event loop keeps its own job, and no other that has not started."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Context, Holdfast, JobState
from holdfast.database import Session
from holdfast.operations.claiming import Claimed
from holdfast.telemetry.logs import JsonFormatter
from holdfast.values.errors import DatabaseUnavailable
from holdfast.worker.held import HeldJobs
from tests.fixtures import AsyncTask, Counts, StartWorker, Until
from tests.waiting import Told


@pytest.fixture
def blocking(hf: Holdfast, gate: threading.Event) -> AsyncTask[None]:
    @hf.task(name="blocking", priority=200)
    async def blocking_handler() -> None:
        gate.wait()

    return blocking_handler


@pytest.fixture
def ran() -> Counter[str]:
    """How often each job has run."""
    return Counter()


@pytest.fixture
def quick(hf: Holdfast, ran: Counter[str]) -> AsyncTask[None]:
    @hf.task(name="quick")
    async def quick(ctx: Context) -> None:
        ran[str(ctx.job_id)] += 1

    return quick


@pytest.fixture
def neighbour(hf: Holdfast, ran: Counter[str]) -> Iterator[Holdfast]:
    """Another worker of the same tasks but the one that blocks."""
    other = Holdfast(hf.dsn)

    @other.task(name="quick")
    async def quick(ctx: Context) -> None:
        ran[str(ctx.job_id)] += 1

    yield other
    other.close()


def test_jobs_that_have_not_started_are_released_to_others(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    blocking: AsyncTask[None],
    quick: AsyncTask[None],
    neighbour: Holdfast,
    ran: Counter[str],
    told: Told,
    until: Until,
    counts: Counts,
) -> None:
    blocker = blocking.enqueue()
    jobs = [quick.enqueue() for _ in range(19)]
    work(concurrency=20)
    until(lambda: blocker.refresh().state is JobState.RUNNING)
    work(neighbour)
    until(lambda: counts() == {"running": 1, "completed": 19}, say=counts)
    gate.set()
    until(lambda: counts() == {"completed": 20})
    assert ran == {str(job.id): 1 for job in jobs}
    assert [job.refresh().attempt for job in jobs] == [1] * 19
    assert told.named("jobs.released")[0]["jobs"] == 19
    assert told.named("report.refused") == []


def test_a_released_job_may_be_claimed_again_by_the_same_worker(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    blocking: AsyncTask[None],
    quick: AsyncTask[None],
    ran: Counter[str],
    told: Told,
    until: Until,
    counts: Counts,
) -> None:
    blocking.enqueue()
    jobs = [quick.enqueue() for _ in range(5)]
    worker = work(concurrency=10)
    told.wait_for("jobs.released")
    assert counts() == {"running": 1, "pending": 5}
    gate.set()
    until(lambda: counts() == {"completed": 6})
    assert ran == {str(job.id): 1 for job in jobs}
    worker.stop()
    worker.wait()
    assert told.named("report.refused") == []


def test_the_jobs_of_a_claim_whose_reply_cannot_be_read_are_released(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    quick: AsyncTask[None],
    neighbour: Holdfast,
    ran: Counter[str],
    told: Told,
    until: Until,
    counts: Counts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop is blocked between the claim and its reply: the jobs are held, and nobody knows of them."""
    run, blocked = Session.run, threading.Event()

    async def blocking_run(session: Session, call: Any, **options: Any) -> Any:
        answer = await run(session, call, **options)
        if call.function.name == "claim" and answer and not blocked.is_set():
            blocked.set()
            gate.wait()
        return answer

    monkeypatch.setattr(Session, "run", blocking_run)
    jobs = [quick.enqueue() for _ in range(5)]
    work()
    assert blocked.wait(10)
    work(neighbour)
    until(lambda: counts() == {"completed": 5}, say=counts)
    gate.set()
    told.wait_for("jobs.finished")
    late = quick.enqueue()
    until(lambda: late.refresh().state is JobState.COMPLETED)
    assert ran == {str(job.id): 1 for job in [*jobs, late]}


def test_what_cannot_be_released_at_once_is_released_later(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    blocking: AsyncTask[None],
    quick: AsyncTask[None],
    ran: Counter[str],
    told: Told,
    until: Until,
    counts: Counts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, failures = Session.run, [DatabaseUnavailable("gone"), DatabaseUnavailable("gone")]

    async def failing(session: Session, call: Any, **options: Any) -> Any:
        if call.function.name == "finish" and threading.current_thread().name == "holdfast-keeper":
            failed.set()
            if failures:
                raise failures.pop()
        return await run(session, call, **options)

    failed = threading.Event()
    monkeypatch.setattr(Session, "run", failing)
    blocking.enqueue()
    jobs = [quick.enqueue() for _ in range(5)]
    work()
    told.wait_for("jobs.released")
    assert failed.is_set()
    assert counts() == {"running": 1, "pending": 5}
    gate.set()
    until(lambda: counts() == {"completed": 6})
    assert ran == {str(job.id): 1 for job in jobs}


def test_a_locked_job_is_released_by_the_loop_once_it_turns_again(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    blocking: AsyncTask[None],
    quick: AsyncTask[None],
    ran: Counter[str],
    told: Told,
    until: Until,
    counts: Counts,
    holdfast_dsn: str,
) -> None:
    blocker = blocking.enqueue()
    locked, free = quick.enqueue(), quick.enqueue()
    work()
    until(lambda: blocker.refresh().state is JobState.RUNNING)
    with psycopg.connect(holdfast_dsn) as operator:
        operator.execute("select from holdfast.job where id = %s for update", [locked.id])
        assert told.wait_for("jobs.released")["jobs"] == 1
        gate.set()
        until(lambda: free.refresh().state is JobState.COMPLETED)
        told.wait_for("reports.locked")
    until(lambda: counts() == {"completed": 3})
    assert ran == {str(locked.id): 1, str(free.id): 1}


def test_a_job_goes_either_to_a_slot_or_to_the_keeper() -> None:
    """Two threads, as fast as they can, while claims come in and urgent jobs overtake others."""
    held, taken, over = HeldJobs(), list[str](), threading.Event()

    def keep() -> None:
        while not over.is_set():
            jobs, _ = held.take_unstarted()
            taken.extend(job.id for job in jobs)

    keeper = threading.Thread(target=keep)
    keeper.start()
    started, brought = list[str](), 0
    for round_ in range(3000):
        held.in_flight.add("lease")
        jobs = [
            Claimed("lease", f"{round_}.{n}", "task", "{}", 1, 3, "default", 100 + round_ % 3, False, 0, None)
            for n in range(10)
        ]
        brought += len(held.take("lease", jobs))  # nothing, where the keeper has taken the lease away
        for _ in range(5):
            try:
                started.append(held.buffer.popleft().id)
            except IndexError:
                break
        taken.extend(job.id for job in held.take_last(20))
        held.order(5)
        held.cancel({f"{round_}.7": "lease"})
    over.set()
    keeper.join()
    cancelled = [report.id for report in held.reports]
    everything = Counter([*started, *taken, *cancelled, *(job.id for job in held.buffer)])
    assert set(everything.values()) == {1}
    assert len(everything) == brought > 0


def test_a_blocked_loop_names_the_job_and_shows_its_stack(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    blocking: AsyncTask[None],
    told: Told,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = blocking.enqueue()
    work()
    event = told.wait_for("loop.blocked")
    assert (event["task"], event["job"], event["seconds"]) == ("blocking", str(job.id), 1.0)
    first, *_ = event["stack"].splitlines()
    assert "blocking_handler" in first
    gate.set()
    (record,) = [record for record in caplog.records if getattr(record, "event", "") == "loop.blocked"]
    line, *stack = record.getMessage().splitlines()
    assert line.startswith("loop.blocked worker=")
    assert "stack=" not in line
    assert "\n".join(stack) == event["stack"].rstrip()
    assert json.loads(JsonFormatter().format(record))["stack"] == event["stack"]
    assert record.levelno == logging.WARNING

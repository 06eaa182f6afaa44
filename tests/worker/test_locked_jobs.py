"""A transaction that stays open after a cancel holds up no report but those on its own jobs.

A worker that starts or stops waits for such a transaction.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from holdfast import Context, Holdfast, JobState
from holdfast.database import Session
from holdfast.values.call import Call
from holdfast.values.errors import Collision
from holdfast.worker import runtime
from tests.fixtures import Ask, Counts, StartWorker, Until
from tests.waiting import Told

Operator = psycopg.Connection[Any]


async def passing(gate: threading.Event) -> None:
    while not gate.is_set():  # noqa: ASYNC110 - the gate is in another thread
        await asyncio.sleep(0.01)


@pytest.fixture
def operator(holdfast_dsn: str) -> Iterator[Operator]:
    """Somebody who cancels and does not commit."""
    with psycopg.connect(holdfast_dsn) as operator:
        yield operator


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of a worker that waited for another transaction until their lock_timeout."""
    waited: list[str] = []
    run = Session.run

    async def noting(session: Session, call: Call[Any], **options: Any) -> Any:
        try:
            return await run(session, call, **options)
        except Collision:
            waited.append(call.function.name)
            raise

    monkeypatch.setattr(Session, "run", noting)
    return waited


def test_locked_reports_are_set_aside_and_sent_again(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    operator: Operator,
    until: Until,
    counts: Counts,
    told: Told,
    waited: list[str],
    ask: Ask,
) -> None:
    @hf.task(name="held")
    async def held(ctx: Context) -> None:
        ctx.event("begun")
        ctx.progress(1)
        await passing(gate)
        ctx.event("ended")

    @hf.task(name="free")
    async def free() -> None: ...

    jobs = [held.enqueue() for _ in range(10)]
    work()
    until(lambda: ask("select count(*) from holdfast.event where name = 'begun'") == [(10,)])
    for job in jobs:
        operator.execute("select holdfast.cancel(%s)", [job.id])
    gate.set()
    told.wait_for("reports.locked")
    for n in range(1, 4):
        free.enqueue()
        until(lambda n=n: counts() == {"running": 10, "completed": n})
    operator.commit()
    until(lambda: counts() == {"completed": 13}, say=counts)
    assert waited == []
    assert sum(len(event["jobs"]) for event in told.named("reports.locked")) == 10
    assert [event.name for event in jobs[0].events()] == [
        "begun",
        "job.cancel_requested",
        "ended",
        "job.completed",
    ]


def test_a_failure_that_was_locked_keeps_its_progress_and_is_retried_later(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    operator: Operator,
    until: Until,
    told: Told,
    waited: list[str],
    ask: Ask,
) -> None:
    @hf.task(name="failing")
    async def failing(ctx: Context) -> None:
        await passing(gate)
        ctx.progress(70)
        raise ConnectionError("away")

    job = failing.enqueue()
    work()
    until(lambda: job.refresh().state is JobState.RUNNING)
    operator.execute("select holdfast.cancel(%s)", [job.id])
    gate.set()
    told.wait_for("reports.locked")
    operator.rollback()
    until(lambda: job.refresh().state is JobState.SCHEDULED)
    assert ask("select data ->> 'progress' from holdfast.event where name = 'job.failed'") == [("70",)]
    assert waited == []


def test_a_handler_that_must_not_begin_unrecorded_waits_for_no_lock(
    hf: Holdfast,
    work: StartWorker,
    operator: Operator,
    until: Until,
    counts: Counts,
    told: Told,
    waited: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its start goes through the connection of the reports."""
    claimed, go = threading.Event(), threading.Event()

    @hf.task(name="once", at_most_once=True)
    async def once() -> None: ...

    job = once.enqueue()

    async def pausing(session: Session, call: Call[Any], run: Any = Session.run, **options: Any) -> Any:
        if call.function.name == "start" and not go.is_set():
            claimed.set()
            await asyncio.to_thread(go.wait)
        return await run(session, call, **options)

    monkeypatch.setattr(Session, "run", pausing)
    work()
    assert claimed.wait(10)
    operator.execute("select holdfast.cancel(%s)", [job.id])
    go.set()
    assert told.wait_for("start.failed")["job"] == str(job.id)
    told.wait_for("reports.locked")
    assert counts() == {"claimed": 1}
    operator.commit()
    until(lambda: counts() == {"cancelled": 1})
    assert waited == []


def test_the_keeper_writes_of_the_other_jobs(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    operator: Operator,
    until: Until,
    ask: Ask,
    waited: list[str],
) -> None:
    @hf.task(name="slow")
    async def slow(ctx: Context) -> None:
        await passing(gate)
        ctx.progress(10)
        ctx.event("seen")
        await asyncio.Event().wait()

    jobs = [slow.enqueue() for _ in range(3)]
    work()
    until(lambda: {job.refresh().state for job in jobs} <= {JobState.CLAIMED, JobState.RUNNING})
    locked, *free = jobs
    operator.execute("select from holdfast.job where id = %s for update", [locked.id])
    gate.set()
    until(lambda: all(job.refresh().progress == 10 for job in free))
    until(lambda: ask("select count(*) from holdfast.event where name = 'seen'") == [(2,)])
    assert locked.refresh().progress is None
    operator.rollback()
    until(lambda: locked.refresh().progress == 10)
    assert ask("select count(*) from holdfast.event where name = 'seen'") == [(3,)]
    assert waited == []


def test_a_locked_report_is_waited_for_within_the_grace(
    hf: Holdfast,
    work: StartWorker,
    gate: threading.Event,
    operator: Operator,
    until: Until,
    counts: Counts,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "DEREGISTER_SECONDS", 0.01)
    sent: list[Call[Any]] = []
    run = Session.run

    async def counting(session: Session, call: Call[Any], **options: Any) -> Any:
        if call.function.name == "finish":
            sent.append(call)
        return await run(session, call, **options)

    monkeypatch.setattr(Session, "run", counting)

    @hf.task(name="held")
    async def held() -> None:
        await passing(gate)

    job = held.enqueue()
    worker = work(grace=60)
    until(lambda: job.refresh().state is JobState.RUNNING)
    operator.execute("select holdfast.cancel(%s)", [job.id])
    gate.set()
    told.wait_for("reports.locked")
    worker.stop()
    told.wait_for("worker.stopping")
    before = len(sent)
    until(lambda: len(sent) > before + 2)  # that takes longer than the last words may
    operator.commit()
    worker.wait()
    assert counts() == {"completed": 1}


def test_a_second_signal_does_not_wait_for_a_locked_report(
    hf: Holdfast, work: StartWorker, gate: threading.Event, operator: Operator, until: Until, told: Told
) -> None:
    @hf.task(name="held")
    async def held() -> None:
        await passing(gate)

    job = held.enqueue()
    worker = work(grace=60)
    until(lambda: job.refresh().state is JobState.RUNNING)
    operator.execute("select holdfast.cancel(%s)", [job.id])
    gate.set()
    told.wait_for("reports.locked")
    worker.stop()
    told.wait_for("worker.stopping")
    worker.stop()
    worker.wait()
    assert told.named("worker.stopped")
    assert job.refresh().state is JobState.RUNNING  # its report was not written: the cancel is still open


# With a lease of one second, the lock_timeout of a worker is 83 ms.
WAITED_LONG = """
select from pg_stat_activity
where datname = current_database() and application_name = 'holdfast claimer' and wait_event_type = 'Lock'
  and clock_timestamp() - query_start > interval '0.2 s'
"""


def test_a_worker_that_starts_waits_for_a_lock_on_the_workers(
    hf: Holdfast, operator: Operator, until: Until, told: Told, ask: Ask
) -> None:
    worker = hf.worker(lease_time=1)
    operator.execute("lock table holdfast.worker in share mode")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(worker.run)
        try:
            until(lambda: ask(WAITED_LONG) or running.done())
            operator.rollback()
            told.wait_for("worker.started")
        finally:
            worker.stop()
        running.result(timeout=10)


def test_a_worker_that_stops_waits_for_a_lock_on_its_row(
    work: StartWorker, operator: Operator, until: Until, told: Told, ask: Ask
) -> None:
    worker = work(lease_time=1)
    operator.execute("select from holdfast.worker for update")
    worker.stop()
    until(lambda: ask(WAITED_LONG) or told.named("leave.failed"))
    operator.rollback()
    worker.wait()
    assert told.named("leave.failed") == []
    assert ask("select from holdfast.worker where left_at is null") == []

"""A connection that neither answers nor breaks is noticed by its deadline, and replaced."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Job, JobState, subscribe
from holdfast.worker import runtime
from tests.faults.proxy import Proxy
from tests.fixtures import Ask, StartWorker, Until
from tests.waiting import Told

Noop = Callable[[], Job[Any]]

LAST_BEAT = "select max(heartbeat_at) from holdfast.worker"
ASLEEP = "select asleep from holdfast.worker where lost_at is null and left_at is null"


@pytest.fixture
def far(proxy: Proxy) -> Iterator[Holdfast]:
    with Holdfast(proxy.dsn) as far:

        @far.task(name="noop")
        async def noop() -> None: ...

        yield far


@pytest.fixture
def quick_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "DEADLINES", (0.5, 0.5))
    monkeypatch.setattr("holdfast.database.session.CONNECT_TIMEOUT", 2)
    monkeypatch.setattr(runtime, "CHECK_SECONDS", 0.3)


@pytest.fixture
def noop(hf: Holdfast) -> Noop:
    return lambda: hf.enqueue("noop")


def test_a_silent_connection_is_replaced(
    far: Holdfast,
    noop: Noop,
    proxy: Proxy,
    work: StartWorker,
    told: Told,
    until: Until,
    quick_deadlines: None,
) -> None:
    work(far, lease_time=3)
    # The silence of the claimer may meet a claim, a registration, a heartbeat or a duty.
    for purpose, noticed in {"claimer": "listener.lost", "finisher": "finisher.failed"}.items():
        first = noop()
        until(lambda first=first: first.refresh().state is JobState.COMPLETED)
        proxy.silence(purpose)
        job = noop()
        told.wait_for(noticed)
        until(lambda job=job: job.refresh().state is JobState.COMPLETED)
        assert job.refresh().attempt == 1


def test_a_lost_line_for_notifications_is_restored(
    far: Holdfast,
    noop: Noop,
    proxy: Proxy,
    work: StartWorker,
    told: Told,
    until: Until,
    ask: Ask,
    quick_deadlines: None,
) -> None:
    work(far, poll_interval=60)
    for number, breaks in enumerate([proxy.cut, proxy.silence], start=1):
        first = noop()  # by which the line shows that it stands: one that is being made is not yet lost
        until(lambda first=first: first.refresh().state is JobState.COMPLETED)
        until(lambda number=number: len(proxy.lines("claimer")) == number and ask(ASLEEP) == [(True,)])
        breaks("claimer")
        told.wait_for("listener.lost", number)
    until(lambda: len(proxy.lines("claimer")) == 3)
    for _ in range(3):
        job = noop()
        until(lambda job=job: job.refresh().state is JobState.COMPLETED)
        done = job.refresh()
        assert done.claimed_at
        assert done.claimed_at - done.created_at < timedelta(seconds=1)


def test_after_a_cut_a_job_is_heard_of_at_once(
    far: Holdfast,
    noop: Noop,
    proxy: Proxy,
    work: StartWorker,
    until: Until,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "CHECK_SECONDS", 60)
    work(far, poll_interval=60)
    for number in range(1, 4):
        until(lambda number=number: len(proxy.lines("claimer")) == number and ask(ASLEEP) == [(True,)])
        job = noop()
        until(lambda job=job: job.refresh().state is JobState.COMPLETED)
        done = job.refresh()
        assert done.claimed_at
        assert done.claimed_at - done.created_at < timedelta(seconds=1)
        proxy.cut("claimer")


def test_a_silent_heartbeat_costs_neither_the_lease_nor_the_jobs(
    hf: Holdfast,
    far: Holdfast,
    noop: Noop,
    proxy: Proxy,
    work: StartWorker,
    told: Told,
    until: Until,
    ask: Ask,
) -> None:
    gate = threading.Event()

    @far.task(name="wait")
    async def wait() -> None:
        await asyncio.to_thread(gate.wait)

    work(hf, lease_time=3)  # somebody watches
    worker = work(far, lease_time=3)
    long = wait.enqueue()
    until(lambda: proxy.lines("keeper"))
    proxy.silence("keeper")
    told.wait_for("database.lost")  # by the first call: a heartbeat, or a duty
    seen = ask(LAST_BEAT)
    until(lambda: len(proxy.lines("keeper")) > 1)
    until(lambda: ask(LAST_BEAT) > seen)
    job = noop()
    until(lambda: job.refresh().state is JobState.COMPLETED)
    gate.set()
    until(lambda: long.refresh().state is JobState.COMPLETED)
    assert long.refresh().attempt == 1
    assert ask("select count(*) from holdfast.worker where lost_at is not null") == [(0,)]
    assert told.named("worker.lost") == []
    assert told.named("loop.blocked") == []
    worker.end()


def test_an_outage_ends_with_the_job_that_needed_the_connection(
    far: Holdfast, proxy: Proxy, work: StartWorker, told: Told, until: Until
) -> None:
    """An idle worker does not use the keeper's connection, so that one cannot show that it works again."""
    gate = threading.Event()

    @far.task(name="wait")
    async def wait() -> None:
        await asyncio.to_thread(gate.wait)

    def end_job(event: str, _fields: Mapping[str, object]) -> None:
        if event == "database.lost":  # told by the keeper's thread, which does nothing else meanwhile
            gate.set()
            told.wait_for("jobs.finished")

    unsubscribe = subscribe(end_job)
    try:
        work(far, lease_time=3)
        told.wait_for("heartbeat.accepted", 2)  # after its first duties, which would use the connection again
        wait.enqueue()
        until(lambda: proxy.lines("keeper"))
        proxy.cut("keeper")
        told.wait_for("database.back")
    finally:
        unsubscribe()


def test_an_idle_worker_whose_only_connection_is_silent_keeps_its_lease(
    far: Holdfast, proxy: Proxy, work: StartWorker, told: Told, until: Until, ask: Ask
) -> None:
    work(far, lease_time=3, poll_interval=60)
    until(lambda: ask(ASLEEP) == [(True,)])
    proxy.silence("claimer")
    seen = ask(LAST_BEAT)
    until(lambda: ask(LAST_BEAT) > seen)
    assert len(proxy.lines("keeper")) == 1
    assert told.named("worker.lost") == []


def test_a_worker_cut_off_from_a_silent_database_can_be_stopped(
    far: Holdfast, noop: Noop, proxy: Proxy, work: StartWorker, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "DEREGISTER_SECONDS", 0.5)
    worker = work(far)
    first = noop()
    until(lambda: first.refresh().state is JobState.COMPLETED)
    proxy.silence("all")
    begun = time.monotonic()
    worker.stop()
    worker.wait()
    assert time.monotonic() - begun < 6


def test_a_worker_that_still_connects_to_a_silent_database_can_be_stopped(
    far: Holdfast, proxy: Proxy, until: Until, told: Told
) -> None:
    worker = far.worker()
    proxy.silence("all")
    before = len(proxy.lines(""))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(worker.run)
        until(lambda: len(proxy.lines("")) > before)
        worker.stop()
        running.result(timeout=5)
    assert told.named("worker.stopped")
    assert not told.named("worker.started")

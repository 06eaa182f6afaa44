"""How many connections a worker holds."""

import asyncio
import threading
from collections.abc import Callable

import psycopg
import pytest

from holdfast import Holdfast, JobState
from holdfast.worker import keeper, runtime
from tests.fixtures import Ask, StartWorker, Until

OF_WORKERS = """
select application_name from pg_stat_activity
where datname = current_database() and starts_with(application_name, 'holdfast ') order by 1
"""
IDLE = ["holdfast claimer"]
# While a job runs. Then the reports have a connection too, from the moment in which the first job comes.
BUSY = ["holdfast claimer", "holdfast finisher", "holdfast keeper"]


@pytest.fixture
def connections(ask: Ask) -> Callable[[], list[str]]:
    return lambda: [name for (name,) in ask(OF_WORKERS)]


@pytest.fixture
def at_rest(ask: Ask, connections: Callable[[], list[str]]) -> Callable[[], bool]:
    """Whether the worker sleeps, has sent a heartbeat, and has ended its first upkeep and sweep."""

    def at_rest() -> bool:
        rested = ask(
            "select from holdfast.worker w where w.asleep and w.heartbeat_at > w.started_at "
            "and exists (select from holdfast.duty where name = 'recover' and looks[1] > w.started_at)"
        )
        return bool(rested) and "holdfast duties" not in connections()

    return at_rest


def test_an_idle_worker_holds_one_connection_and_a_busy_one_three(
    hf: Holdfast,
    work: StartWorker,
    at_rest: Callable[[], bool],
    connections: Callable[[], list[str]],
    until: Until,
    ask: Ask,
    gate: threading.Event,
) -> None:
    @hf.task(name="wait")
    async def wait() -> None:
        await asyncio.to_thread(gate.wait)

    ask("select * from holdfast.do_duties()")  # so that no upkeep and no sweep is due for half a minute
    work()
    until(at_rest)
    assert connections() == IDLE
    wait.enqueue()
    until(lambda: connections() == BUSY, say=connections)
    gate.set()


def test_the_connections_that_running_jobs_need_are_closed_when_they_are_unused(
    hf: Holdfast,
    work: StartWorker,
    connections: Callable[[], list[str]],
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    gate: threading.Event,
) -> None:
    @hf.task(name="wait")
    async def wait() -> None:
        await asyncio.to_thread(gate.wait)

    for module in (runtime, keeper):
        monkeypatch.setattr(module, "UNUSED_SECONDS", 0.2)
    work()
    for _ in range(2):  # and opened again
        gate.clear()
        wait.enqueue()
        until(lambda: "holdfast keeper" in connections(), say=connections)
        gate.set()
        until(lambda: connections() == IDLE, say=connections)


def test_a_slow_duty_of_an_idle_worker_keeps_claims_waiting_only_once(
    hf: Holdfast, work: StartWorker, holdfast_dsn: str, until: Until, ask: Ask
) -> None:
    @hf.task(name="note")
    async def note() -> None: ...

    ask("alter function holdfast.do_duties() rename to do_duties_at_once")
    ask("create function holdfast.do_duties() returns table (duty text, wait interval, done integer) "
        "language sql as $$ select pg_advisory_xact_lock(27); select * from holdfast.do_duties_at_once() "
        "$$")  # fmt: skip
    waiting = (
        "select application_name from pg_stat_activity "
        "where datname = current_database() and wait_event = 'advisory'"
    )
    with psycopg.connect(holdfast_dsn) as other:
        other.execute("select pg_advisory_xact_lock(27)")
        work(lease_time=3, poll_interval=60)  # the lock_timeout of this lease is 250 ms
        until(lambda: ask(waiting) == [("holdfast keeper",)], say=lambda: ask(waiting))
        job = note.enqueue()
        until(lambda: job.refresh().state is JobState.COMPLETED)

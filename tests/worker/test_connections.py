"""How many connections a worker holds."""

from collections.abc import Callable

import pytest

from holdfast import Holdfast
from holdfast.worker import runtime
from tests.fixtures import Ask, StartWorker, Until

OF_WORKERS = """
select application_name from pg_stat_activity
where datname = current_database() and starts_with(application_name, 'holdfast ') order by 1
"""
IDLE = ["holdfast claimer", "holdfast keeper"]
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


def test_an_idle_worker_holds_two_connections_and_a_busy_one_three(
    hf: Holdfast,
    work: StartWorker,
    at_rest: Callable[[], bool],
    connections: Callable[[], list[str]],
    until: Until,
    ask: Ask,
) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    ask("select * from holdfast.do_duties()")  # so that no upkeep and no sweep is due for half a minute
    work()
    until(at_rest)
    assert connections() == IDLE
    noop.enqueue()
    until(lambda: connections() == BUSY, say=connections)


def test_the_connection_for_reports_is_closed_when_it_is_unused(
    hf: Holdfast,
    work: StartWorker,
    connections: Callable[[], list[str]],
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    monkeypatch.setattr(runtime, "UNUSED_SECONDS", 0.2)
    work()
    for _ in range(2):  # and opened again
        job = noop.enqueue()
        until(lambda job=job: job.refresh().state == "completed")
        until(lambda: connections() == IDLE, say=connections)

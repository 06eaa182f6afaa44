"""The server has no connection left: a worker waits for one, and works with those that it has."""

import asyncio
import math
from collections.abc import Iterator, Mapping
from datetime import timedelta

import psycopg
import pytest

from holdfast import Context, Holdfast, JobState, Retry
from holdfast.database import outage, spare
from holdfast.database.outage import Refusals
from holdfast.errors import TooManyConnections
from holdfast.telemetry import subscribe
from holdfast.values.call import Call, Function, one
from tests.faults.small_server import small_server
from tests.fixtures import AsyncTask, StartWorker, Until
from tests.waiting import Told, Work

MOST = 10
OURS = "select application_name from pg_stat_activity where application_name like 'holdfast %'"


class Crowd:
    """Connections of others, which leave the server only some free ones."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._others: list[psycopg.Connection[object]] = []
        self.watcher = psycopg.connect(dsn, autocommit=True)

    def leave(self, free: int) -> None:
        """Open or close connections of others until so many are free."""
        count = "select count(*) from pg_stat_activity where backend_type = 'client backend'"
        while (left := MOST - self._one(count)) != free:
            if left > free:
                self._others.append(psycopg.connect(self._dsn))
            elif self._others:
                self._others.pop().close()

    def ours(self) -> set[str]:
        """What the connections of workers are for."""
        return {name.removeprefix("holdfast ") for (name,) in self.watcher.execute(OURS)}

    def _one(self, query: str) -> int:
        row = self.watcher.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        for connection in (*self._others, self.watcher):
            connection.close()


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with small_server(MOST, synchronous_commit="on") as hf:
        yield hf


@pytest.fixture
def crowd(hf: Holdfast) -> Iterator[Crowd]:
    crowd = Crowd(hf.dsn)
    yield crowd
    crowd.close()


@pytest.fixture
def noop(hf: Holdfast) -> AsyncTask[None]:
    @hf.task(name="noop")
    async def noop() -> None: ...

    return noop


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon."""
    monkeypatch.setattr(spare, "PATIENCE", (0.1, 0.2))
    monkeypatch.setattr(outage, "LONGEST_CONNECT_PAUSE", 0.2)


def test_a_worker_without_a_connection_waits_for_one_and_says_so_once(
    hf: Holdfast, crowd: Crowd, noop: AsyncTask[None], told: Told, until: Until
) -> None:
    job = noop.enqueue()  # its connection stays in the pool, and serves `refresh`
    crowd.leave(0)
    worker = Work(hf, {})
    refused = told.wait_for("connections.refused")
    assert "1 when idle" in refused["needs"]
    assert "too many clients" in str(refused["error"])
    crowd.leave(3)
    until(lambda: job.refresh().state is JobState.COMPLETED)
    assert len(told.named("connections.refused")) == 1
    worker.end()


def test_a_worker_that_waits_for_a_connection_can_be_stopped(
    hf: Holdfast, crowd: Crowd, noop: AsyncTask[None], told: Told
) -> None:
    noop.enqueue()  # its connection stays in the pool, and makes the worker
    crowd.leave(0)
    worker = Work(hf, {})
    told.wait_for("connections.refused")
    worker.stop()
    worker.wait()
    assert told.named("worker.stopped")
    assert not told.named("worker.started")


@pytest.mark.parametrize("free", [1, 2])
def test_a_worker_with_fewer_connections_works_and_opens_the_others_later(
    hf: Holdfast, crowd: Crowd, noop: AsyncTask[None], work: StartWorker, told: Told, until: Until, free: int
) -> None:
    job = noop.enqueue()
    crowd.leave(free)
    work(hf, lease_time=2)
    until(lambda: job.refresh().state is JobState.COMPLETED)
    beats = len(told.named("heartbeat.accepted"))
    told.wait_for("heartbeat.accepted", beats + 3)
    assert "claimer" in crowd.ours()
    assert len(crowd.ours()) == free
    assert len(told.named("connections.refused")) == 1
    crowd.leave(3)
    until(lambda: noop.enqueue() and crowd.ours() >= {"claimer", "keeper", "finisher"})
    assert not told.named("worker.lost")


def test_a_retried_job_runs_over_the_only_connection(
    hf: Holdfast, crowd: Crowd, work: StartWorker, told: Told, until: Until
) -> None:
    @hf.task(name="twice")
    async def twice(ctx: Context) -> Retry | None:
        if ctx.attempt > 1:
            assert ctx.state == {"page": 1}
            return None
        ctx.checkpoint({"page": 1})
        return Retry(timedelta(0))

    job = twice.enqueue()
    crowd.leave(1)
    work(hf)
    until(lambda: job.refresh().state is JobState.COMPLETED)
    assert not told.named("start.failed")


def test_the_error_names_the_limit_and_the_way_out(hf: Holdfast, crowd: Crowd) -> None:
    hf.close()
    crowd.leave(0)
    with Holdfast(hf.dsn) as other, pytest.raises(TooManyConnections, match="too many clients") as caught:
        other.enqueue("noop")
    assert "max_connections" in (caught.value.hint or "")


def test_a_session_that_stands_in_hears_notifications_and_waits_for_the_disk(
    hf: Holdfast, crowd: Crowd
) -> None:
    crowd.watcher.execute(
        "create function holdfast.durability() returns text language sql as "
        "$$ select current_setting('synchronous_commit') $$"
    )
    pooled = Holdfast(hf.dsn, transaction_pooling=True)
    durability: Call[str] = Call(Function("durability", {}), (), one)
    heard = list[set[bytes]]()

    async def main() -> None:
        session = hf.database.listening_session(
            ("synchronous_commit", "off"), deadline=10, channels=["ears"], heard=heard.append, lost=print
        )
        assert await session.run(durability) == "off"
        heard.clear()
        crowd.watcher.execute("notify ears, 'mail'")
        assert await session.run_as(durability, ()) == "on"
        assert heard == [{b"mail"}]
        # The same for a session that asks for it, and in transactions of their own behind a pooler.
        spared = spare.SparedSession(hf.database.session(("synchronous_commit", "off")), session.run_as)
        spared._try_at = math.inf
        assert await spared.run(durability) == "off"
        assert await spared.run(durability, settings=()) == "on"
        behind = pooled.database.session(("synchronous_commit", "off"))
        assert await behind.run(durability) == "off"
        assert await behind.run(durability, settings=()) == "on"
        await behind.close()
        await session.close()

    asyncio.run(main())
    pooled.close()


def test_two_connections_that_are_refused_together_warn_once(told: Told) -> None:
    refusals, error = Refusals(), TooManyConnections("sorry, too many clients already")

    def refuse_another(event: str, _fields: Mapping[str, object]) -> None:
        if event == "connections.refused":
            refusals.warn(error)  # as the keeper's thread may do meanwhile

    unsubscribe = subscribe(refuse_another)
    try:
        refusals.warn(error)
    finally:
        unsubscribe()
    assert len(told.named("connections.refused")) == 1

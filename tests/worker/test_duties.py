"""The duties of a worker, as the worker times them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Schedule, schema
from holdfast.testing import Clock
from holdfast.values.errors import Collision, DatabaseUnavailable, HoldfastError
from holdfast.worker import duties, runtime
from holdfast.worker.duties import FIRST_PROMOTED, Duties
from tests.fixtures import Ask, Counts, Login, StartWorker, Until
from tests.waiting import Told


@asynccontextmanager
async def duties_of(hf: Holdfast) -> AsyncIterator[Duties]:
    session = hf.database.session()
    try:
        yield Duties(session, lease_time=30, due=lambda: None, expects_urgent=lambda: False)
    finally:
        await session.close()


@pytest.fixture
def due(hf: Holdfast, clock: Clock) -> Callable[[int], None]:
    """Makes so many jobs fall due."""

    @hf.task(name="note")
    async def note() -> None: ...

    def fall_due(amount: int) -> None:
        hf.enqueue_many(note.options(delay=60).call() for _ in range(amount))
        clock.advance(minutes=2)

    return fall_due


@pytest.mark.parametrize(("amount", "hastens"), [(FIRST_PROMOTED + 1, False), (1, True)])
def test_what_it_made_pending_itself_does_not_hasten_the_next_promotion(
    hf: Holdfast, due: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, amount: int, hastens: bool
) -> None:
    monkeypatch.setattr(duties, "PROMOTE_TOGETHER_SECONDS", 0)

    async def main() -> bool:
        async with duties_of(hf) as its:
            await its.promote()
            assert its.is_behind is not hastens
            its.notified()
            timers = asyncio.Event()
            asyncio.get_running_loop().call_later(0, timers.set)  # it comes after those that are due
            await timers.wait()
            if not hastens:  # what came while the last one was under way is looked at, all the same
                assert await its.promote() == duties.PROMOTE_TOGETHER_SECONDS
                assert await its.promote() == duties.SECONDS["promote"]
            return its.promote_now.is_set()

    due(amount)
    assert asyncio.run(main()) is hastens


def test_a_drain_waits_for_what_another_worker_is_promoting(
    hf: Holdfast,
    due: Callable[[int], None],
    counts: Counts,
    carried: Counter[str],
    holdfast_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duties, "PATIENCE", 60)

    async def main() -> None:
        async with duties_of(hf) as its:
            with psycopg.connect(holdfast_dsn) as other:
                other.execute("lock table holdfast.duty_promote in share update exclusive mode")
                promoting = asyncio.create_task(its.promote_all(asyncio.Event()))
                while carried["promote"] < 3 and not promoting.done():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
                assert counts() == {"scheduled": FIRST_PROMOTED + 1}
            await promoting

    due(FIRST_PROMOTED + 1)
    asyncio.run(main())
    assert counts() == {"pending": FIRST_PROMOTED + 1}


def test_a_drain_does_not_wait_for_ever_for_a_job_that_is_locked(
    hf: Holdfast,
    due: Callable[[int], None],
    counts: Counts,
    holdfast_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duties, "PATIENCE", 0)

    async def main() -> None:
        async with duties_of(hf) as its:
            with psycopg.connect(holdfast_dsn) as other:
                other.execute("select from holdfast.live for update")
                await its.promote_all(asyncio.Event())

    due(1)
    asyncio.run(main())
    assert counts() == {"scheduled": 1}


def test_a_drain_tries_again_where_a_promotion_fails(
    hf: Holdfast, due: Callable[[int], None], counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote, failures = Duties.promote, [DatabaseUnavailable("gone"), Collision("a deadlock")]

    async def failing(self: Duties) -> float:
        if failures:
            raise failures.pop()
        return await promote(self)

    async def main() -> None:
        async with duties_of(hf) as its:
            await its.promote_all(asyncio.Event())

    monkeypatch.setattr(duties, "PATIENCE", 60)
    monkeypatch.setattr(Duties, "promote", failing)
    due(1)
    asyncio.run(main())
    assert counts() == {"pending": 1}


def test_a_drain_that_is_told_to_stop_promotes_no_further(
    hf: Holdfast, due: Callable[[int], None], counts: Counts
) -> None:
    async def main() -> None:
        async with duties_of(hf) as its:
            stop = asyncio.Event()
            promoting = asyncio.create_task(its.promote_all(stop))
            while not its.is_behind:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            stop.set()
            await promoting

    due(10_000)
    asyncio.run(main())
    assert counts()["scheduled"] > 0


# Duties that fail, and roles that would cut them off.


@pytest.fixture
def slow_upkeep(ask: Ask) -> None:
    """Upkeep was never done, and takes longer than the timeout of an impatient role."""
    ask("delete from holdfast.duty")
    ask("alter function holdfast.settle_lanes() rename to settle_lanes_at_once")
    ask("create function holdfast.settle_lanes() returns integer language sql as "
        "$$ select pg_sleep(0.3); select holdfast.settle_lanes_at_once() $$")  # fmt: skip


@pytest.fixture
def impatient(login: Login, ask: Ask, holdfast_dsn: str) -> str:
    """The DSN of a worker's role with a statement_timeout that is much too short."""
    with psycopg.connect(holdfast_dsn, autocommit=True) as owner:
        schema.apply(owner, roles=True)
    dsn = login("worker", "producer")
    role = psycopg.conninfo.conninfo_to_dict(dsn)["user"]
    ask(f"alter role {role} set statement_timeout = '50ms'")
    return dsn


@pytest.mark.parametrize("transaction_pooling", [False, True])
def test_a_timeout_of_the_role_does_not_keep_a_worker_from_its_upkeep(
    work: StartWorker,
    impatient: str,
    slow_upkeep: None,
    ask: Ask,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    transaction_pooling: bool,
) -> None:
    monkeypatch.setattr(runtime, "CLEANUP_DELAY", 0)
    with Holdfast(impatient, transaction_pooling=transaction_pooling) as hf:
        work(hf)
        until(lambda: ask("select from holdfast.duty where name = 'upkeep' and done_at is not null"))


def failing(ask: Ask, function: str, signature: str) -> None:
    ask(f"create or replace function holdfast.{function}({signature}) returns integer language plpgsql as "
        "$$ begin raise exception 'out of order'; end $$")  # fmt: skip


def test_a_duty_that_fails_twice_in_a_row_is_noted_for_the_doctor(hf: Holdfast, ask: Ask) -> None:
    def noted() -> list[Any]:
        return ask("select error from holdfast.duty where name = 'upkeep'")

    async def main() -> None:
        async with duties_of(hf) as its:
            for _ in range(2):
                assert noted() == []
                with pytest.raises(HoldfastError, match="out of order"):
                    await its.upkeep()
            assert noted() == [("P0001: out of order",)]
            ask("delete from holdfast.duty")
            with pytest.raises(HoldfastError):
                await its.upkeep()
            assert noted() == [], "once a minute is enough"

    ask("delete from holdfast.duty")
    failing(ask, "upkeep", "rest interval default null")
    asyncio.run(main())


def test_a_part_of_a_duty_that_fails_is_told(
    work: StartWorker, ask: Ask, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "CLEANUP_DELAY", 0)
    ask("delete from holdfast.duty")
    failing(ask, "settle_lanes", "")
    work()
    failed = told.wait_for("duty.failed")
    assert failed["error"] == "duty upkeep failed: settle_lanes: out of order"


def test_a_worker_that_does_not_listen_starts_the_job_of_a_schedule_at_once(
    hf: Holdfast, work: StartWorker, until: Until, counts: Counts
) -> None:
    @hf.task(name="beat", schedule=Schedule(every=1))
    async def beat() -> None: ...

    work(notify=False, poll_interval=3600)
    until(lambda: counts().get("completed", 0) >= 2)

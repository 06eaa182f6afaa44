"""The duties of a worker, as the worker times them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Schedule, schema
from holdfast.testing import Clock
from holdfast.values.call import Call
from holdfast.values.errors import Collision, DatabaseUnavailable, HoldfastError
from holdfast.worker import duties
from holdfast.worker.duties import FIRST_PROMOTED, Duties
from holdfast.worker.held import HeldJobs
from tests.fixtures import Ask, Counts, Login, StartWorker, Until
from tests.waiting import Told


@asynccontextmanager
async def duties_of(hf: Holdfast) -> AsyncIterator[Duties]:
    session = hf.database.session()
    try:
        yield Duties(session, HeldJobs(), hf.database.session)
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


# When to look.


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry each time when a notification has made a worker look when the next job is due."""
    looks: list[None] = []
    look_soon = Duties.look_soon

    def noted(self: Duties) -> None:
        looks.append(None)
        look_soon(self)

    monkeypatch.setattr(Duties, "look_soon", noted)
    return looks


def test_a_job_that_became_pending_does_not_hasten_the_next_promotion(
    hf: Holdfast,
    work: StartWorker,
    counts: Counts,
    looks: list[None],
    until: Until,
    ask: Ask,
) -> None:
    """Each promotion notifies of the jobs that it has made pending, so it would cause the next one."""

    @hf.task(name="note")
    async def note() -> None: ...

    work(poll_interval=60)
    until(lambda: ask("select from holdfast.worker where asleep"))
    first = looks.copy()  # when it began to listen
    note.enqueue()
    until(lambda: counts() == {"completed": 1})
    assert looks == first
    until(lambda: ask("select from holdfast.worker where asleep"))
    note.options(delay=0.3).enqueue()
    until(lambda: counts() == {"completed": 2})
    assert looks == [*first, None], (
        "for the job that was scheduled, and not for the same one when it was promoted"
    )


@pytest.mark.parametrize(("amount", "hastens"), [(FIRST_PROMOTED + 1, False), (1, True)])
def test_a_notification_does_not_hasten_the_next_batch_of_due_jobs(
    hf: Holdfast, due: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, amount: int, hastens: bool
) -> None:
    """While more jobs are due, batches follow each other anyway, with pauses for others."""
    monkeypatch.setattr(duties, "PROMOTE_TOGETHER_SECONDS", 0)

    async def main() -> bool:
        async with duties_of(hf) as its:
            await its.promote()
            assert its.is_behind is not hastens
            its.look_soon()
            return "promote" in await started(its)

    due(amount)
    assert asyncio.run(main()) is hastens


class Answers:
    """A line on which `do_duties` answers with these rows."""

    def __init__(self, *rows: tuple[str, timedelta | None, int]) -> None:
        self._rows = list(rows)

    async def run(self, call: Call[Any]) -> Any:
        return call.read(self._rows)


async def started(its: Duties) -> set[str]:
    """Return the duties that start when the timers of this moment have ended."""
    timers = asyncio.Event()
    asyncio.get_running_loop().call_later(0, timers.set)
    await timers.wait()
    return {duty for duty, now in its.now.items() if now.is_set()}


@pytest.mark.parametrize("duty", ["fire", "promote", "advance", "upkeep", "sweep"])
@pytest.mark.parametrize("wait", [timedelta(0), timedelta(seconds=-1), timedelta(hours=1), None])
def test_a_duty_is_started_when_it_is_due(hf: Holdfast, duty: str, wait: timedelta | None) -> None:
    async def main() -> set[str]:
        its = Duties(Answers((duty, wait, 0)), HeldJobs(), hf.database.session)
        assert await its.do_duties() == duties.PAUSE_SECONDS
        return await started(its)

    assert asyncio.run(main()) == ({duty} if wait is not None and wait <= timedelta(0) else set())


def test_a_duty_that_is_due_much_later_is_left_to_the_next_worker(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(horizon: timedelta) -> set[str]:
        monkeypatch.setattr(duties, "HORIZON_SECONDS", horizon.total_seconds())
        soon = timedelta(milliseconds=1)
        its = Duties(Answers(("promote", soon, 0)), HeldJobs(), hf.database.session)
        await its.do_duties()
        timers = asyncio.Event()
        asyncio.get_running_loop().call_later(soon.total_seconds(), timers.set)
        await timers.wait()
        return await started(its)

    assert asyncio.run(main(timedelta(milliseconds=1))) == {"promote"}
    assert asyncio.run(main(timedelta(0))) == set()


def test_the_next_call_comes_when_the_database_says_or_a_little_earlier(hf: Holdfast) -> None:
    async def main() -> None:
        its = Duties(Answers(("do_duties", timedelta(seconds=7), 0)), HeldJobs(), hf.database.session)
        pauses = {await its.do_duties() for _ in range(20)}
        assert all(6.3 <= pause <= 7 for pause in pauses)
        assert len(pauses) > 1, "or all workers would come at once"

    asyncio.run(main())


def test_jobs_that_were_taken_back_are_told(hf: Holdfast, told: Told) -> None:
    async def main() -> None:
        for done in (0, 3):
            await Duties(Answers(("recover", None, done)), HeldJobs(), hf.database.session).do_duties()

    asyncio.run(main())
    assert told.named("jobs.recovered") == [{"jobs": 3}]


def test_a_look_is_not_put_off_by_further_notifications(hf: Holdfast) -> None:
    """Jobs for later may be enqueued in a stream."""

    async def main() -> None:
        async with duties_of(hf) as its, asyncio.timeout(2):
            while not its.now["promote"].is_set():
                its.look_soon()
                await asyncio.sleep(0)

    asyncio.run(main())


def test_a_look_is_not_put_off_by_what_was_known_before(hf: Holdfast) -> None:
    """`do_duties` may have read the next time just before a job was enqueued that is due earlier."""

    async def main() -> None:
        its = Duties(Answers(("promote", timedelta(seconds=4), 0)), HeldJobs(), hf.database.session)
        its.look_soon()
        await its.do_duties()
        async with asyncio.timeout(2):
            await its.now["promote"].wait()

    asyncio.run(main())


# A drain.


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
    transaction_pooling: bool,
) -> None:
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


@pytest.mark.parametrize(
    "function",
    [
        "fire() returns interval",
        "promote(amount integer default 2000, also_fire boolean default true) returns interval",
        "sleep(worker uuid, asleep boolean default true, above integer default null) returns boolean",
    ],
    ids=["fire", "promote", "sleep"],
)
def test_a_call_that_costs_an_idle_worker_its_connection_is_repeated_after_pauses(
    work: StartWorker, ask: Ask, told: Told, function: str
) -> None:
    """A worker that reconnects looks when the next job is due, and that look fails again."""
    ask(f"create or replace function holdfast.{function} language plpgsql as "
        "$$ begin raise read_only_sql_transaction; end $$")  # fmt: skip
    work(lease_time=1)
    told.wait_for("listener.lost")
    told.wait_for("heartbeat.accepted", len(told.named("heartbeat.accepted")) + 7)  # for about a second
    assert len(told.named("listener.lost")) < 20


def test_a_part_of_a_duty_that_fails_is_told(work: StartWorker, ask: Ask, told: Told) -> None:
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

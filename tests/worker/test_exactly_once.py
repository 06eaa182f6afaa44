"""A handler that finishes its job in its own transaction: the effect and the end are one, or neither is."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import Rollback
from psycopg.errors import DivisionByZero, UndefinedTable

from holdfast import Context, GiveUp, Holdfast, IllegalTransition, Job, JobState, LeaseLost, Task
from tests.fixtures import Ask, StartWorker, Until
from tests.waiting import Told

Account = Callable[[], dict[int, int]]
Transfer = Callable[..., Task[..., Any]]


@pytest.fixture
def account(ask: Ask) -> Account:
    ask("create table account (id integer primary key, balance integer not null)")
    ask("insert into account values (1, 100), (2, 0)")
    return lambda: dict(ask("select id, balance from account order by id"))


@pytest.fixture(params=["sync", "async"])
def transfer(request: pytest.FixtureRequest, hf: Holdfast) -> Transfer:
    """`transfer(inside=…, afterwards=…)` declares the task; these are called in its block, and after it."""

    def declare(
        inside: Callable[[Context], Any] = lambda ctx: None,
        afterwards: Callable[[Context], Any] = lambda ctx: None,
    ) -> Task[..., Any]:
        move = "update account set balance = balance + %s where id = %s"

        @hf.task(name="sync", max_attempts=1)
        def sync(amount: int, ctx: Context) -> str:
            with ctx.transaction() as conn:
                conn.execute(move, [-amount, 1])
                conn.execute(move, [amount, 2])
                inside(ctx)
            afterwards(ctx)
            return "this no longer counts"

        @hf.task(name="async", max_attempts=1)
        async def async_(amount: int, ctx: Context) -> str:
            async with ctx.atransaction() as conn:
                await conn.execute(move, [-amount, 1])
                await conn.execute(move, [amount, 2])
                inside(ctx)
            afterwards(ctx)
            return "this no longer counts"

        return hf.tasks.get(request.param)

    return declare


def run(hf: Holdfast) -> None:
    hf.worker().run(drain=True)


def test_the_work_and_the_completion_are_committed_together(
    hf: Holdfast, transfer: Transfer, account: Account, told: Told
) -> None:
    task = transfer(inside=lambda ctx: ctx.set_result({"moved": 10}))
    job = task.enqueue(amount=10)
    run(hf)
    assert account() == {1: 90, 2: 10}
    end = job.refresh()
    assert (end.state, end.result) == (JobState.COMPLETED, {"moved": 10})
    assert told.named("report.refused") == []


def test_a_result_that_cannot_be_stored_is_a_bad_result(
    hf: Holdfast, transfer: Transfer, account: Account
) -> None:
    job = transfer(inside=lambda ctx: ctx.set_result({"a": object()})).enqueue(amount=10)
    run(hf)
    assert "BadResult" in (job.refresh().last_error or "")
    assert "result.a: object cannot be JSON" in (job.refresh().last_error or "")
    assert account() == {1: 100, 2: 0}


def test_nothing_remains_of_a_block_that_raises(hf: Holdfast, transfer: Transfer, account: Account) -> None:
    def fail(_ctx: Context) -> None:
        raise ValueError("no")

    job = transfer(inside=fail).enqueue(amount=10)
    run(hf)
    assert account() == {1: 100, 2: 0}
    assert job.refresh().state is JobState.DEAD


def test_nothing_remains_when_the_lease_was_lost(
    hf: Holdfast, transfer: Transfer, account: Account, ask: Ask, work: StartWorker, told: Told
) -> None:
    committed: list[Any] = []

    def take_away(ctx: Context) -> None:
        ask("update holdfast.job set lease = gen_random_uuid() where id = %s", ctx.job_id)

    job = transfer(inside=take_away, afterwards=committed.append).enqueue(amount=10)
    work()
    told.wait_for("report.refused")  # that it failed, under the lease that is lost
    assert (account(), committed) == ({1: 100, 2: 0}, [])
    assert not job.refresh().state.final


def test_what_a_handler_does_after_its_commit_no_longer_counts(
    hf: Holdfast, transfer: Transfer, account: Account, told: Told
) -> None:
    def fail(_ctx: Context) -> None:
        raise ValueError("too late")

    job = transfer(afterwards=fail).enqueue(amount=10)
    run(hf)
    assert account() == {1: 90, 2: 10}
    assert job.refresh().state is JobState.COMPLETED
    assert told.named("report.refused") == []
    assert told.named("job.failed") == []
    assert [event["job"] for event in told.named("handler.failed")] == [str(job.id)]


def test_a_job_is_completed_once(hf: Holdfast, transfer: Transfer, account: Account) -> None:
    refused: list[int] = []

    def again(ctx: Context) -> None:
        with pytest.raises(IllegalTransition, match="already"), ctx.transaction():
            pass
        refused.append(1)

    transfer(afterwards=again).enqueue(amount=10)
    run(hf)
    assert (account(), refused) == ({1: 90, 2: 10}, [1])


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_block_within_a_block_is_refused(hf: Holdfast, account: Account, kind: str) -> None:
    """The inner one would complete the job, whatever became of the outer."""

    @hf.task(name="sync", max_attempts=1)
    def sync(ctx: Context) -> None:
        with ctx.transaction() as conn:
            conn.execute("update account set balance = 0")
            with ctx.transaction() as inner:
                inner.execute("select 1")

    @hf.task(name="async", max_attempts=1)
    async def async_(ctx: Context) -> None:
        async with ctx.atransaction() as conn:
            await conn.execute("update account set balance = 0")
            async with ctx.atransaction() as inner:
                await inner.execute("select 1")

    job = hf.enqueue(kind, max_attempts=1)
    run(hf)
    assert "is in a transaction already" in (job.refresh().last_error or "")
    assert account() == {1: 100, 2: 0}


def test_every_slot_may_be_in_a_transaction_at_a_time(holdfast_dsn: str) -> None:
    hf = Holdfast(holdfast_dsn, pool_size=1)
    inside = threading.Barrier(12)

    @hf.task(name="sync")
    def sync(ctx: Context) -> None:
        with ctx.transaction():
            inside.wait(timeout=30)

    jobs = [sync.enqueue() for _ in range(12)]
    hf.worker(concurrency=12).run(drain=True)
    assert {job.refresh().state for job in jobs} == {JobState.COMPLETED}
    assert {job.refresh().attempt for job in jobs} == {1}
    hf.close()


def test_a_result_without_a_transaction_is_refused(hf: Holdfast) -> None:
    @hf.task(name="forgetful", max_attempts=1)
    def forgetful(ctx: Context) -> None:
        ctx.set_result(7)

    job = hf.enqueue("forgetful", max_attempts=1)
    run(hf)
    assert "there is no transaction" in (job.refresh().last_error or "")


def test_a_block_that_rolls_back_has_not_completed_the_job(hf: Holdfast, account: Account, ask: Ask) -> None:
    """psycopg's own way to do so raises nothing outside of the block: then the handler decides."""

    @hf.task(name="sync", max_attempts=1)
    def sync(ctx: Context) -> GiveUp:
        with ctx.transaction() as conn:
            conn.execute("update account set balance = 0")
            raise Rollback
        return GiveUp("not enough")

    @hf.task(name="async", max_attempts=1)
    async def async_(ctx: Context) -> GiveUp:
        async with ctx.atransaction() as conn:
            await conn.execute("update account set balance = 0")
            raise Rollback
        return GiveUp("not enough")

    jobs: list[Job[Any]] = [sync.enqueue(), async_.enqueue()]
    run(hf)
    assert [job.refresh().last_error for job in jobs] == ["not enough"] * 2
    assert account() == {1: 100, 2: 0}


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_is_ended_inside_its_block_is_a_failure(
    hf: Holdfast, account: Account, end: str
) -> None:
    @hf.task(name="hasty", max_attempts=1)
    def hasty(ctx: Context) -> None:
        with ctx.transaction() as conn:
            conn.execute("update account set balance = 50")
            conn.execute(end)

    job = hasty.enqueue()
    run(hf)
    assert job.refresh().state is JobState.DEAD
    assert "was ended inside its block" in (job.refresh().last_error or "")
    assert account() == ({1: 50, 2: 50} if end == "commit" else {1: 100, 2: 0})


def test_a_block_that_is_repeated_after_a_lost_reply_writes_nothing_twice(
    hf: Holdfast, account: Account, told: Told
) -> None:
    @hf.task(name="again", max_attempts=1)
    def again(ctx: Context) -> None:
        for _ in range(2):
            with ctx.transaction() as conn:
                conn.execute("update account set balance = balance - 10")
            ctx.completed = False  # as if the answer to the commit had been lost

    job = again.enqueue()
    run(hf)
    assert job.refresh().state is JobState.COMPLETED
    assert account() == {1: 90, 2: -10}
    (failed,) = told.named("job.failed")
    assert "already" in failed["error"]


def test_an_error_in_the_block_is_the_one_that_was_raised_there(hf: Holdfast) -> None:
    """Else neither the handler nor `give_up_on` would know it again."""
    kinds = (DivisionByZero, UndefinedTable)

    @hf.task(name="sync", give_up_on=kinds)
    def sync(query: str, ctx: Context) -> None:
        with ctx.transaction() as conn:
            conn.execute(query)

    @hf.task(name="async", give_up_on=kinds)
    async def async_(query: str, ctx: Context) -> None:
        async with ctx.atransaction() as conn:
            await conn.execute(query)

    jobs = [task.enqueue(query=query) for task in (sync, async_) for query in ("select 1 / 0", "table gone")]  # type: ignore[call-arg, call-overload]
    run(hf)
    ends = [job.refresh() for job in jobs]
    assert [end.state for end in ends] == [JobState.DEAD] * 4
    assert [end.last_error.partition(":")[0] for end in ends] == ["DivisionByZero", "UndefinedTable"] * 2


def test_a_lost_lease_is_raised_in_the_handler(hf: Holdfast, account: Account, ask: Ask) -> None:
    caught: list[LeaseLost] = []

    @hf.task(name="careful")
    def careful(ctx: Context) -> None:
        ask("update holdfast.job set lease = gen_random_uuid() where id = %s", ctx.job_id)
        try:
            with ctx.transaction() as conn:
                conn.execute("update account set balance = 0")
        except LeaseLost as error:
            caught.append(error)
            ask("update holdfast.job set lease = %s where id = %s", ctx.lease, ctx.job_id)

    job = careful.enqueue()
    run(hf)
    assert [error.id for error in caught] == [job.id]
    assert account() == {1: 100, 2: 0}


def test_a_handler_may_go_on_after_its_commit(
    hf: Holdfast, work: StartWorker, until: Until, told: Told
) -> None:
    """The job is no longer its own then, but it was not taken away."""
    ends: list[bool] = []

    @hf.task(name="later")
    async def later(ctx: Context) -> None:
        async with ctx.atransaction():
            pass
        try:
            await asyncio.sleep(2)
        finally:
            ends.append(ctx.cancelled)

    later.enqueue()
    work(lease_time=3)
    until(lambda: ends)
    assert ends == [False]
    assert told.named("lease.lost") == []


@pytest.mark.parametrize("said", ["publish(%s, %s, 'in.sql')", "progress(%s, %s, 10)"])
@pytest.mark.parametrize("ends", ["well", "badly"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_block_that_says_something_in_sql_does_not_wait_for_itself(
    hf: Holdfast, ask: Ask, kind: str, said: str, ends: str
) -> None:
    """Its transaction has locked the rows to which the worker would write what the handler said."""
    say = f"select holdfast.{said}"
    ask(f"alter database {ask('select quote_ident(current_database())')[0][0]} set lock_timeout = '3s'")

    @hf.task(name="sync", max_attempts=1)
    def sync(ctx: Context) -> None:
        with ctx.transaction() as conn:
            ctx.event("from.python")
            conn.execute(say, [ctx.job_id, ctx.lease])
            if ends == "badly":
                raise ValueError

    @hf.task(name="async", max_attempts=1)
    async def async_(ctx: Context) -> None:
        async with ctx.atransaction() as conn:
            ctx.event("from.python")
            await conn.execute(say, [ctx.job_id, ctx.lease])
            if ends == "badly":
                raise ValueError

    job = hf.tasks.get(kind).enqueue()
    run(hf)
    names = [event.name for event in job.events()]
    in_sql = ["in.sql"] if "publish" in said and ends == "well" else []
    assert names == [*in_sql, "from.python", "job.completed" if ends == "well" else "job.dead"]


@pytest.fixture
def keeper(hf: Holdfast) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(hf.dsn) as connection:
        yield connection


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_block_of_an_older_snapshot_lets_the_keeper_finish_first(
    hf: Holdfast, kind: str, keeper: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its events would go into its own transaction, and meet a row that changed since."""
    later = "set transaction isolation level repeatable read"

    def keep(ctx: Context) -> None:
        keeper.execute("select holdfast.progress(%s, %s, 10)", [ctx.job_id, ctx.lease])

    async def commit_of_keeper(_: float) -> None:
        keeper.commit()

    pauses = SimpleNamespace(sleep=lambda _: keeper.commit(), monotonic=time.monotonic)
    monkeypatch.setattr("holdfast.worker.context.context.time", pauses)
    monkeypatch.setattr("holdfast.worker.context.context.asyncio", SimpleNamespace(sleep=commit_of_keeper))

    @hf.task(name="sync", max_attempts=1)
    def sync(ctx: Context) -> None:
        with ctx.transaction() as conn:
            conn.execute(later)
            conn.execute("select from holdfast.jobs")
            keep(ctx)
            ctx.event("from.python")

    @hf.task(name="async", max_attempts=1)
    async def async_(ctx: Context) -> None:
        async with ctx.atransaction() as conn:
            await conn.execute(later)
            await conn.execute("select from holdfast.jobs")
            keep(ctx)
            ctx.event("from.python")

    job = hf.tasks.get(kind).enqueue()
    run(hf)
    assert job.refresh().state is JobState.COMPLETED, job.refresh().last_error
    assert [event.name for event in job.events()] == ["from.python"]

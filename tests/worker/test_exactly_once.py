"""A handler that finishes its job in its own transaction: the effect and the end are one, or neither is."""

import pytest

from holdfast import Context, Holdfast, IllegalTransition, JobState, LeaseLost


@pytest.fixture
def account(ask):
    ask("create table account (id integer primary key, balance integer not null)")
    ask("insert into account values (1, 100), (2, 0)")
    return lambda: dict(ask("select id, balance from account order by id"))


@pytest.fixture(params=["sync", "async"])
def transfer(request, hf: Holdfast):
    """`transfer(inside=…, afterwards=…)` declares the task; these are called in its block, and after it."""

    def declare(inside=lambda ctx: None, afterwards=lambda ctx: None):
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


def test_the_work_and_the_completion_are_committed_together(hf, transfer, account, told):
    task = transfer(inside=lambda ctx: ctx.set_result({"moved": 10}))
    job = task.enqueue(amount=10)
    run(hf)
    assert account() == {1: 90, 2: 10}
    end = job.refresh()
    assert (end.state, end.result) == (JobState.COMPLETED, {"moved": 10})
    assert told.named("report.refused") == []


def test_nothing_remains_of_a_block_that_raises(hf, transfer, account):
    def fail(_ctx: Context) -> None:
        raise ValueError("no")

    job = transfer(inside=fail).enqueue(amount=10)
    run(hf)
    assert account() == {1: 100, 2: 0}
    assert job.refresh().state is JobState.DEAD


def test_nothing_remains_when_the_lease_was_lost(hf, transfer, account, ask, work, told):
    committed = []

    def take_away(ctx: Context) -> None:
        ask("update holdfast.job set lease = gen_random_uuid() where id = %s", ctx.job_id)

    job = transfer(inside=take_away, afterwards=committed.append).enqueue(amount=10)
    work()
    told.wait_for("report.refused")  # that it failed, under the lease that is lost
    assert (account(), committed) == ({1: 100, 2: 0}, [])
    assert not job.refresh().state.final


def test_what_a_handler_does_after_its_commit_no_longer_counts(hf, transfer, account, told):
    def fail(_ctx: Context) -> None:
        raise ValueError("too late")

    job = transfer(afterwards=fail).enqueue(amount=10)
    run(hf)
    assert account() == {1: 90, 2: 10}
    assert job.refresh().state is JobState.COMPLETED
    assert told.named("report.refused") == []


def test_a_job_is_completed_once(hf, transfer, account):
    refused = []

    def again(ctx: Context) -> None:
        with pytest.raises(IllegalTransition, match="already"), ctx.transaction():
            pass
        refused.append(1)

    transfer(afterwards=again).enqueue(amount=10)
    run(hf)
    assert (account(), refused) == ({1: 90, 2: 10}, [1])


def test_a_lost_lease_is_raised_in_the_handler(hf, account, ask):
    caught = []

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

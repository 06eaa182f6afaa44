"""A worker that is lost, at a moment of one's choice, on the real SQL: its job runs again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast import Context, Holdfast, Task
from holdfast.testing import Clock, Crashes, drain_queue
from holdfast.values.errors import HoldfastError
from tests.fixtures import ADrain, Ask, Drain
from tests.testing import apart


@pytest.fixture
def ran() -> list[int]:
    """The attempts in which handlers ran."""
    return []


@pytest.fixture(params=["plain", "async"])
def charge(request: pytest.FixtureRequest, hf: Holdfast, ran: list[int]) -> Task[..., int]:
    if request.param == "plain":

        @hf.task(name="charge")
        def charge(card: int, ctx: Context) -> int:
            ran.append(ctx.attempt)
            return card

    else:

        @hf.task(name="charge")
        async def charge(card: int, ctx: Context) -> int:
            ran.append(ctx.attempt)
            return card

    return charge


def test_lost_before_the_handler_the_attempt_does_not_count(
    charge: Task[..., int], crash: Crashes, drain: Drain, ran: list[int]
) -> None:
    job = charge.enqueue(card=7)
    left = crash.before(charge)
    assert (left.id, left.state, left.attempt, ran) == (job.id, "claimed", 1, [])
    crash.recover()
    assert job.refresh().state == "pending"
    drain()
    assert (job.refresh().result, ran) == (7, [1])
    assert job.errors() == []


def test_lost_after_the_handler_it_runs_again_as_the_same_attempt(
    charge: Task[..., int], crash: Crashes, drain: Drain, ran: list[int]
) -> None:
    job = charge.enqueue(card=7)
    left = crash.after(charge)
    assert (left.state, left.attempt, ran) == ("running", 1, [1])
    crash.recover()
    drain()
    assert (job.refresh().state, ran) == ("completed", [1, 1])
    assert job.errors() == []


def test_lost_twice_the_second_time_counts(
    charge: Task[..., int], crash: Crashes, drain: Drain, ran: list[int]
) -> None:
    job = charge.enqueue(card=7)
    for _ in range(2):
        crash.after(charge)
        crash.recover()
    drain()
    assert (job.refresh().state, ran) == ("completed", [1, 1, 2])
    assert [error.error.partition(":")[0] for error in job.errors()] == ["lost"]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_lost_in_the_middle_of_the_handler(hf: Holdfast, crash: Crashes, drain: Drain, kind: str) -> None:
    ran: list[str] = []
    if kind == "plain":

        @hf.task(name="pay")
        def pay(ctx: Context) -> None:
            ran.append("begun")
            if ran == ["begun"]:
                crash.here("with", any="arguments")
            ran.append("ended")

    else:

        @hf.task(name="pay")
        async def pay(ctx: Context) -> None:
            ran.append("begun")
            if ran == ["begun"]:
                await crash.ahere("with", any="arguments")
            ran.append("ended")

    job = pay.enqueue()
    assert crash.during(pay).state == "running"
    crash.recover()
    drain()
    assert (job.refresh().state, ran) == ("completed", ["begun", "begun", "ended"])


def test_a_lost_worker_says_nothing_more_and_its_lease_holds(
    charge: Task[..., int], hf: Holdfast, crash: Crashes, drain: Drain, ran: list[int]
) -> None:
    job = charge.enqueue(card=7)
    crash.before(charge)
    drain()
    assert (job.refresh().state, ran) == ("claimed", [])
    assert [row.status for row in hf.workers.list()].count("busy") == 1
    crash.recover()
    assert [row.status for row in hf.workers.list()].count("lost") == 1


def test_recovery_takes_a_lease_and_not_much_more(
    charge: Task[..., int], crash: Crashes, clock: Clock
) -> None:
    charge.enqueue(card=7)
    crash.before(charge, lease_time=1000)
    begun = clock.now()
    crash.recover()
    assert 1000 < (clock.now() - begun).total_seconds() < 2000


def test_several_workers_are_lost_and_recovered(
    charge: Task[..., int], crash: Crashes, drain: Drain, ran: list[int]
) -> None:
    jobs = [charge.enqueue(card=card) for card in range(3)]
    crash.before(charge)
    crash.after(charge, lease_time=5)
    crash.recover()
    drain()
    assert [job.refresh().state for job in jobs] == ["completed"] * 3
    assert ran == [1] * 4


def test_a_job_that_loses_a_worker_each_time_ends_as_dead(charge: Task[..., int], crash: Crashes) -> None:
    job = charge.options(max_attempts=2).enqueue(card=7)
    for _ in range(3):
        crash.after(charge)
        crash.recover()
    assert job.refresh().state == "dead"


def test_what_must_never_run_twice_is_dead_after_a_crash(hf: Holdfast, crash: Crashes, drain: Drain) -> None:
    ran: list[str] = []
    launch = hf.task(name="launch", at_most_once=True)(lambda: ran.append("launch"))
    job = launch.enqueue()
    crash.after(launch)
    crash.recover()
    drain()
    assert (job.refresh().state, ran) == ("dead", ["launch"])


def test_what_a_handler_has_committed_with_its_job_stays(hf: Holdfast, crash: Crashes, ask: Ask) -> None:
    ask("create table account (balance integer)")
    ask("insert into account values (100)")

    @hf.task(name="withdraw")
    def withdraw(ctx: Context) -> None:
        with ctx.transaction() as conn:
            conn.execute("update account set balance = balance - 10")

    job = withdraw.enqueue()
    crash.after(withdraw)
    crash.recover()
    assert (job.refresh().state, ask("select balance from account")) == ("completed", [(90,)])


def test_only_the_named_task_loses_the_worker(hf: Holdfast, charge: Task[..., int], crash: Crashes) -> None:
    other = hf.task(name="other")(lambda: None).enqueue()
    job = charge.enqueue(card=7)
    assert crash.before("charge").id == job.id
    assert other.refresh().state == "completed"


def test_any_task_will_do_if_none_is_named(charge: Task[..., int], crash: Crashes) -> None:
    job = charge.enqueue(card=7)
    assert crash.before().id == job.id


def test_a_delayed_job_is_no_job_to_crash_with_until_it_is_due(
    charge: Task[..., int], crash: Crashes, clock: Clock
) -> None:
    charge.options(delay=60).enqueue(card=7)
    with pytest.raises(AssertionError, match="no job of charge was due") as failed:
        crash.before(charge)
    assert "charge {'card': 7} on default, scheduled for" in str(failed.value)
    clock.advance(minutes=1)
    assert crash.before(charge).state == "claimed"


def test_a_handler_that_never_crashes_is_told(charge: Task[..., int], crash: Crashes) -> None:
    job = charge.enqueue(card=7)
    with pytest.raises(AssertionError, match=r"no job of charge called crash.here\(\).\nNo job is live."):
        crash.during(charge)
    assert job.refresh().state == "completed"


def test_to_recover_without_a_crash_is_a_mistake(crash: Crashes) -> None:
    with pytest.raises(AssertionError, match="no worker was lost"):
        crash.recover()


def test_elsewhere_a_crash_is_a_failure_like_any_other(hf: Holdfast, crash: Crashes, drain: Drain) -> None:
    @hf.task(name="pay")
    def pay() -> None:
        crash.here()

    job = pay.enqueue()
    drain()
    assert job.refresh().state == "scheduled"
    assert "crash.during() did not run" in (job.refresh().last_error or "")


def test_in_a_coroutine(charge: Task[..., int], crash: Crashes, adrain: ADrain, ran: list[int]) -> None:
    async def main() -> None:
        job = await charge.aenqueue(card=7)
        assert (await crash.abefore(charge)).state == "claimed"
        await crash.arecover()
        assert (await crash.aafter(charge)).state == "running"
        await crash.arecover()
        await adrain()
        assert (await job.arefresh()).state == "completed"

    asyncio.run(main())
    assert ran == [1, 2]


def test_in_the_middle_of_a_coroutine(hf: Holdfast, crash: Crashes, adrain: ADrain) -> None:
    sending: Callable[[str], Awaitable[str]] = crash.ahere

    @hf.task(name="send")
    async def send() -> str:
        return await sending("hello")

    async def main() -> None:
        nonlocal sending
        job = await send.aenqueue()
        assert (await crash.aduring(send)).state == "running"
        sending = _sent
        await crash.arecover()
        await adrain()
        assert (await job.arefresh()).result == "sent hello"

    asyncio.run(main())


def test_in_one_task_of_a_group(hf: Holdfast, crash: Crashes) -> None:
    @hf.task(name="both")
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
            group.create_task(crash.ahere())

    both.enqueue()
    assert crash.during(both).state == "running"


def test_a_handler_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, holdfast_dsn: str) -> None:
    monkeypatch.setenv("HOLDFAST_DSN", holdfast_dsn)
    with apart.hf:
        crash, job = Crashes(apart.hf), apart.double.enqueue(number=2)
        crash.before(apart.double)
        crash.recover()
        crash.after(apart.double)
        crash.recover()
        drain_queue(apart.hf)
        assert (job.refresh().result, job.refresh().attempt) == (4, 2)


async def _sent(text: str) -> str:
    return f"sent {text}"


def test_a_plain_crash_in_a_coroutine_says_what_to_write(charge: Task[..., int], crash: Crashes) -> None:
    async def main() -> None:
        crash.before(charge)

    with pytest.raises(HoldfastError, match=r"Write await crash.abefore\(…\)"):
        asyncio.run(main())

"""Draining: everything that is due, and whatever that makes due."""

import asyncio

import pytest

from holdfast import Holdfast, Retry
from holdfast.testing import Clock
from holdfast.values.errors import HoldfastError
from tests.fixtures import ADrain, AsyncTask, Counts, Drain


@pytest.fixture
def chain(hf: Holdfast) -> AsyncTask[int]:
    """A task whose job enqueues the next one, delayed by nothing."""

    @hf.task(name="chain")
    async def chain(left: int) -> int:
        if left:
            await chain.options(delay=0.001).aenqueue(left=left - 1)
        return left

    return chain


def test_what_a_job_makes_due_is_run_too(chain: AsyncTask[int], drain: Drain, counts: Counts) -> None:
    chain.enqueue(left=3)
    drain()
    assert counts() == {"completed": 4}


def test_in_a_coroutine_too(chain: AsyncTask[int], adrain: ADrain, counts: Counts) -> None:
    async def main() -> None:
        await chain.aenqueue(left=3)
        await adrain(concurrency=2)

    asyncio.run(main())
    assert counts() == {"completed": 4}


def test_in_a_coroutine_handlers_run_in_its_loop(hf: Holdfast, adrain: ADrain) -> None:
    async def main() -> asyncio.AbstractEventLoop:
        hf.task(name="look")(look)
        await hf.aenqueue("look")
        await adrain()
        return asyncio.get_running_loop()

    seen: list[asyncio.AbstractEventLoop] = []

    async def look() -> None:
        seen.append(asyncio.get_running_loop())

    assert [asyncio.run(main())] == seen


def test_what_is_not_due_waits_for_the_clock(
    chain: AsyncTask[int], clock: Clock, drain: Drain, adrain: ADrain
) -> None:
    job = chain.options(delay=3600).enqueue(left=0)
    drain()
    assert job.refresh().state == "scheduled"
    clock.advance(hours=1)
    asyncio.run(adrain())
    assert job.refresh().state == "completed"


def test_a_job_that_asks_to_be_tried_again_at_once_is(hf: Holdfast, drain: Drain) -> None:
    tries: list[str] = []

    @hf.task(name="stubborn")
    def stubborn() -> Retry | None:
        tries.append("again")
        return Retry(after=0) if len(tries) < 3 else None

    job = stubborn.enqueue()
    drain()
    assert (job.refresh().state, len(tries)) == ("completed", 3)


def test_what_no_worker_takes_is_left(hf: Holdfast, chain: AsyncTask[int], drain: Drain) -> None:
    hf.queues.pause("later")
    left = [chain.options(queue="later").enqueue(left=0), hf.enqueue("unknown.task")]
    done = chain.enqueue(left=1)
    drain()
    assert [job.refresh().state for job in (*left, done)] == ["pending", "pending", "completed"]


def test_an_app_of_ones_own_is_drained_if_it_is_named(
    holdfast_dsn: str, drain: Drain, adrain: ADrain
) -> None:
    with Holdfast(holdfast_dsn) as app:
        add = app.task(name="add")(lambda a, b: a + b)
        jobs = [add.enqueue(a=2, b=3)]
        drain(app)
        jobs.append(add.enqueue(a=3, b=4))
        asyncio.run(adrain(app))
        assert [job.refresh().result for job in jobs] == [5, 7]


def test_a_plain_drain_in_a_coroutine_says_what_to_write(drain: Drain) -> None:
    async def main() -> None:
        drain()

    with pytest.raises(HoldfastError, match=r"drain\(\) runs a worker, .* Write await adrain\(\)\."):
        asyncio.run(main())

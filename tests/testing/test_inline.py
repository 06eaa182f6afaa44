"""Inline mode: an enqueue runs its job, by a real worker, before it returns."""

import asyncio
from typing import Any

import psycopg
import pytest

from holdfast import Context, GiveUp, Holdfast, Job, RetryPolicy, Task
from holdfast.testing import Clock, HandlerFailed
from holdfast.values.errors import HoldfastError
from tests.fixtures import ADrain, Counts, Drain, Inline
from tests.testing import apart


@pytest.fixture
def double(hf: Holdfast) -> Task[..., int]:
    @hf.task(name="double", max_attempts=2)
    def double(number: int) -> int:
        if number < 0:
            raise ValueError(f"{number} is below 0")
        return 2 * number

    return double


def test_a_job_is_done_when_its_enqueue_returns(hf: Holdfast, double: Task[..., int], inline: Inline) -> None:
    with inline():
        job = double.enqueue(number=2)
        named = hf.enqueue("double", {"number": 3})
    done = job.refresh()
    assert (done.state, done.result, done.attempt) == ("completed", 4, 1)
    assert done.worker is not None
    assert named.refresh().result == 6


def test_many_are_done_too(hf: Holdfast, double: Task[..., int], inline: Inline) -> None:
    with inline():
        jobs = hf.enqueue_many(double.call(number=number) for number in range(150))
    assert [job.refresh().result for job in jobs] == list(range(0, 300, 2))


def test_in_a_coroutine_too(hf: Holdfast, double: Task[..., int], inline: Inline) -> None:
    async def main() -> list[Any]:
        with inline():
            job = await double.aenqueue(number=2)
            many = await hf.aenqueue_many([double.call(number=3), double.call(number=4)])
            return [(await one.arefresh()).result for one in (job, *many)]

    assert asyncio.run(main()) == [4, 6, 8]


def test_enqueued_together_each_is_done_when_its_own_call_returns(hf: Holdfast, inline: Inline) -> None:
    @hf.task(name="slow")
    async def slow(number: int) -> int:
        for _ in range(100):
            await asyncio.sleep(0)
        return number

    async def done(number: int) -> Any:
        return (await (await slow.aenqueue(number=number)).arefresh()).result

    async def main() -> list[Any]:
        with inline():
            return await asyncio.gather(*map(done, range(5)))

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_outside_of_the_block_a_job_waits_as_ever(double: Task[..., int], inline: Inline) -> None:
    with inline():
        pass
    assert double.enqueue(number=2).refresh().state == "pending"


def test_blocks_may_be_nested(double: Task[..., int], inline: Inline) -> None:
    with inline():
        with inline():
            assert double.enqueue(number=1).refresh().state == "completed"
        assert double.enqueue(number=2).refresh().state == "completed"
    assert double.enqueue(number=3).refresh().state == "pending"


def test_what_a_handler_raises_comes_out_of_the_enqueue(
    double: Task[..., int], inline: Inline, hf: Holdfast
) -> None:
    with inline(), pytest.raises(HandlerFailed) as failed:
        double.enqueue(number=-1)
    assert str(failed.value) == "double ran inline and failed: ValueError: -1 is below 0; it is scheduled"
    assert isinstance(failed.value.__cause__, ValueError)
    assert (failed.value.job.attempt, failed.value.job.last_error) == (1, "ValueError: -1 is below 0")


def test_an_error_that_has_no_words_comes_out_too(hf: Holdfast, inline: Inline) -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("nothing to say")

    @hf.task(name="silent")
    def silent() -> None:
        raise SilentError

    with inline(), pytest.raises(HandlerFailed, match="silent ran inline and failed: SilentError") as failed:
        silent.enqueue()
    assert isinstance(failed.value.__cause__, SilentError)


def test_code_that_catches_errors_of_the_queue_does_not_catch_it(
    double: Task[..., int], inline: Inline
) -> None:
    def application() -> None:
        try:
            double.enqueue(number=-1)
        except (ValueError, HoldfastError):
            return

    with inline(), pytest.raises(HandlerFailed):
        application()


def test_in_a_coroutine_it_raises_too(double: Task[..., int], inline: Inline) -> None:
    async def main() -> None:
        with inline():
            await double.aenqueue(number=-1)

    with pytest.raises(HandlerFailed, match="-1 is below 0"):
        asyncio.run(main())


def test_of_many_the_first_that_failed_is_told(
    hf: Holdfast, double: Task[..., int], inline: Inline, counts: Counts
) -> None:
    with inline(), pytest.raises(HandlerFailed, match="-1 is below 0; it is scheduled, and 1 more failed"):
        hf.enqueue_many(double.call(number=number) for number in (1, -1, -2, 3))
    assert counts() == {"completed": 2, "scheduled": 2}


def test_a_job_is_retried_as_in_life(
    double: Task[..., int], inline: Inline, clock: Clock, drain: Drain
) -> None:
    with inline(), pytest.raises(HandlerFailed) as failed:
        double.enqueue(number=-1)
    clock.advance(hours=1)
    drain()
    assert failed.value.job.id
    with inline(), pytest.raises(HandlerFailed, match="it is dead"):
        double.options(max_attempts=1).enqueue(number=-2)


def test_a_failure_that_the_next_attempt_mends_at_once_is_not_told(hf: Holdfast, inline: Inline) -> None:
    @hf.task(name="flaky", retry=RetryPolicy(base=0, jitter=0))
    def flaky(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return ctx.attempt

    with inline():
        assert flaky.enqueue().refresh().result == 2


def test_an_outcome_that_is_returned_is_no_error(hf: Holdfast, inline: Inline) -> None:
    hopeless = hf.task(name="hopeless")(lambda: GiveUp("no use"))
    with inline():
        job: Job[Any] = hopeless.enqueue()
    assert (job.refresh().state, job.refresh().last_error) == ("dead", "no use")


def test_what_is_not_due_waits(double: Task[..., int], inline: Inline, clock: Clock, drain: Drain) -> None:
    with inline():
        job = double.options(delay=3600).enqueue(number=2)
        assert job.refresh().state == "scheduled"
        clock.advance(hours=1)
    drain()
    assert job.refresh().state == "completed"


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_a_handler_enqueues_is_done_as_well(
    hf: Holdfast, double: Task[..., int], inline: Inline, kind: str
) -> None:
    inner: list[Job[int]] = []
    if kind == "plain":

        @hf.task(name="outer")
        def outer(number: int) -> None:
            inner.append(double.enqueue(number=number))

    else:

        @hf.task(name="outer")
        async def outer(number: int) -> None:
            inner.append(await double.aenqueue(number=number))

    with inline():
        outer.enqueue(number=2)
        assert inner[0].refresh().result == 4
        with pytest.raises(HandlerFailed, match="double ran inline and failed"):
            outer.enqueue(number=-2)


def test_the_failure_of_a_job_that_waited_already_is_not_told(double: Task[..., int], inline: Inline) -> None:
    waiting = double.enqueue(number=-1)
    with inline():
        assert double.enqueue(number=2).refresh().result == 4
    assert waiting.refresh().state == "scheduled"


def test_on_a_connection_it_runs_only_after_the_commit(
    double: Task[..., int], inline: Inline, drain: Drain, holdfast_dsn: str
) -> None:
    with inline(), psycopg.connect(holdfast_dsn) as conn:
        job = double.on(conn).enqueue(number=2)
        other = double.enqueue(number=3)
        assert other.refresh().state == "completed"
        conn.commit()
        assert job.refresh().state == "pending"
    drain()
    assert job.refresh().state == "completed"


def test_on_a_connection_in_autocommit_it_runs_at_once(
    hf: Holdfast, double: Task[..., int], inline: Inline, holdfast_dsn: str
) -> None:
    with inline(), psycopg.connect(holdfast_dsn, autocommit=True) as conn:
        assert double.on(conn).enqueue(number=2).refresh().state == "completed"
        (job,) = hf.on(conn.cursor()).enqueue_many([double.call(number=3)])
        assert job.refresh().state == "completed"
        with conn.transaction():
            assert double.on(conn).enqueue(number=2) is not None


def test_on_an_async_connection(
    double: Task[..., int], inline: Inline, adrain: ADrain, holdfast_dsn: str
) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(holdfast_dsn) as conn:
            with inline():
                job = await double.on(conn).aenqueue(number=2)
            await conn.commit()
            assert (await job.arefresh()).state == "pending"
            await adrain()
            assert (await job.arefresh()).state == "completed"

    asyncio.run(main())


def test_a_plain_enqueue_in_a_coroutine_is_refused_before_anything_is_stored(
    double: Task[..., int], inline: Inline, counts: Counts
) -> None:
    async def main() -> None:
        with inline():
            double.enqueue(number=2)

    with pytest.raises(HoldfastError, match=r"Write await aenqueue\(…\)"):
        asyncio.run(main())
    assert counts() == {}


def test_for_an_app_of_ones_own(holdfast_dsn: str, inline: Inline) -> None:
    with Holdfast(holdfast_dsn) as app:
        add = app.task(name="add")(lambda a, b: a + b)
        with inline(app):
            assert add.enqueue(a=2, b=3).refresh().result == 5


def test_the_failure_of_a_handler_in_a_process_of_its_own_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, holdfast_dsn: str, inline: Inline
) -> None:
    monkeypatch.setenv("HOLDFAST_DSN", holdfast_dsn)
    with apart.hf, inline(apart.hf):
        assert apart.double.enqueue(number=2).refresh().result == 4
        with pytest.raises(HandlerFailed, match="ValueError: -2 is below 0") as failed:
            apart.double.enqueue(number=-2)
    assert failed.value.__cause__ is None

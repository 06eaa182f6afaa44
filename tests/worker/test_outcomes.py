"""What a handler returns or raises is what becomes of its job."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import (
    Cancel,
    Context,
    Done,
    Holdfast,
    Job,
    JobSnapshot,
    JobState,
    Retry,
    RetryPolicy,
    Snooze,
    Stop,
)
from holdfast.testing import Clock
from tests.fixtures import Counts, Drain
from tests.waiting import Told

Outcome = Callable[..., tuple[Job[Any], JobSnapshot]]


@pytest.fixture
def outcome(hf: Holdfast, drain: Drain) -> Outcome:
    """Run a handler once as a job; the job and what is known of it then."""

    def outcome(handler: Callable[..., Any], **options: Any) -> tuple[Job[Any], JobSnapshot]:
        task = hf.task(name="the.task", **options)(handler)
        job = task.enqueue()
        drain()
        return job, job.refresh()

    return outcome


def test_a_plain_value_is_the_result(outcome: Outcome) -> None:
    async def handler() -> dict[str, int]:
        return {"sent": 3}

    _, seen = outcome(handler)
    assert (seen.state, seen.result) == (JobState.COMPLETED, {"sent": 3})


def test_done_carries_the_result(outcome: Outcome) -> None:
    async def handler() -> Done:
        return Done([1, 2])

    assert outcome(handler)[1].result == [1, 2]


def test_nothing_is_a_result_too(outcome: Outcome) -> None:
    async def handler() -> None:
        return None

    _, seen = outcome(handler)
    assert (seen.state, seen.result) == (JobState.COMPLETED, None)


def test_retry_comes_back_after_its_delay_and_uses_up_an_attempt(
    outcome: Outcome, clock: Clock, drain: Drain
) -> None:
    async def handler(ctx: Context) -> Retry | str:
        return Retry(after=3600, error="rate limited") if ctx.attempt == 1 else "done"

    job, seen = outcome(handler)
    assert (seen.state, seen.attempt, seen.last_error) == (JobState.SCHEDULED, 1, "rate limited")
    clock.advance(minutes=59)
    drain()
    assert job.refresh().state is JobState.SCHEDULED
    clock.advance(minutes=2)
    drain()
    assert (job.refresh().result, job.refresh().attempt) == ("done", 2)


def test_retry_of_the_last_attempt_is_the_end_with_its_reason(outcome: Outcome) -> None:
    async def handler() -> Retry:
        return Retry(after=1, error="still closed")

    _, seen = outcome(handler, max_attempts=1)
    assert (seen.state, seen.last_error) == (JobState.DEAD, "still closed")


def test_snooze_comes_back_and_uses_up_no_attempt(outcome: Outcome, clock: Clock, drain: Drain) -> None:
    snoozes: list[int] = []

    async def handler(ctx: Context) -> Snooze | str:
        if len(snoozes) < 5:
            snoozes.append(ctx.attempt)
            return Snooze(60)
        return "awake"

    job, _ = outcome(handler, max_attempts=1)
    for _ in range(5):
        clock.advance(minutes=2)
        drain()
    assert job.refresh().result == "awake"
    assert job.errors() == []


def test_cancel_ends_it_for_good(outcome: Outcome) -> None:
    async def handler() -> Cancel:
        return Cancel("the user is gone")

    _, seen = outcome(handler)
    assert (seen.state, seen.last_error) == (JobState.CANCELLED, "the user is gone")


def test_an_outcome_that_was_not_made_is_a_failure_that_says_so(outcome: Outcome) -> None:
    async def handler() -> type[Cancel]:
        return Cancel

    assert "the handler returned Cancel itself" in (outcome(handler)[1].last_error or "")


@pytest.mark.parametrize("is_async", [True, False])
def test_stop_ends_the_attempt_from_deep_below(outcome: Outcome, is_async: bool) -> None:
    def deep() -> None:
        raise Stop(Cancel("no such account"))

    async def handler() -> None:
        deep()

    _, seen = outcome(handler if is_async else deep)
    assert (seen.state, seen.last_error) == (JobState.CANCELLED, "no such account")


def test_stop_with_a_result_that_cannot_be_stored_is_a_failure(outcome: Outcome) -> None:
    async def handler() -> None:
        raise Stop(Done(object()))

    job, seen = outcome(handler)
    assert seen.state is JobState.SCHEDULED
    assert job.errors()[0].error.startswith("BadResult")


class OwnError(BaseException):
    pass


def test_what_would_end_a_program_ends_only_the_attempt(hf: Holdfast, drain: Drain) -> None:
    errors = [SystemExit(3), KeyboardInterrupt(), OwnError(), asyncio.CancelledError("by hand")]

    @hf.task(name="plain")
    def plain(number: int) -> None:
        raise errors[number]

    @hf.task(name="coroutine")
    async def coroutine(number: int) -> None:
        raise errors[number]

    jobs = [
        (task.enqueue(number), error) for task in (plain, coroutine) for number, error in enumerate(errors)
    ]
    drain()
    for job, error in jobs:
        assert job.refresh().state is JobState.SCHEDULED
        assert job.errors()[0].error.startswith(type(error).__name__)


def test_a_plain_function_may_raise_stop_iteration(outcome: Outcome) -> None:
    # A Future refuses it, and a worker that passes it through one waits for ever.
    def handler() -> None:
        next(iter([]))

    job, seen = outcome(handler)
    assert seen.state is JobState.SCHEDULED
    assert "StopIteration" in job.errors()[0].error


def test_a_cancelled_future_inside_is_the_handlers_failure(outcome: Outcome) -> None:
    async def handler() -> None:
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner

    job, _ = outcome(handler)
    assert job.errors()[0].error.startswith("CancelledError")


def test_a_handler_that_runs_too_long_fails_with_its_timeout(outcome: Outcome) -> None:
    async def handler() -> None:
        await asyncio.Event().wait()

    job, seen = outcome(handler, timeout=0.05)
    assert seen.state is JobState.SCHEDULED
    assert job.errors()[0].error == "TimeoutError: the handler ran longer than its timeout of 0.05 s"


def test_a_timeout_inside_the_handler_is_its_own(outcome: Outcome) -> None:
    async def handler() -> None:
        raise TimeoutError("the mail server")

    assert outcome(handler, timeout=60)[0].errors()[0].error == "TimeoutError: the mail server"


def test_a_handler_that_ends_in_spite_of_its_timeout_is_done(outcome: Outcome) -> None:
    async def handler() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "all the same"

    assert outcome(handler, timeout=0.05)[1].result == "all the same"


def test_slots_go_on_after_every_kind_of_end(hf: Holdfast, drain: Drain, counts: Counts) -> None:
    ways: list[Callable[[], object]] = [
        lambda: None,
        lambda: 1 / 0,
        lambda: next(iter([])),
        lambda: (_ for _ in ()).throw(SystemExit),
        lambda: (_ for _ in ()).throw(asyncio.CancelledError),
    ]

    @hf.task(name="any.way", max_attempts=1)
    async def any_way(way: int) -> None:
        ways[way]()

    @hf.task(name="any.way.plain", max_attempts=1)
    def any_way_plain(way: int) -> None:
        ways[way]()

    for _ in range(5):
        for way in range(len(ways)):
            any_way.enqueue(way)
            any_way_plain.enqueue(way)
    drain(concurrency=2)
    assert counts() == {"completed": 10, "dead": 40}


def test_a_handler_does_not_see_what_another_one_set(hf: Holdfast, drain: Drain) -> None:
    user: contextvars.ContextVar[int] = contextvars.ContextVar("user")
    seen: list[object] = []

    @hf.task(name="greet")
    async def greet(number: int) -> None:
        seen.append(user.get(None))
        user.set(number)
        await asyncio.sleep(0)
        assert user.get() == number
        assert await asyncio.create_task(inner()) == number

    async def inner() -> int:
        return user.get()

    jobs = [greet.enqueue(number) for number in range(5)]
    drain(concurrency=1)
    assert {job.refresh().state for job in jobs} == {JobState.COMPLETED}
    assert seen == [None] * 5


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise TypeError("the truth of this is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_what_a_handler_leaves_behind_does_not_keep_the_others_from_running(
    hf: Holdfast, drain: Drain, counts: Counts
) -> None:
    left: contextvars.ContextVar[object] = contextvars.ContextVar("left")
    seen: list[object] = []

    @hf.task(name="leave", max_attempts=1)
    async def leave(number: int) -> None:
        seen.append(left.get(None))
        left.set(Incomparable())
        await asyncio.sleep(0)
        left.set(Incomparable() if number % 3 else None)
        assert number % 5

    hf.enqueue_many(leave.call(number) for number in range(100))
    drain(concurrency=3)
    assert counts() == {"completed": 80, "dead": 20}
    assert seen == [None] * 100


@pytest.mark.parametrize("is_async", [True, False])
def test_a_traceback_begins_with_the_handler(outcome: Outcome, is_async: bool) -> None:
    def handler() -> None:
        raise ValueError

    async def async_handler() -> None:
        handler()

    lines = outcome(async_handler if is_async else handler)[0].errors()[0].traceback.splitlines()
    assert lines[1].endswith("async_handler" if is_async else "in handler")


def test_plain_functions_run_in_parallel_threads(hf: Holdfast, drain: Drain) -> None:
    together = threading.Barrier(4, timeout=10)

    @hf.task(name="meet")
    def meet() -> None:
        together.wait()

    jobs = [meet.enqueue() for _ in range(4)]
    drain(concurrency=4)
    assert {job.refresh().state for job in jobs} == {JobState.COMPLETED}


def test_the_news_of_a_failure_say_whether_it_was_the_last(hf: Holdfast, drain: Drain, told: Told) -> None:
    @hf.task(name="fail", max_attempts=2, retry=RetryPolicy(base=0), give_up_on=KeyError)
    def fail(kind: str) -> None:
        raise {"value": ValueError, "key": KeyError}[kind]("no")

    fail.enqueue("value")
    drain()
    fail.enqueue("key")
    drain()
    hf.task(name="once", at_most_once=True)(fail.function)
    hf.enqueue("once", {"kind": "value"})
    drain()
    ends = [(it["attempt"], it["max_attempts"], it.get("dead")) for it in told.named("job.failed")]
    assert ends == [(1, 2, None), (2, 2, True), (1, 2, True), (1, 1, True)]
    assert len(hf.dead.list()) == 3

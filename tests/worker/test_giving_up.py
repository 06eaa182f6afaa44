"""Failures that are not tried again, dead letters in Python, and policies that an operator sets."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import (
    BadValue,
    GiveUp,
    Holdfast,
    IllegalTransition,
    JobNotFound,
    JobState,
    RetryPolicy,
    Stop,
    UnknownOption,
)


@pytest.fixture
def drain(hf: Holdfast) -> Callable[[], None]:
    return lambda: hf.worker().run(drain=True)


def test_a_handler_gives_up_whatever_attempts_are_left(hf: Holdfast, drain: Callable[[], None]) -> None:
    @hf.task(name="returns", max_attempts=9)
    async def returns() -> GiveUp:
        return GiveUp("the account is closed")

    @hf.task(name="raises", max_attempts=9)
    def raises() -> None:
        raise Stop(GiveUp("the account is closed"))

    jobs = [returns.enqueue(), raises.enqueue()]
    drain()
    for job in jobs:
        end = job.refresh()
        assert (end.state, end.attempt, end.last_error) == (JobState.DEAD, 1, "the account is closed")
        assert [error.error for error in job.errors()] == ["the account is closed"]


def test_what_to_give_up_on_and_what_to_retry_is_said_by_exception(
    hf: Holdfast, drain: Callable[[], None]
) -> None:
    errors = {error.__name__: error for error in (KeyError, LookupError, ConnectionError, ValueError)}

    @hf.task(name="fails", give_up_on=KeyError, retry_on=(LookupError, ConnectionError))
    async def fails(what: str) -> None:
        raise errors[what](what)

    jobs = {what: fails.enqueue(what=what) for what in errors}
    drain()
    assert {what: job.refresh().state for what, job in jobs.items()} == {
        "KeyError": JobState.DEAD,  # a LookupError too, but to give up has the last word
        "LookupError": JobState.SCHEDULED,
        "ConnectionError": JobState.SCHEDULED,
        "ValueError": JobState.DEAD,  # not among those to retry
    }


@pytest.mark.parametrize("value", ["ValueError", (ValueError, "x"), (), 5])
def test_only_exceptions_can_be_given_up_on(hf: Holdfast, value: Any) -> None:
    with pytest.raises(BadValue, match="give_up_on"):
        hf.task(name="a", give_up_on=value)(lambda: None)


def test_dead_jobs_are_found_and_replayed(hf: Holdfast, drain: Callable[[], None]) -> None:
    broken = True

    @hf.task(name="fragile", queue="mail", max_attempts=1)
    async def fragile(n: int) -> int:
        if broken:
            raise ConnectionError(f"refused {n}")
        return n

    jobs = hf.enqueue_many(fragile.call(n=n) for n in range(4))
    drain()
    assert {job.id for job in hf.dead.list(queue="mail")} == {job.id for job in jobs}
    assert [job.payload for job in hf.dead.list(error="REFUSED 2")] == [{"n": 2}]
    now = datetime.now(UTC)
    assert hf.dead.list(after=now + timedelta(hours=1)) == []
    broken = False
    assert jobs[0].replay() is JobState.PENDING
    assert hf.dead.replay_many(error="refused 1") == 1
    assert asyncio.run(hf.dead.areplay_many(everything=True, limit=1)) == 1
    drain()
    ends = [job.refresh() for job in jobs]
    assert sorted(end.state for end in ends) == ["completed"] * 3 + ["dead"]
    assert [end.attempt for end in ends] == [1] * 4
    with pytest.raises(IllegalTransition, match="is completed: only a dead job can be replayed"):
        jobs[0].replay()
    (left,) = hf.dead.list()
    hf.job(left.id).purge()
    with pytest.raises(JobNotFound):
        hf.job(left.id).refresh()
    assert hf.dead.purge_many(queue="mail") == 0


def test_everything_is_replayed_or_purged_only_if_that_is_said(hf: Holdfast) -> None:
    for action in (hf.dead.replay_many, hf.dead.purge_many):
        with pytest.raises(BadValue, match="everything"):
            action()
        with pytest.raises(UnknownOption, match="queue"):
            action(quue="mail")  # type: ignore[call-arg]
        with pytest.raises(BadValue, match="limit"):
            action(queue="mail", limit=0)
        with pytest.raises(BadValue, match="time zone"):
            action(before=datetime(2026, 1, 1))  # noqa: DTZ001 - on purpose
        assert action(everything=True) == 0


@pytest.mark.parametrize("nothing", [{"queue": None}, {"error": ""}, {"queue": None, "error": ""}])
def test_a_filter_that_filters_nothing_is_none(hf: Holdfast, nothing: dict[str, Any]) -> None:
    hf.enqueue("mail.send").give_up("no")
    for act in (hf.dead.replay_many, hf.dead.purge_many):
        with pytest.raises(BadValue, match="no filter is given"):
            act(**nothing)
        with pytest.raises(BadValue, match="everything 'no': must be True or False"):
            act(everything="no")  # type: ignore[arg-type]
    assert len(hf.dead.list(**nothing)) == 1


def test_a_waiting_job_is_given_up_and_replayed(hf: Holdfast, drain: Callable[[], None]) -> None:
    @hf.task(name="a")
    async def a() -> None: ...

    job = a.options(delay=3600).enqueue()
    assert job.give_up("not this year") is JobState.DEAD
    assert job.refresh().last_error == "not this year"
    assert asyncio.run(job.areplay()) is JobState.PENDING
    drain()
    assert job.refresh().state is JobState.COMPLETED


def test_an_operators_policy_wins_until_it_is_reset(hf: Holdfast) -> None:
    @hf.task(name="a", retry=RetryPolicy(max_attempts=5, base=30))
    async def a() -> None: ...

    hf.worker()
    assert [(row.task, row.max_attempts, row.declared) for row in hf.policies.list()] == [("a", 5, True)]
    hf.policies.set("a", RetryPolicy(max_attempts=2, base=1))
    hf.worker()
    (row,) = hf.policies.list()
    assert (row.max_attempts, row.base, row.declared) == (2, timedelta(seconds=1), False)
    assert hf.policies.reset("a")
    assert not asyncio.run(hf.policies.areset("a"))
    hf.worker()
    assert hf.policies.list()[0].max_attempts == 5

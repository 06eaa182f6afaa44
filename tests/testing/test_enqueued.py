"""Assertions on what is enqueued: what they find, what they see, and what they say when they fail."""

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import BadArguments, BadName, BadValue, Holdfast, Secret, Task, UnknownOption
from holdfast.testing import Clock, Crashes, assert_enqueued as plainly
from tests.fixtures import AAssertEnqueued, ARefuteEnqueued, AssertEnqueued, Drain, RefuteEnqueued


@pytest.fixture
def welcome(hf: Holdfast) -> Task[..., None]:
    @hf.task(name="mail.welcome")
    def welcome(user_id: int, name: str = "Ada") -> None: ...

    return welcome


def said(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(AssertionError) as failed:
        call(*args, **kwargs)
    return str(failed.value)


def test_a_job_is_found_by_its_task_or_the_name_of_it(
    hf: Holdfast, welcome: Task[..., None], assert_enqueued: AssertEnqueued
) -> None:
    job = welcome.enqueue(user_id=7)
    assert [found.id for found in assert_enqueued(welcome)] == [job.id]
    assert [found.id for found in assert_enqueued("mail.welcome")] == [job.id]
    assert [found.id for found in plainly(hf, welcome)] == [job.id]


def test_all_that_match_are_given_oldest_first(
    welcome: Task[..., None], assert_enqueued: AssertEnqueued
) -> None:
    jobs = [welcome.enqueue(user_id=user_id) for user_id in range(3)]
    assert [found.id for found in assert_enqueued(welcome)] == [job.id for job in jobs]


def test_a_part_of_the_arguments_is_enough(
    welcome: Task[..., None], assert_enqueued: AssertEnqueued, refute_enqueued: RefuteEnqueued
) -> None:
    welcome.enqueue(user_id=7, name="Grace")
    assert_enqueued(welcome, args={"user_id": 7})
    assert_enqueued(welcome, args={"user_id": 7, "name": "Grace"})
    refute_enqueued(welcome, args={"user_id": 7, "name": "Ada"})
    refute_enqueued(welcome, args={"user_id": 8})


def test_arguments_are_compared_as_the_payload_has_them(
    hf: Holdfast, assert_enqueued: AssertEnqueued
) -> None:
    @hf.task(name="report")
    def report(day: date, owner: UUID, token: Secret[str]) -> None: ...

    owner = UUID(int=7)
    report.enqueue(day=date(2026, 5, 4), owner=owner, token="s3cret")  # type: ignore[arg-type]
    assert_enqueued(report, args={"day": date(2026, 5, 4), "owner": owner})
    assert_enqueued(report, args={"token": "s3cret"})
    assert_enqueued(report, args={"token": Secret("s3cret")})
    assert_enqueued("report", args={"token": "s3cret", "day": "2026-05-04"})


def test_queue_and_priority_count(
    welcome: Task[..., None], assert_enqueued: AssertEnqueued, refute_enqueued: RefuteEnqueued
) -> None:
    welcome.options(queue="bulk", priority=30).enqueue(user_id=7)
    assert_enqueued(welcome, queue="bulk", priority=30)
    refute_enqueued(welcome, queue="default")
    refute_enqueued(welcome, priority=100)


def test_the_time_counts_to_the_second(
    welcome: Task[..., None], clock: Clock, assert_enqueued: AssertEnqueued, refute_enqueued: RefuteEnqueued
) -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)
    welcome.options(run_at=at).enqueue(user_id=1)
    welcome.options(delay=3600).enqueue(user_id=2)
    welcome.enqueue(user_id=3)
    assert_enqueued(welcome, args={"user_id": 1}, run_at=at)
    refute_enqueued(welcome, run_at=at + timedelta(minutes=1))
    assert_enqueued(welcome, args={"user_id": 2}, delay=3600, count=1)
    assert_enqueued(welcome, args={"user_id": 3}, delay=0, count=1)
    clock.advance(hours=2)
    assert_enqueued(welcome, args={"user_id": 2}, delay=timedelta(hours=1))


def test_the_count_is_exact(welcome: Task[..., None], assert_enqueued: AssertEnqueued) -> None:
    for user_id in range(2):
        welcome.enqueue(user_id=user_id)
    assert len(assert_enqueued(welcome, count=2)) == 2
    assert assert_enqueued(welcome, args={"user_id": 5}, count=0) == []
    assert "expected 1 job mail.welcome; found 2:\n" in said(assert_enqueued, welcome, count=1)
    assert "expected 3 jobs mail.welcome; found 2.\n" in said(assert_enqueued, welcome, count=3)


def test_what_is_held_is_enqueued_and_what_has_ended_is_not(
    welcome: Task[..., None], crash: Crashes, drain: Drain, assert_enqueued: AssertEnqueued
) -> None:
    welcome.enqueue(user_id=7)
    crash.before(welcome)
    assert [job.state for job in assert_enqueued(welcome)] == ["claimed"]
    crash.recover()
    crash.after(welcome)
    assert [job.state for job in assert_enqueued(welcome)] == ["running"]
    crash.recover()
    drain()
    assert said(assert_enqueued, welcome) == (
        "expected a job mail.welcome; found none.\n"
        "No job is live.\n"
        "Of mail.welcome, some have ended (completed) and are not enqueued any more."
    )


def test_a_failure_lists_the_nearest_jobs_and_what_makes_them_others(
    hf: Holdfast, welcome: Task[..., None], assert_enqueued: AssertEnqueued
) -> None:
    hf.enqueue("report", {"day": 1}, queue="slow")
    welcome.options(delay=60).enqueue(user_id=8)
    welcome.enqueue(user_id=7)
    text = said(assert_enqueued, welcome, args={"user_id": 7, "name": "Ada"}, queue="mail", delay=3600)
    lines = text.splitlines()
    assert lines[0] == (
        "expected a job mail.welcome with {'user_id': 7, 'name': 'Ada'} on queue mail "
        "with a delay of 1:00:00; found none."
    )
    assert lines[1] == "The nearest of the live jobs (3):"
    assert lines[2] == (
        "  mail.welcome {'user_id': 7} on default, pending: "
        "it has no name, its queue is default, its delay is 0:00:00"
    )
    assert lines[3].startswith("  mail.welcome {'user_id': 8} on default, scheduled for ")
    assert lines[3].endswith("UTC: user_id is 8, it has no name, its queue is default, its delay is 0:01:00")
    assert lines[4].startswith("  report {'day': 1} on slow, pending: its task is report, ")


def test_a_failure_shows_ten_jobs_at_most(
    hf: Holdfast, welcome: Task[..., None], assert_enqueued: AssertEnqueued
) -> None:
    hf.enqueue_many(welcome.call(user_id=user_id) for user_id in range(200))
    lines = said(assert_enqueued, welcome, args={"user_id": 1000}).splitlines()
    assert (len(lines), lines[-1]) == (13, "  … and 190 more")


def test_a_failure_shows_no_secret(
    hf: Holdfast, assert_enqueued: AssertEnqueued, refute_enqueued: RefuteEnqueued
) -> None:
    @hf.task(name="login")
    def login(token: Secret[str]) -> None: ...

    login.enqueue(token="s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in said(refute_enqueued, login)
    text = said(assert_enqueued, login, args={"token": "0ther"})
    assert "s3cret" not in text
    assert "0ther" not in text


def test_a_refutation_lists_what_is_there(welcome: Task[..., None], refute_enqueued: RefuteEnqueued) -> None:
    refute_enqueued(welcome)
    welcome.enqueue(user_id=7)
    assert said(refute_enqueued, welcome, queue="default") == (
        "expected no job mail.welcome on queue default; found 1:\n"
        "  mail.welcome {'user_id': 7} on default, pending"
    )


def test_before_the_commit_only_its_own_connection_sees_a_job(
    welcome: Task[..., None],
    holdfast_dsn: str,
    assert_enqueued: AssertEnqueued,
    refute_enqueued: RefuteEnqueued,
) -> None:
    with psycopg.connect(holdfast_dsn) as conn:
        welcome.on(conn).enqueue(user_id=7)
        refute_enqueued(welcome)
        assert_enqueued(welcome, conn=conn)
        conn.commit()
        assert_enqueued(welcome)


def test_in_a_coroutine_too(
    welcome: Task[..., None],
    holdfast_dsn: str,
    aassert_enqueued: AAssertEnqueued,
    arefute_enqueued: ARefuteEnqueued,
) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(holdfast_dsn) as conn:
            await welcome.on(conn).aenqueue(user_id=7)
            await arefute_enqueued(welcome)
            (job,) = await aassert_enqueued(welcome, args={"user_id": 7}, count=1, conn=conn)
            assert job.payload == {"user_id": 7}
            with pytest.raises(AssertionError, match="found none"):
                await aassert_enqueued(welcome)
            with pytest.raises(AssertionError, match="found 1"):
                await arefute_enqueued(welcome, conn=conn)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("task", "wanted", "error", "said"),
    [
        ("welcome", {"args": {"usr_id": 7}}, BadArguments, "no argument 'usr_id'. Did you mean 'user_id'?"),
        ("welcome", {"quue": "mail"}, UnknownOption, "no option 'quue'. Did you mean 'queue'?"),
        ("welcome", {"user_id": 7}, UnknownOption, "goes into args={'user_id': …}."),
        ("welcome", {"args": [7]}, BadValue, "must be a mapping of arguments"),
        ("welcome", {"args": {"name": object()}}, BadValue, "cannot be in a payload"),
        ("welcome", {"run_at": datetime(2040, 1, 1)}, BadValue, "time zone"),  # noqa: DTZ001 - that is the point
        ("welcome", {"delay": -1}, BadValue, "delay -1"),
        ("No Name", {}, BadName, "is not a valid name"),
        (7, {}, BadName, "is not a valid name"),
    ],
)
def test_what_could_never_match_is_a_mistake(
    task: str | int,
    wanted: dict[str, Any],
    error: type[Exception],
    said: str,
    welcome: Task[..., None],
    assert_enqueued: AssertEnqueued,
    refute_enqueued: RefuteEnqueued,
) -> None:
    sought: Any = welcome if task == "welcome" else task
    for ask in (assert_enqueued, refute_enqueued):
        with pytest.raises(error) as refused:
            ask(sought, **wanted)
        assert said in str(refused.value)


def test_a_count_is_a_number(welcome: Task[..., None], assert_enqueued: AssertEnqueued) -> None:
    with pytest.raises(BadValue, match="count -1"):
        assert_enqueued(welcome, count=-1)

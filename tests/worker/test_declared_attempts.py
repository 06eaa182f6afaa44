"""The attempts that a task's code declares hold from the first enqueue on, before any worker has started."""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, RetryPolicy
from holdfast.database.copy_in import SMALLEST_COPY
from holdfast.task import Task
from tests.fixtures import Ask, Login


@pytest.fixture
def mail(hf: Holdfast) -> Task[..., Any]:
    @hf.task(name="mail", retry=RetryPolicy(max_attempts=5))
    async def mail() -> None: ...

    return mail


def attempts_in(ask: Callable[..., Any]) -> list[int]:
    return [row[0] for row in ask("select distinct max_attempts from holdfast.jobs")]


def test_a_declared_policy_holds_from_the_first_enqueue(mail: Task[..., Any]) -> None:
    assert mail.enqueue().refresh().max_attempts == 5
    assert mail.options(delay=60).enqueue().refresh().max_attempts == 5


def test_it_holds_for_the_first_async_enqueue(mail: Task[..., Any], ask: Ask) -> None:
    asyncio.run(mail.aenqueue())
    assert attempts_in(ask) == [5]


@pytest.mark.parametrize("amount", [2, SMALLEST_COPY])
def test_it_holds_for_a_bulk_enqueue(hf: Holdfast, mail: Task[..., Any], ask: Ask, amount: int) -> None:
    hf.enqueue_many(mail.call() for _ in range(amount))
    assert attempts_in(ask) == [5]


@pytest.mark.parametrize("amount", [2, SMALLEST_COPY])
def test_it_holds_for_an_async_bulk_enqueue(
    hf: Holdfast, mail: Task[..., Any], ask: Ask, amount: int
) -> None:
    asyncio.run(hf.aenqueue_many(mail.call() for _ in range(amount)))
    assert attempts_in(ask) == [5]


@pytest.mark.parametrize("amount", [2, SMALLEST_COPY])
def test_it_holds_in_a_transaction_of_the_callers(
    hf: Holdfast, mail: Task[..., Any], ask: Ask, holdfast_dsn: str, amount: int
) -> None:
    with psycopg.connect(holdfast_dsn) as connection:
        mail.on(connection).enqueue()
        hf.on(connection).enqueue_many(mail.call() for _ in range(amount))
    assert attempts_in(ask) == [5]


def test_it_holds_for_a_call_by_name_of_a_task_that_is_declared_here(
    hf: Holdfast, mail: Task[..., Any]
) -> None:
    hf.task(name="page", max_attempts=7)(lambda: None)
    assert hf.enqueue("mail").refresh().max_attempts == 5
    assert hf.enqueue("page").refresh().max_attempts == 7
    assert hf.enqueue("fax").refresh().max_attempts == 3


def test_a_call_wins_over_it(hf: Holdfast, mail: Task[..., Any]) -> None:
    call = mail.options(max_attempts=2)
    assert call.enqueue().refresh().max_attempts == 2
    assert [job.refresh().max_attempts for job in hf.enqueue_many([call.call()])] == [2]
    assert hf.enqueue("mail", max_attempts=2).refresh().max_attempts == 2


@pytest.mark.parametrize("amount", [2, SMALLEST_COPY])
def test_an_operators_policy_wins_over_it(hf: Holdfast, mail: Task[..., Any], ask: Ask, amount: int) -> None:
    hf.policies.set("mail", RetryPolicy(max_attempts=9))
    assert mail.enqueue().refresh().max_attempts == 9
    hf.enqueue_many(mail.call() for _ in range(amount))
    assert attempts_in(ask) == [9]
    hf.policies.reset("mail")
    assert mail.enqueue().refresh().max_attempts == 5


def test_the_code_of_today_wins_over_what_an_earlier_release_declared(
    hf: Holdfast, holdfast_dsn: str
) -> None:
    hf.task(name="mail", retry=RetryPolicy(max_attempts=6))(lambda: None)
    hf.worker()
    with Holdfast(holdfast_dsn) as next_release:
        task = next_release.task(name="mail", retry=RetryPolicy(max_attempts=8))(lambda: None)
        assert task.enqueue().refresh().max_attempts == 8


def test_a_setting_of_the_queue_does_not_win_over_it(hf: Holdfast, mail: Task[..., Any]) -> None:
    hf.settings.configure("default", max_attempts=4)
    assert mail.enqueue().refresh().max_attempts == 5


def test_a_role_that_may_only_enqueue_declares_as_well(
    mail: Task[..., Any], hf: Holdfast, login: Login
) -> None:
    hf.migrate(roles=True)
    with Holdfast(login("producer")) as producer:
        task = producer.task(name="mail", retry=RetryPolicy(max_attempts=5))(lambda: None)
        assert task.enqueue().refresh().max_attempts == 5

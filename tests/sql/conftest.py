"""Sessions on a fresh database, refusals, and ways to do several things at once."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast.testing.homes import temporary_home
from tests.sql.sessions import (
    PATIENCE,
    Background,
    Connect,
    Refused,
    Session,
    Together,
    copied_database,
    empty,
    sessions_on,
)


@pytest.fixture(scope="module")
def database(holdfast_server: str, holdfast_template: str) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    with (
        copied_database(holdfast_server, holdfast_template) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        yield dsn, connection


@pytest.fixture
def holdfast_dsn(database: tuple[str, psycopg.Connection[Any]]) -> str:
    """An empty database. Emptied rather than made anew for each test: that takes a tenth of the time.

    A file whose tests change the schema, or its partitions, has another fixture of this name.
    """
    dsn, connection = database
    empty(connection)
    return dsn


@pytest.fixture
def connect(holdfast_dsn: str) -> Iterator[Connect]:
    """Open another session: `connect()`, or with options of psycopg.connect."""
    with sessions_on(holdfast_dsn) as open_session:
        yield open_session


@pytest.fixture
def sql(connect: Connect) -> Session:
    return connect()


@pytest.fixture
def other(connect: Connect) -> Session:
    return connect()


@pytest.fixture
def refused() -> Refused:
    """`with refused("HF001") as error:` expects that SQLSTATE; then `error.detail` is its JSON, decoded."""

    @contextmanager
    def expect(sqlstate: str) -> Iterator[SimpleNamespace]:
        error = SimpleNamespace()
        with pytest.raises(psycopg.Error) as caught:
            yield error
        assert caught.value.sqlstate == sqlstate, caught.value
        diagnostic = caught.value.diag
        error.message = diagnostic.message_primary
        error.hint = diagnostic.message_hint
        error.detail = (
            json.loads(diagnostic.message_detail or "{}")
            if sqlstate.startswith("HF")
            else diagnostic.message_detail
        )

    return expect


@pytest.fixture
def together() -> Together:
    """Run functions at the same time, in threads; returns what they return, raises what they raise."""

    def run(*functions: Callable[[], Any]) -> list[Any]:
        start = threading.Barrier(len(functions))
        results: list[Any] = [None] * len(functions)
        errors: list[BaseException] = []

        def work(number: int, function: Callable[[], Any]) -> None:
            try:
                start.wait(PATIENCE)
                results[number] = function()
            except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(functions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    return run


@pytest.fixture
def background() -> Iterator[Background]:
    """Begin something that will wait: `done = background(work)`; `done()` is its value, once it has one."""
    begun: list[threading.Thread] = []

    def begin(function: Callable[[], Any]) -> Callable[[], Any]:
        outcome: dict[str, Any] = {}

        def work() -> None:
            try:
                outcome["value"] = function()
            except BaseException as error:  # noqa: BLE001 - raised again by done()
                outcome["error"] = error

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        begun.append(thread)

        def done() -> Any:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "it still waits"
            if "error" in outcome:
                raise outcome["error"]
            return outcome["value"]

        return done

    yield begin
    for thread in begun:
        thread.join(PATIENCE)


@pytest.fixture
def server_home() -> Iterator[Path]:
    """A home for a server of the test's own, where an ordinary user can reach it too."""
    with temporary_home() as home:
        yield home


@pytest.fixture
def new_lease() -> Callable[[], UUID]:
    return uuid4

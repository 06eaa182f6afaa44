"""A quiet server that counts: nothing runs there but what the test does, and every statement is noted."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.testing import SETTINGS
from tests.counts.counting import Counter
from tests.sql.servers import server_with, template
from tests.sql.sessions import Connect, Session, copied_database, sessions_on

QUIET = {
    **SETTINGS,
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.save": "off",
    "autovacuum": "off",
    # With checksums, a hint on a page that was not written since the last checkpoint logs the whole page.
    "checkpoint_timeout": "1d",
    "max_wal_size": "16GB",
}


@pytest.fixture(scope="session")
def holdfast_server() -> Iterator[str]:
    """A server of our own, whatever HOLDFAST_TEST_DSN says: counting takes settings of the whole server."""
    with server_with("pg_stat_statements", QUIET) as server:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("create extension pg_stat_statements")
        yield server


@pytest.fixture(scope="session")
def holdfast_template(holdfast_server: str) -> str:
    return template(holdfast_server, "holdfast_counts")


@pytest.fixture
def holdfast_dsn(holdfast_server: str, holdfast_template: str) -> Iterator[str]:
    """A new database for each test: one that was only emptied has dead rows in it, and they count."""
    with copied_database(holdfast_server, holdfast_template) as dsn:
        yield dsn


@pytest.fixture
def connect(holdfast_dsn: str) -> Iterator[Connect]:
    """Open another session: `connect()`."""
    with sessions_on(holdfast_dsn) as open_session:
        yield open_session


@pytest.fixture
def sql(connect: Connect) -> Session:
    return connect()


@pytest.fixture
def counter(holdfast_server: str, holdfast_dsn: str) -> Iterator[Counter]:
    """What is done in the test's database from `counter.start()` on. It looks from another one, so that its
    own questions do not count."""
    database = conninfo_to_dict(holdfast_dsn)["dbname"]
    with psycopg.connect(holdfast_server, autocommit=True) as connection:
        yield Counter(Session(connection), str(database))

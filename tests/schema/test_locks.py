"""Nobody waits without end, and who gives up says for whom."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import schema
from holdfast.schema.steps import LOCK
from tests.schema.plans import MakePlan

Other = psycopg.Connection[Any]

SOON: dict[str, Any] = {"lock_timeout": timedelta(milliseconds=20), "patience": timedelta(milliseconds=400)}
THING = "create table holdfast.thing (id integer);"
INDEX = """
    -- holdfast: no transaction
    insert into public.log values ('index');
    drop index concurrently if exists holdfast.thing_id;
    create index concurrently thing_id on holdfast.thing (id);
"""


@pytest.fixture
def other(empty_dsn: str) -> Iterator[Other]:
    with psycopg.connect(empty_dsn, autocommit=True, application_name="report") as connection:
        yield connection


@pytest.fixture
def upgrade(conn: psycopg.Connection[Any], make_plan: MakePlan) -> schema.Plan:
    """A database with a table, and an upgrade that alters it."""
    schema.apply(conn, make_plan(_0001_thing=THING))
    return make_plan(_0001_thing=THING, _0002_more="alter table holdfast.thing add column more integer;")


@pytest.fixture
def indexed(conn: psycopg.Connection[Any], make_plan: MakePlan) -> schema.Plan:
    """A database with a table, and an upgrade that builds an index without stopping anyone."""
    conn.execute("create table public.log (entry text)")
    schema.apply(conn, make_plan(_0001_thing=THING))
    return make_plan(_0001_thing=THING, _0002_index=INDEX)


def wait_until(conn: psycopg.Connection[Any], condition: str) -> None:
    while not conn.execute(f"select exists ({condition})").fetchall()[0][0]:
        pass


WAITING = "select from pg_locks where not granted and relation = 'holdfast.thing'::regclass"
BUILDING = (
    "select from pg_stat_progress_create_index where phase like 'waiting%' and datname = current_database()"
)


def test_a_table_in_use_makes_an_upgrade_give_up_and_say_why(
    conn: psycopg.Connection[Any], other: Other, upgrade: schema.Plan
) -> None:
    with other.transaction():
        other.execute("select from holdfast.thing")
        with pytest.raises(schema.MigrationFailed) as failed:
            schema.apply(conn, upgrade, **SOON)

    message = str(failed.value)
    assert "0002_more.sql, line 1 (alter table holdfast.thing add column more integer;)" in message
    assert "lock timeout" in message
    assert f"pid {other.info.backend_pid} report idle in transaction since" in message
    assert "holding holdfast.thing AccessShareLock" in message
    assert schema.apply(conn, upgrade) == ["0002_more"]


def test_a_prepared_transaction_in_the_way_is_named_as_one(
    conn: psycopg.Connection[Any], other: Other, upgrade: schema.Plan
) -> None:
    if conn.execute("show max_prepared_transactions").fetchone() == ("0",):
        pytest.skip("this server has no prepared transactions")
    other.execute("begin; lock table holdfast.thing; prepare transaction 'forgotten'")
    try:
        with pytest.raises(schema.MigrationFailed, match=r"a prepared transaction holding holdfast\.thing"):
            schema.apply(conn, upgrade, **SOON)
    finally:
        other.execute("rollback prepared 'forgotten'")


def test_an_upgrade_goes_on_as_soon_as_the_table_is_free(
    conn: psycopg.Connection[Any], other: Other, empty_dsn: str, upgrade: schema.Plan
) -> None:
    def install() -> Any:
        with psycopg.connect(empty_dsn, autocommit=True) as installer:
            return schema.apply(installer, upgrade, lock_timeout=timedelta(milliseconds=20))

    with ThreadPoolExecutor() as pool:
        with other.transaction():
            other.execute("select from holdfast.thing")
            applied = pool.submit(install)
            for _ in range(3):
                wait_until(conn, WAITING)
                wait_until(conn, f"select where not exists ({WAITING})")
        assert applied.result() == ["0002_more"]


def test_in_a_deadlock_the_upgrade_gives_way(
    conn: psycopg.Connection[Any], other: Other, empty_dsn: str, make_plan: MakePlan
) -> None:
    tables = "create table holdfast.one (id integer); create table holdfast.two (id integer);"
    schema.apply(conn, make_plan(_0001_tables=tables))
    # It closes the circle after the other session has begun to wait.
    upgrade = make_plan(
        _0001_tables=tables,
        _0002_more=f"""
            alter table holdfast.one add column more integer;
            do $$ begin
              while exists (select from pg_locks where relation = 'holdfast.two'::regclass)
                and not exists ({WAITING.replace("thing", "one")}) loop
              end loop;
            end $$;
            alter table holdfast.two add column more integer;
        """,
    )

    def install() -> Any:
        with psycopg.connect(empty_dsn, autocommit=True) as installer:
            return schema.apply(installer, upgrade)

    with ThreadPoolExecutor() as pool:
        with other.transaction():
            other.execute("lock table holdfast.two")
            applied = pool.submit(install)
            wait_until(conn, "select from pg_locks where granted and relation = 'holdfast.one'::regclass")
            other.execute("lock table holdfast.one")
        assert applied.result() == ["0002_more"]


def test_the_table_of_what_is_installed_may_be_locked_too(
    conn: psycopg.Connection[Any], other: Other, upgrade: schema.Plan
) -> None:
    with other.transaction():
        other.execute("lock table holdfast.migration in share mode")
        with pytest.raises(schema.MigrationFailed, match=r"holding holdfast\.migration ShareLock"):
            schema.apply(conn, upgrade, **SOON)


def test_another_installer_at_work_is_named(
    conn: psycopg.Connection[Any], other: Other, upgrade: schema.Plan
) -> None:
    other.execute("select pg_advisory_lock(%s)", [LOCK])

    with pytest.raises(schema.MigrationFailed) as failed:
        schema.apply(conn, upgrade, **SOON)

    assert "Another installer is running" in str(failed.value)
    assert f"pid {other.info.backend_pid} report idle holding the migration lock" in str(failed.value)


def test_twenty_installers_build_an_index_once(
    conn: psycopg.Connection[Any], empty_dsn: str, indexed: schema.Plan
) -> None:
    # The one that holds the lock would keep its snapshot here, and its own index build wait for that.
    conn.execute(f"alter database {conn.info.dbname} set default_transaction_isolation = 'repeatable read'")
    together = threading.Barrier(20)

    def install(_: int) -> Any:
        with psycopg.connect(empty_dsn, autocommit=True) as installer:
            together.wait()
            return schema.apply(installer, indexed)

    with ThreadPoolExecutor(20) as pool:
        applied = [name for names in pool.map(install, range(20)) for name in names]

    assert applied == ["0002_index"]
    assert conn.execute("select count(*) from public.log").fetchone() == (1,)
    assert conn.execute(
        "select indisvalid from pg_index where indexrelid = 'holdfast.thing_id'::regclass"
    ).fetchone()


def test_an_installer_that_waits_does_not_stop_the_one_at_work(
    conn: psycopg.Connection[Any], other: Other, empty_dsn: str, indexed: schema.Plan
) -> None:
    # If it held a snapshot while it waits, the index build would wait for it and neither would end.
    asked_twice = threading.Semaphore(0)

    class Asking(psycopg.Cursor):
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            if "pg_try_advisory_xact_lock" in str(query):
                asked_twice.release()
            return super().execute(query, *args, **kwargs)

    def install(cursor: type[psycopg.Cursor[Any]] = psycopg.Cursor) -> Any:
        with psycopg.connect(empty_dsn, autocommit=True, cursor_factory=cursor) as installer:
            return schema.apply(installer, indexed, patience=timedelta(seconds=20))

    with ThreadPoolExecutor() as pool:
        with other.transaction():
            other.execute("insert into holdfast.thing values (1)")
            first = pool.submit(install)
            wait_until(conn, BUILDING)
            second = pool.submit(install, Asking)
            for _ in range(2):
                asked_twice.acquire()
        assert (first.result(), second.result()) == (["0002_index"], [])


def test_an_index_build_that_is_stopped_by_an_old_transaction_says_so(
    conn: psycopg.Connection[Any], other: Other, indexed: schema.Plan
) -> None:
    with other.transaction():
        other.execute("insert into holdfast.thing values (1)")
        with pytest.raises(schema.MigrationFailed, match=r"0002_index\.sql, line 4 .*RowExclusiveLock"):
            schema.apply(conn, indexed, **SOON)

    assert schema.apply(conn, indexed) == ["0002_index"]
    assert conn.execute("select bool_and(indisvalid) from pg_index").fetchone() == (True,)


def test_an_index_build_that_is_killed_is_done_again(
    conn: psycopg.Connection[Any], other: Other, empty_dsn: str, indexed: schema.Plan
) -> None:
    def install() -> Any:
        with psycopg.connect(empty_dsn, autocommit=True) as installer:
            return schema.apply(installer, indexed)

    with ThreadPoolExecutor() as pool, other.transaction():
        other.execute("insert into holdfast.thing values (1)")
        applied = pool.submit(install)
        wait_until(conn, BUILDING)
        conn.execute(BUILDING.replace("select", "select pg_terminate_backend(pid)"))
        with pytest.raises(schema.MigrationFailed, match=r"0002_index\.sql, line 4"):
            applied.result()
    assert conn.execute("select bool_and(indisvalid) from pg_index").fetchone() == (False,)

    assert schema.apply(conn, indexed) == ["0002_index"]
    assert conn.execute("select bool_and(indisvalid) from pg_index").fetchone() == (True,)

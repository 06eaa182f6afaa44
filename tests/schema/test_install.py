import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import schema
from holdfast.schema.plan import statements
from tests.schema.plans import Catalog, NewDsn

Ordinary = psycopg.Connection[Any]


def test_one_call_installs_everything_and_a_second_finds_nothing_to_do(conn: psycopg.Connection[Any]) -> None:
    everything = schema.pending(conn)
    assert sorted(everything) == sorted(file.name for file in schema.load().files)

    assert schema.apply(conn) == everything

    schema.verify(conn)
    assert schema.pending(conn) == []
    assert schema.apply(conn) == []


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_twenty_installers_at_once_apply_each_file_once(
    conn: psycopg.Connection[Any], empty_dsn: str, new_dsn: NewDsn, catalog: Catalog, isolation: str
) -> None:
    conn.execute(f"alter database {conn.info.dbname} set default_transaction_isolation = '{isolation}'")
    together = threading.Barrier(20)

    def install(_: int) -> Any:
        with psycopg.connect(empty_dsn, autocommit=True) as installer:
            together.wait()
            return schema.apply(installer)

    with ThreadPoolExecutor(20) as pool:
        applied = [name for names in pool.map(install, range(20)) for name in names]

    assert sorted(applied) == sorted(file.name for file in schema.load().files)
    alone = new_dsn()
    with psycopg.connect(alone, autocommit=True) as installer:
        schema.apply(installer)
    assert catalog(empty_dsn) == catalog(alone)


def test_every_function_body_is_valid_once_all_are_there(conn: psycopg.Connection[Any]) -> None:
    # Installing turns the check off so that order does not matter, so it is made up for here.
    schema.apply(conn)

    with conn.transaction():
        conn.execute("set local search_path = pg_catalog, pg_temp")
        for file in schema.load().files:
            if file.kind == "function":
                for _, statement in statements(file.text):
                    conn.execute(statement)


@pytest.fixture
def ordinary(conn: psycopg.Connection[Any], empty_dsn: str) -> Iterator[Ordinary]:
    """A connection of a role that has no rights of its own."""
    role = f"holdfast_test_{uuid4().hex[:12]}"
    conn.execute(f"create role {role}")
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(f"set session authorization {role}")
        yield connection
    conn.execute(f"drop owned by {role}")
    conn.execute(f"drop role {role}")


def role_of(connection: psycopg.Connection[Any]) -> str:
    return connection.execute("select session_user").fetchall()[0][0]


def test_an_ordinary_role_with_create_on_the_database_can_install(
    conn: psycopg.Connection[Any], ordinary: Ordinary
) -> None:
    conn.execute(f"grant create on database {conn.info.dbname} to {role_of(ordinary)}")

    schema.apply(ordinary)
    schema.verify(ordinary)


def test_a_role_that_was_given_the_schema_can_install(
    conn: psycopg.Connection[Any], ordinary: Ordinary
) -> None:
    conn.execute(f"create schema holdfast authorization {role_of(ordinary)}")

    schema.apply(ordinary)
    schema.verify(ordinary)


def test_a_role_that_may_not_install_is_told_so(ordinary: Ordinary) -> None:
    with pytest.raises(
        schema.MigrationFailed, match=r"bootstrap\.sql, line 4 .*permission denied for database"
    ):
        schema.apply(ordinary)


def test_nobody_is_let_in_by_default(conn: psycopg.Connection[Any], ordinary: Ordinary) -> None:
    schema.apply(conn)

    open_to_all = """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'holdfast'::regnamespace and has_function_privilege(%(role)s, p.oid, 'execute')
        union all
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'v')
          and has_table_privilege(%(role)s, c.oid, 'select, insert, update, delete')
        union all
        select nspname from pg_namespace
        where nspname = 'holdfast' and has_schema_privilege(%(role)s, oid, 'usage, create')
    """
    assert conn.execute(open_to_all, {"role": role_of(ordinary)}).fetchall() == []


def test_settings_of_the_database_do_not_matter(empty_dsn: str, new_dsn: NewDsn, catalog: Catalog) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        for setting in (
            "default_transaction_isolation = serializable",
            "default_transaction_read_only = on",
            "search_path = public, pg_catalog",
            "standard_conforming_strings = off",
            "statement_timeout = '1s'",
            "lock_timeout = 0",
            "idle_in_transaction_session_timeout = '1s'",
        ):
            conn.execute(f"alter database {conn.info.dbname} set {setting}")
    plain = new_dsn()

    for dsn in (empty_dsn, plain):
        with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
            schema.apply(conn)
            schema.verify(conn)

    assert catalog(empty_dsn) == catalog(plain)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_any_encoding_of_the_database_will_do(new_dsn: NewDsn, encoding: str) -> None:
    options = f"template template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'"
    with psycopg.connect(new_dsn(options), autocommit=True, client_encoding="utf8") as conn:
        schema.apply(conn)
        schema.verify(conn)


def test_a_connection_in_use_is_not_taken(conn: psycopg.Connection[Any], empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as ordinary, pytest.raises(ValueError, match="autocommit"):
        schema.apply(ordinary)
    with conn.transaction(), pytest.raises(ValueError, match="idle"):
        schema.apply(conn)

from typing import Any

import psycopg
import pytest

from holdfast import schema
from tests.schema.plans import Catalog, MakePlan, NewDsn, RunPsql

Sets = tuple[schema.Plan, schema.Plan]

THING = "create table holdfast.thing (id integer);"
ANSWER = "create or replace function holdfast.answer() returns text language sql as $$ select 'it''s; %s' $$;"
INDEX = """
    -- holdfast: no transaction
    drop index concurrently if exists holdfast.thing_id;
    create index concurrently thing_id on holdfast.thing (id);
"""


@pytest.fixture
def sets(make_plan: MakePlan) -> Sets:
    """A small release and the next one, with a file outside transactions."""
    return (
        make_plan(_0001_thing=THING, answer=ANSWER % 1),
        make_plan(_0001_thing=THING, _0002_index=INDEX, answer=ANSWER % 2, version="1.1.0"),
    )


def test_the_printed_script_does_what_apply_does(
    empty_dsn: str, new_dsn: NewDsn, psql: RunPsql, catalog: Catalog
) -> None:
    applied = new_dsn()
    with psycopg.connect(applied, autocommit=True) as conn:
        schema.apply(conn)

    done = psql(empty_dsn, schema.print_sql())

    assert (done.returncode, done.stderr) == (0, "")
    assert catalog(empty_dsn) == catalog(applied)
    with psycopg.connect(empty_dsn) as conn:
        schema.verify(conn)


def test_the_printed_script_makes_the_roles_as_apply_does(
    empty_dsn: str, new_dsn: NewDsn, psql: RunPsql, catalog: Catalog
) -> None:
    applied = new_dsn()
    with psycopg.connect(applied, autocommit=True) as conn:
        schema.apply(conn, roles=True)

    done = psql(empty_dsn, schema.print_sql(roles=True))

    assert (done.returncode, done.stderr) == (0, "")
    assert catalog(empty_dsn) == catalog(applied)
    assert any("holdfast_viewer=X" in line for line in catalog(applied))


def test_only_what_is_missing_is_printed_for_a_database(
    new_dsn: NewDsn, psql: RunPsql, catalog: Catalog, sets: Sets
) -> None:
    old, new = sets
    printed, applied = new_dsn(), new_dsn()
    with psycopg.connect(printed, autocommit=True) as conn:
        schema.apply(conn, old)
        script = schema.print_sql(new, installed=schema.installed(conn))
    with psycopg.connect(applied, autocommit=True) as conn:
        schema.apply(conn, old)
        schema.apply(conn, new)

    done = psql(printed, script)

    assert "0001_thing" not in script
    assert (done.returncode, done.stderr) == (0, "")
    assert catalog(printed) == catalog(applied)


def test_nothing_is_printed_for_a_database_that_has_everything(
    conn: psycopg.Connection[Any], sets: Sets
) -> None:
    schema.apply(conn, sets[1])

    assert schema.print_sql(sets[1], installed=schema.installed(conn)).endswith("-- Nothing is missing.\n")


def test_a_script_that_was_run_before_stops_without_harm(
    conn: psycopg.Connection[Any], empty_dsn: str, psql: RunPsql, catalog: Catalog, sets: Sets
) -> None:
    script = schema.print_sql(sets[1])
    assert psql(empty_dsn, script).returncode == 0
    before = catalog(empty_dsn)

    again = psql(empty_dsn, script)

    assert again.returncode == 3
    assert 'relation "thing" already exists' in again.stderr
    assert catalog(empty_dsn) == before


def test_a_script_leaves_no_lock_and_no_setting_behind(empty_dsn: str, psql: RunPsql, sets: Sets) -> None:
    look = """
        select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid();
        select string_agg(name, ', ') from pg_settings
        where name in ('search_path', 'lock_timeout', 'check_function_bodies') and source = 'session';
    """

    done = psql(empty_dsn, f"\\o /dev/null\n{schema.print_sql(sets[1])}\\o\n\\t\\a\n{look}")

    assert done.stdout.splitlines() == ["0", ""]

from typing import Any

import psycopg
import pytest

from holdfast import schema
from holdfast.values.errors import SchemaTooNew
from tests.schema.plans import MakePlan

TABLE = "create table holdfast.thing (id integer);"


def answer(value: int, returns: str = "integer") -> str:
    return f"create or replace function holdfast.answer() returns {returns} language sql as 'select {value}';"


def ask(conn: psycopg.Connection[Any]) -> Any:
    return conn.execute("select holdfast.answer()").fetchall()[0][0]


def test_only_what_changed_runs_again(conn: psycopg.Connection[Any], make_plan: MakePlan) -> None:
    schema.apply(conn, make_plan(_0001_thing=TABLE, answer=answer(1), other="select 1;"))
    oid = conn.execute("select 'holdfast.answer'::regproc::oid").fetchone()

    upgrade = make_plan(
        _0001_thing=TABLE,
        _0002_more="alter table holdfast.thing add column more integer;",
        answer=answer(2),
        other="select 1;",
        version="1.1.0",
    )

    assert schema.pending(conn, upgrade) == ["0002_more", "answer"]
    assert schema.apply(conn, upgrade) == ["0002_more", "answer"]
    assert ask(conn) == 2
    assert conn.execute("select 'holdfast.answer'::regproc::oid").fetchone() == oid
    assert {record.name: record.version for record in schema.installed(conn)} == {
        "bootstrap": "1.0.0",
        "0001_thing": "1.0.0",
        "0002_more": "1.1.0",
        "answer": "1.1.0",
        "other": "1.0.0",
    }


def test_a_function_replaced_by_hand_is_left_alone(
    conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    plan = make_plan(answer=answer(1))
    schema.apply(conn, plan)
    conn.execute(answer(42))

    assert schema.apply(conn, plan) == []
    assert ask(conn) == 42


def test_functions_may_name_each_other_and_what_comes_after_them(
    conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    schema.apply(
        conn,
        make_plan(
            a="create function holdfast.a() returns int language sql as 'select z from holdfast.v';",
            v="-- holdfast: after z\ncreate view holdfast.v as select holdfast.z();",
            z="create function holdfast.z() returns integer language sql as 'select 26';",
        ),
    )

    assert conn.execute("select holdfast.a()").fetchone() == (26,)


def test_a_function_that_is_no_more_stays_for_older_workers_but_is_forgotten(
    conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    schema.apply(conn, make_plan(answer=answer(1), other="select 1;"))

    schema.apply(conn, make_plan(other="select 2;", version="2.0.0"))

    assert ask(conn) == 1
    assert [record.name for record in schema.installed(conn)] == ["bootstrap", "other"]


def test_an_edited_migration_is_refused(conn: psycopg.Connection[Any], make_plan: MakePlan) -> None:
    schema.apply(conn, make_plan(_0001_thing=TABLE))
    edited = make_plan(_0001_thing=TABLE.replace("integer", "bigint"), version="1.1.0")

    for use in (schema.apply, schema.pending, schema.verify):
        with pytest.raises(schema.MigrationEdited, match=r"0001_thing\.sql was edited after release 1\.0\.0"):
            use(conn, edited)


def test_a_database_newer_than_the_code_is_refused_and_left_as_it_is(
    conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    old = make_plan(_0001_thing=TABLE, answer=answer(1))
    new = make_plan(_0001_thing=TABLE, _0002_more="select 1;", answer=answer(2), version="2.0.0")
    schema.apply(conn, new)

    for use in (schema.apply, schema.pending):
        with pytest.raises(SchemaTooNew):
            use(conn, old)
    with pytest.raises(SchemaTooNew):
        schema.print_sql(old, installed=schema.installed(conn))
    assert ask(conn) == 2


def test_an_older_release_does_not_take_functions_back(
    conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    old = make_plan(answer=answer(1), version="1.0.0")
    schema.apply(conn, make_plan(answer=answer(2), version="1.0.1"))

    with pytest.raises(SchemaTooNew, match=r"answer\.sql of release 1\.0\.1; this is 1\.0\.0"):
        schema.apply(conn, old)
    assert ask(conn) == 2


def test_a_changed_return_type_names_the_file(conn: psycopg.Connection[Any], make_plan: MakePlan) -> None:
    schema.apply(conn, make_plan(answer=answer(1)))

    with pytest.raises(
        schema.MigrationFailed, match=r"^answer\.sql, line 1 \(create.*cannot change return"
    ) as failed:
        schema.apply(conn, make_plan(answer=answer(1, returns="bigint")))
    assert isinstance(failed.value.__cause__, psycopg.errors.InvalidFunctionDefinition)


def test_a_failing_migration_changes_nothing_and_says_where(
    conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    broken = make_plan(
        _0001_thing=TABLE,
        _0002_broken="""
            create table holdfast.other ();

            -- This one fails.
            alter table holdfast.nothing
              add column more integer;
        """,
    )

    with pytest.raises(schema.MigrationFailed) as failed:
        schema.apply(conn, broken)

    assert str(failed.value) == (
        '0002_broken.sql, line 4 (alter table holdfast.nothing): relation "holdfast.nothing" does not exist'
    )
    assert (failed.value.file, failed.value.line) == ("0002_broken", 4)
    assert conn.execute("select to_regclass('holdfast.other')").fetchone() == (None,)
    assert schema.pending(conn, broken) == ["0002_broken"]


def test_workers_never_meet_half_a_set_of_functions(
    conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    schema.apply(conn, make_plan(answer=answer(1)))

    with pytest.raises(schema.MigrationFailed, match=r"^zero\.sql"):
        schema.apply(conn, make_plan(answer=answer(2), zero="select 1 / 0;"))

    assert ask(conn) == 1

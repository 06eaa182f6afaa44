from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast import schema
from holdfast.values.errors import SchemaMissing, SchemaOutdated, SchemaTooNew
from tests.schema.plans import MakePlan


@pytest.fixture
def verify(empty_dsn: str) -> Callable[..., None]:
    def verify(plan: schema.Plan | None = None) -> None:
        with psycopg.connect(empty_dsn) as conn:
            schema.verify(conn, plan)

    return verify


def test_an_empty_database_is_told_from_an_outdated_one(
    verify: Callable[..., None], conn: psycopg.Connection[Any]
) -> None:
    with pytest.raises(SchemaMissing, match="holdfast migrate"):
        verify()

    conn.execute("create schema holdfast")

    with pytest.raises(SchemaMissing):
        verify()


def test_a_database_that_lacks_a_file_is_outdated(
    verify: Callable[..., None], conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    old = make_plan(_0001_a="create table holdfast.a ();")
    schema.apply(conn, old)
    verify(old)

    with pytest.raises(
        SchemaOutdated, match=r"lacks 0002_b\.sql of release 2\.0\.0.*holdfast migrate"
    ) as outdated:
        verify(make_plan(_0001_a="create table holdfast.a ();", _0002_b="select 1;", version="2.0.0"))
    assert (outdated.value.found, outdated.value.needed) == (1, 2)

    with pytest.raises(SchemaOutdated, match=r"lacks f\.sql"):
        verify(make_plan(_0001_a="create table holdfast.a ();", f="select 1;"))


def test_a_database_with_an_unknown_migration_is_too_new(
    verify: Callable[..., None], conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    schema.apply(conn, make_plan(_0001_a="select 1;", _0002_b="select 2;"))

    with pytest.raises(SchemaTooNew, match="Upgrade the holdfast package") as too_new:
        verify(make_plan(_0001_a="select 1;"))
    assert (too_new.value.found, too_new.value.needed) == (2, 1)


def test_an_older_worker_may_start_on_functions_of_a_newer_release(
    verify: Callable[..., None], conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    old = make_plan(_0001_a="select 1;", f="select 1;")
    schema.apply(conn, old)
    schema.apply(conn, make_plan(_0001_a="select 1;", f="select 2;", g="select 3;", version="1.0.1"))

    verify(old)

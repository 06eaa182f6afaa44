import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import schema
from holdfast.schema.plan import File, Plan, Record, newest, statements
from holdfast.schema.steps import in_transactions
from holdfast.values.errors import SchemaTooNew
from tests.schema.plans import MakePlan


def names(plan: schema.Plan) -> list[str]:
    return [file.name for file in plan.files]


def record(file: File, *, checksum: str | None = None, version: str = "1.0.0") -> Record:
    return Record(file.name, file.kind, checksum or file.checksum, version)


def test_our_own_files_load_with_the_bootstrap_first() -> None:
    plan = schema.load()

    assert names(plan)[0] == "bootstrap"
    assert names(plan)[1].startswith("0001_")
    assert plan.number >= 1
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", plan.version)


def test_migrations_come_by_number_and_functions_after_what_they_declare(make_plan: MakePlan) -> None:
    plan = make_plan(
        _0002_b="select 2;",
        _0001_a="select 1;",
        arrow="-- holdfast: after quiver, bow\nselect 1;",
        bow="-- holdfast: after string\nselect 1;",
        quiver="select 1;",
        string="select 1;",
    )

    assert names(plan) == ["bootstrap", "0001_a", "0002_b", "quiver", "string", "bow", "arrow"]


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ({"_1_short": "select 1;"}, "1_short.sql: this is not a name for a migration"),
        ({"bootstrap": "select 1;"}, "bootstrap.sql: this is not a name for a function"),
        ({"_0001_a": "select 1;", "_0001_b": "select 1;"}, "0001_b.sql: 0001_a.sql has the same number"),
        ({"_0001_a": "-- holdfast: no transactions\nselect 1;"}, "cannot declare 'no transactions'"),
        ({"claim": "-- holdfast: no transaction\nselect 1;"}, "cannot declare 'no transaction'"),
        ({"claim": "-- holdfast: with functions\nselect 1;"}, "cannot declare 'with functions'"),
        (
            {
                "_0001_a": "-- holdfast: with functions\nselect 1;",
                "_0002_b": "-- holdfast: no transaction\nselect 1;",
            },
            "0002_b.sql: it would run in the transaction of 0001_a.sql",
        ),
        ({"claim": "-- holdfast: after lain\nselect 1;"}, "claim.sql: there is no lain.sql to come after"),
        ({"claim": "select 1"}, "claim.sql: its last statement has no semicolon"),
        ({"a": "-- holdfast: after b\nselect 1;", "b": "-- holdfast: after a\nselect 1;"}, "cycle"),
    ],
)
def test_a_mistake_of_ours_is_found_when_the_files_load(
    make_plan: MakePlan, texts: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_plan(**texts)


def test_a_migration_that_runs_alone_comes_before_those_that_run_with_the_functions(
    make_plan: MakePlan,
) -> None:
    plan = make_plan(
        _0001_a="select 1;",
        _0002_b="-- holdfast: with functions\nselect 1;",
        _0003_c="select 1;",
        _0004_d="-- holdfast: alone\nselect 1;",
        claim="select 1;",
    )

    steps = [[file.name for file in step] for step in in_transactions(plan.files)]

    assert steps == [["bootstrap"], ["0001_a"], ["0004_d"], ["0002_b", "0003_c", "claim"]]


def test_function_files_are_found_in_folders_and_known_by_their_name_alone(tmp_path: Path) -> None:
    for name in ("migrations", "functions/core", "functions/duties"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "functions/core/claim.sql").write_text("-- holdfast: after advance\nselect 1;")
    (tmp_path / "functions/duties/advance.sql").write_text("select 1;")

    assert names(schema.load(tmp_path)) == ["bootstrap", "advance", "claim"]

    (tmp_path / "functions/duties/claim.sql").write_text("select 1;")
    with pytest.raises(ValueError, match=r"claim\.sql: two folders have a file of this name"):
        schema.load(tmp_path)


def test_line_endings_do_not_change_a_checksum(tmp_path: Path) -> None:
    checksums = set()
    for ending in ("\n", "\r\n"):
        root = tmp_path / repr(ending)
        (root / "migrations").mkdir(parents=True)
        (root / "functions").mkdir()
        (root / "functions/one.sql").write_bytes(ending.join(["select 1;", "select 2;", ""]).encode())
        checksums.add(schema.load(root).files[-1].checksum)

    assert len(checksums) == 1


@pytest.mark.parametrize(
    "whole",
    [
        "select ';'",
        "select 'it''s; fine'",
        r"select e'it\'s; fine', E'\\'",
        r"select date'2020-01-01;', e'a''b\';'",
        'select 1 as "semi;colon ""quoted;"""',
        "do $$ begin perform 1; end $$",
        "do $body$ begin execute $$select 1;$$; end $body$",
        "select $1, a$b, x from t$",
        "select 1 -- not; here",
        "select /* not; /* nor; */ here; 'or here */ 1",
    ],
)
def test_a_statement_is_never_cut_inside_quotes_or_comments(whole: str) -> None:
    text = f"-- first; comment\n{whole}\n;\n\n/* second; */ select 2;\n-- done; 'really"

    assert list(statements(text)) == [(2, f"{whole}\n;"), (5, "select 2;")]


def test_a_last_statement_needs_no_semicolon_to_be_seen() -> None:
    assert list(statements("select 1;\nselect 2")) == [(1, "select 1;"), (2, "select 2")]
    assert list(statements("  \n-- nothing\n/* at all */")) == []
    assert list(statements("select 1 /* open")) == [(1, "select 1 /* open")]


def test_every_statement_of_our_files_is_found() -> None:
    for file in schema.load().files:
        found = [statement for _, statement in statements(file.text)]
        assert found, file.name
        starts = re.compile(r"(?i)(create|alter|comment|insert|do|select|revoke|grant|drop|update|lock)\b")
        assert [statement for statement in found if not starts.match(statement)] == []


def test_only_what_is_not_there_is_to_do() -> None:
    first, second = File("migration", "0001_a", "select 1;"), File("function", "claim", "select 1;")
    plan = Plan("1.0.0", (first, second))

    assert plan.todo([]) == [first, second]
    assert plan.todo([record(first)]) == [second]
    assert plan.todo([record(first), record(second)]) == []
    assert plan.todo([record(first), record(second, checksum="other")]) == [second]


def test_releases_are_compared_as_numbers() -> None:
    claim = File("function", "claim", "select 1;")
    changed = record(claim, checksum="other", version="0.10.0")

    assert Plan("0.10.0", (claim,)).todo([changed]) == [claim]
    assert Plan("0.11.0rc1", (claim,)).todo([changed]) == [claim]
    with pytest.raises(SchemaTooNew, match=r"claim.sql of release 0\.10\.0; this is 0\.9\.1"):
        Plan("0.9.1", (claim,)).todo([changed])


def test_the_newest_migration_gives_the_number() -> None:
    assert newest([]) == 0
    assert newest([File("function", "claim", ""), File("migration", "0012_x", "")]) == 12

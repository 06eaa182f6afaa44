"""The lines for a DBA that let pg_cron do the duties."""

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.cli.programs import Command


def statements(script: str) -> str:
    return "\n".join(line for line in script.splitlines() if not line.startswith("--"))


def test_the_lines_name_the_database_and_need_no_connection(without_database: Command) -> None:
    answer = without_database("tick", "--pg-cron", "--dsn", "postgresql://ada:geheim@nowhere.invalid/app")
    assert (answer.code, answer.err) == (0, "")
    assert (
        "select cron.schedule_in_database('holdfast app', '10 seconds', "
        "'set statement_timeout = 0; select holdfast.tick()', 'app');\n" in answer.out
    )
    assert "-- select cron.unschedule(jobid) from cron.job where jobname = 'holdfast app';\n" in answer.out
    assert "geheim" not in answer.out


def test_the_page_shows_these_lines(without_database: Command) -> None:
    script = without_database("tick", "--pg-cron", "--dsn", "dbname=app").out
    shown = script[script.index("create extension") : script.index("$$);")]
    assert shown in (Path(__file__).parents[2] / "docs/operations/pg-cron.md").read_text(encoding="utf-8")


def test_a_database_that_the_dsn_does_not_name_is_asked(
    holdfast: Command, holdfast_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(holdfast_dsn)["dbname"]
    monkeypatch.setenv("PGDATABASE", str(name))
    monkeypatch.setenv("HOLDFAST_DSN", make_conninfo(holdfast_dsn, dbname=None))
    assert f"'holdfast {name}'" in holdfast("tick", "--pg-cron").out


def test_no_other_database_is_meant_than_one_that_was_named(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_DSN", raising=False)
    answer = run("tick", "--pg-cron")
    assert (answer.code, answer.out) == (2, "")
    assert "--dsn or HOLDFAST_DSN" in answer.err


@pytest.mark.parametrize(
    "name", ["app", "Ada's", "a\\b", "a\\'b", "$$", ":'database'", "größe", 'say "ja"', "--"]
)
def test_any_name_arrives_in_pg_cron_as_it_is(
    without_database: Command, holdfast_dsn: str, name: str
) -> None:
    """Its functions are played by some that write down what they are told."""
    script = without_database("tick", "--pg-cron", "--dsn", make_conninfo("", dbname=name)).out
    with psycopg.connect(holdfast_dsn) as connection:
        connection.execute(
            "create schema cron;"
            "create table cron.told (job text, schedule text, command text, database text);"
            "create function cron.schedule_in_database(text, text, text, text) returns void language sql "
            "as 'insert into cron.told values ($1, $2, $3, $4)';"
            "create function cron.schedule(text, text, text) returns void language sql "
            "as 'insert into cron.told values ($1, $2, $3)'"
        )
        connection.execute(statements(script).replace("create extension if not exists pg_cron;", "").encode())
        told = connection.execute("select job, schedule, command, database from cron.told").fetchall()
        connection.rollback()
    command = "set statement_timeout = 0; select holdfast.tick()"
    assert told[0] == (f"holdfast {name}", "10 seconds", command, name)
    assert told[1][0] == "holdfast history"
    assert "delete from cron.job_run_details" in told[1][2]


def test_a_name_that_would_end_a_comment_is_refused(without_database: Command) -> None:
    answer = without_database("tick", "--pg-cron", "--dsn", make_conninfo("", dbname="app\ndrop table x; --"))
    assert (answer.code, answer.out) == (2, "")
    assert "cannot be printed" in answer.err

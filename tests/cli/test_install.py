"""Install the schema, see where it goes, open psql there."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import demo
from tests.cli.programs import HOLDFAST, Command


@pytest.fixture
def empty_dsn(holdfast_server: str) -> Iterator[str]:
    """The DSN of a database without Holdfast."""
    name = f"empty_{uuid4().hex[:12]}"
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute(f"create database {name}")
        yield make_conninfo(holdfast_server, dbname=name)
        server.execute(f"drop database {name} with (force)")


def test_migrate_installs_the_schema_once(run: Command, empty_dsn: str) -> None:
    first, second = run("--dsn", empty_dsn, "migrate"), run("migrate", "--dsn", empty_dsn)
    assert (first.code, second.code) == (0, 0)
    assert re.fullmatch(r"Installed Holdfast \S+ in .*\.\n", first.out)
    assert second.out.startswith("The schema is up to date in ")
    assert empty_dsn.split("dbname=")[1].split(maxsplit=1)[0] in second.out
    assert run("migrate", "--json", "--dsn", empty_dsn).json == {"applied": [], "roles": []}
    assert run("jobs", "--dsn", empty_dsn).code == 0


def test_migrate_says_what_an_upgrade_has_applied_in_one_sentence(run: Command, empty_dsn: str) -> None:
    run("migrate", "--dsn", empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute("update holdfast.migration set checksum = '' where name = any('{clock,lane}')")
    upgraded = run("migrate", "--dsn", empty_dsn)
    assert upgraded.out.startswith("Upgraded the schema to Holdfast ")
    assert upgraded.out.endswith(": 2 SQL files applied.\n")
    assert upgraded.out.count("\n") == 1


def test_migrate_lists_the_files_if_it_is_asked_to(run: Command, empty_dsn: str) -> None:
    lines = run("migrate", "--verbose", "--dsn", empty_dsn).out.splitlines()
    assert lines[0].startswith("Installed ")
    assert "  0001_jobs" in lines


def test_a_database_without_the_schema_is_answered_with_what_to_do(run: Command, empty_dsn: str) -> None:
    for command in (["jobs"], ["stats"], ["enqueue", "a"], ["queue", "pause", "a"], ["tick"]):
        answer = run(*command, "--dsn", empty_dsn)
        assert (answer.code, answer.out) == (1, "")
        assert "holdfast migrate" in answer.err
        assert "Traceback" not in answer.err


def test_migrate_prints_what_the_database_lacks(
    run: Command, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_DSN", raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", "/nowhere/at/all")
    everything = run("migrate", "--print")
    assert everything.code == 0
    assert "create table holdfast.job " in everything.out
    assert run("migrate", "--print", "--dsn", empty_dsn).out == everything.out
    run("migrate", "--dsn", empty_dsn)
    assert "Nothing is missing" in run("migrate", "--print", "--dsn", empty_dsn).out


def test_dsn_says_where_without_the_password(
    run: Command, holdfast_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = make_conninfo(holdfast_dsn, password="geheim")
    answer = run("--dsn", address, "dsn")
    assert "geheim" not in answer.out
    assert "password=*****" in answer.out
    assert (answer.out.count("\n"), answer.err) == (1, "(--dsn)\n")
    monkeypatch.setenv("HOLDFAST_DSN", address)
    assert run("dsn", "--json").json["source"] == "HOLDFAST_DSN"


def test_psql_opens_the_same_database(holdfast_dsn: str) -> None:
    answer = _psql("-At", "-c", "select current_database(), 'x' as y", HOLDFAST_DSN=holdfast_dsn)
    assert answer.returncode == 0
    assert answer.stdout == f"{conninfo_to_dict(holdfast_dsn)['dbname']}|x\n"


def test_psql_passes_on_its_exit_code_and_its_own_options(holdfast_dsn: str) -> None:
    failed = _psql("-c", "select 1/0", HOLDFAST_DSN=holdfast_dsn)
    assert failed.returncode == 1
    assert "division by zero" in failed.stderr
    assert "PostgreSQL" in _psql("--version", HOLDFAST_DSN=holdfast_dsn).stdout


def test_psql_and_the_rest_work_on_an_embedded_server() -> None:
    with tempfile.TemporaryDirectory(prefix="hf-", ignore_cleanup_errors=True) as home:
        Path(home).chmod(0o711)
        answer = _psql("-At", "-c", "select count(*) from holdfast.jobs", HOLDFAST_HOME=home, HOLDFAST_DSN="")
        assert (answer.stdout, answer.returncode) == ("0\n", 0), answer.stderr
        where = _holdfast("dsn", HOLDFAST_HOME=home, HOLDFAST_DSN="")
        assert where.stderr == "(embedded)\n"
        assert home in where.stdout


def test_demo_gets_the_address_and_gives_the_exit_code(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str | None] = []

    def main(dsn: str | None = None) -> int:
        called.append(dsn)
        return 3

    monkeypatch.setattr(demo, "main", main)
    assert run("demo", "--dsn", "host=somewhere").code == 3
    assert run("demo").code == 3
    assert called == ["host=somewhere", None]


def _psql(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return _holdfast("psql", *arguments, **environment)


def _holdfast(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*HOLDFAST, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

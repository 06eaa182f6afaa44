"""How the command fails: in a line or two, with an exit code, without a traceback and without a password."""

import os
import subprocess
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast import Holdfast
from holdfast.cli.root import ELSEWHERE
from holdfast.operations.stats import Stats
from tests.cli.programs import HOLDFAST, Command


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ann:geheim@localhost:1/shop",
        "host=localhost port=1 user=ann password=geheim dbname=shop",
    ],
)
def test_a_database_that_does_not_answer_is_named_without_its_password(run: Command, address: str) -> None:
    answer = run("jobs", "--dsn", address)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("Error: the database does not answer (")
    assert "shop" in answer.err
    assert "geheim" not in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    "address", ["postgresql://ann:geh%eim@localhost/shop", "user=ann password=tief geheim", "nonsense"]
)
def test_an_address_that_cannot_be_read_is_not_repeated(run: Command, address: str) -> None:
    answer = run("jobs", "--dsn", address)
    assert (answer.code, answer.out) == (2, "")
    assert "Error: the DSN cannot be read" in answer.err
    assert "eim" not in answer.err


def test_a_url_of_sqlalchemys_works_as_an_option_too(run: Command, holdfast_dsn: str) -> None:
    parts = conninfo_to_dict(holdfast_dsn)
    url = f"postgresql+psycopg://{parts['user']}@/{parts['dbname']}?host={quote(str(parts['host']), safe='')}"
    answer = run("dsn", "--dsn", url)
    assert answer.out.startswith("postgresql://")
    assert run("queue", "list", "--dsn", url).code == 0


def test_an_empty_address_never_means_another_database(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", "/nowhere/at/all")
    for arguments in (["--dsn", "", "jobs"], ["jobs", "--dsn", ""]):
        answer = run(*arguments)
        assert answer.code == 2
        assert "'--dsn': is empty" in answer.err


def test_an_unknown_command_is_answered_with_the_nearest(run: Command) -> None:
    answer = run("enqeue", "a")
    assert (answer.code, answer.out) == (2, "")
    assert "There is no command 'enqeue'. Did you mean 'enqueue'?" in answer.err
    assert "There is no command 'version'. Did you mean '--version'?" in run("version").err
    assert "See holdfast --help." in run("xyzzy").err


def test_a_command_by_the_name_it_has_elsewhere_is_answered_with_ours(run: Command) -> None:
    assert "There is no command 'retry'. Did you mean 'replay'?" in run("retry", "a").err
    assert "Did you mean 'queue pause'?" in run("pause", "mail").err
    for ours in ELSEWHERE.values():
        assert run(*ours.split(), "--help").code == 0, ours


def test_an_unknown_option_is_answered_with_the_nearest(run: Command) -> None:
    answer = run("jobs", "--limitt", "3")
    assert answer.code == 2
    assert "--limit" in answer.err


def test_an_interrupt_ends_it_quietly(holdfast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_self: Stats, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stats, "recent", interrupted)
    answer = holdfast("stats")
    assert (answer.code, answer.out, answer.err.strip()) == (130, "", "")


def test_an_unexpected_error_is_one_line_unless_more_is_asked_for(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: Stats, **_options: object) -> None:
        raise LookupError("nothing there\nDETAIL: Failing row contains (geheim)")

    monkeypatch.setattr(Stats, "recent", broken)
    answer = holdfast("stats")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines() == [
        "Error: LookupError: nothing there",
        "Hint: HOLDFAST_DEBUG=1 shows where it came from.",
    ]


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    with subprocess.Popen(
        [*HOLDFAST, "migrate", "--print"],
        env={**os.environ, "HOLDFAST_DSN": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline().startswith("-- Holdfast")
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(20)


def test_text_is_printed_in_any_encoding(holdfast: Command, hf: Holdfast, holdfast_dsn: str) -> None:
    hf.enqueue("a", {"name": "Žofie 🚢"})
    answer = subprocess.run(
        [*HOLDFAST, "jobs", "--json"],
        env={**os.environ, "HOLDFAST_DSN": holdfast_dsn, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert rb"\U0001f6a2" in answer.stdout


def test_every_command_has_a_help_with_what_it_is_for(run: Command) -> None:
    overview = run("--help")
    assert overview.code == 0
    names = [line.split()[0] for line in overview.out.partition("Begin:")[2].splitlines() if line[:3].strip()]
    commands = [name for name in names if not name.endswith(":") and name != "Every"]
    assert {"worker", "jobs", "queue", "psql", "run-now"} <= set(commands)
    for name in commands:
        answer = run(name, "--help")
        assert answer.code == 0
        assert answer.out.startswith(f"Usage: holdfast {name}")
    assert "..." not in overview.out.partition("Begin:")[2]

"""The command line on a real database: called in this process, or as a process of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.root import root
from tests.cli.programs import APP, Answer, Command, Program, StartProgram


@pytest.fixture
def run() -> Command:
    """Run a command in this process: `run("jobs", "--json")`."""

    def run(*arguments: str, stdin: str | None = None) -> Answer:
        result = CliRunner().invoke(root, arguments, input=stdin, prog_name="holdfast")
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def holdfast(run: Command, holdfast_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command on the test's own database."""
    monkeypatch.setenv("HOLDFAST_DSN", holdfast_dsn)
    return run


@pytest.fixture
def without_database(run: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command that has no business with a database."""
    monkeypatch.setenv("HOLDFAST_DSN", "host=nowhere.invalid")
    return run


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A directory with an app in it."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def program(app: Path, holdfast_dsn: str) -> Iterator[StartProgram]:
    """Start a command as a process, in the app's directory and on the test's own database."""
    started: list[Program] = []

    def start(*arguments: str, terminal: bool = False) -> Program:
        started.append(Program(*arguments, cwd=app, dsn=holdfast_dsn, terminal=terminal))
        return started[-1]

    yield start
    for each in started:
        each.close()

"""Nobody waits for what they do not use."""

import subprocess
import sys
from importlib.metadata import version

from tests.cli.programs import Command


def _loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


def test_importing_holdfast_loads_neither_the_command_line_nor_the_demo() -> None:
    loaded = _loaded("import holdfast")
    assert loaded.isdisjoint({"click", "rich", "holdfast.cli", "holdfast.demo", "holdfast.testing", "pytest"})


def test_the_version_needs_no_table_and_no_command() -> None:
    loaded = _loaded(
        "import holdfast.cli\n"
        "sys.argv = ['holdfast', '--version']\n"
        "try: holdfast.cli.main()\n"
        "except SystemExit as end: assert end.code == 0"
    )
    assert "holdfast.cli.root" in loaded
    assert loaded.isdisjoint({"rich", "holdfast.cli.jobs", "holdfast.cli.run", "holdfast.worker.worker"})


def test_a_command_that_writes_to_a_pipe_loads_no_tables() -> None:
    loaded = _loaded(
        "from click.testing import CliRunner\n"
        "from holdfast.cli.root import root\n"
        "assert CliRunner().invoke(root, ['jobs', '--help']).exit_code == 0"
    )
    assert "holdfast.cli.jobs" in loaded
    assert loaded.isdisjoint({"rich", "holdfast.worker.worker", "holdfast.demo"})


def test_it_is_also_a_module(run: Command) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert said == f"holdfast {version('holdfast')}\n"
    assert run("--version").out == said

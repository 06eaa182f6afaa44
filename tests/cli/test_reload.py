"""`holdfast worker --reload`: the worker starts again when its code has changed."""

import os
import signal
from pathlib import Path

import pytest

from holdfast import Holdfast, Job, JobState
from tests.cli.programs import Command, Program, StartProgram, is_alive, until

CODE = """
import asyncio
import sys
from pathlib import Path

from holdfast import Holdfast

VERSION = "one"

hf = Holdfast()


@hf.task(name="version")
async def version() -> str:
    return VERSION


@hf.task(name="hold")
async def hold(until: str) -> str:
    while not Path(until).exists():
        await asyncio.sleep(0.01)
    return VERSION
"""
FAILED = "the worker failed .exit 1.: it starts again when a file changes"
STARTED = r"process.started process=1 pid=(\d+)"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A directory with the first version of the app."""
    (tmp_path / "app.py").write_text(CODE)
    return tmp_path


def _change(app: Path, version: str) -> None:
    """Replace the file as editors do, within the same second."""
    old, new = app / "app.py", app / ".app.py"
    new.write_text(CODE.replace('"one"', f'"{version}"'))
    modified = old.stat().st_mtime_ns + 1
    os.utime(new, ns=(modified, modified))
    new.replace(old)


def _start(program: StartProgram, *arguments: str, terminal: bool = False) -> Program:
    worker = program("worker", "app:hf", "--reload", *arguments, terminal=terminal)
    worker.says("worker.started")
    return worker


def _version(hf: Holdfast) -> str:
    """Return the version of the code that runs a new job."""
    version: str = hf.enqueue("version").result(timeout=20)
    return version


def _holding(hf: Holdfast, app: Path) -> Job[object]:
    """Return a job that runs until the file `go` exists."""
    job = hf.enqueue("hold", {"until": str(app / "go")})
    until(lambda: job.refresh().state is JobState.RUNNING)
    return job


@pytest.mark.parametrize("notices", ["by watchfiles", "by polling"])
def test_a_changed_file_runs_its_new_code_for_the_next_job(
    program: StartProgram, hf: Holdfast, app: Path, monkeypatch: pytest.MonkeyPatch, notices: str
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    if notices == "by polling":
        (app / "watchfiles.py").write_text("raise ImportError")
    worker = _start(program)
    assert _version(hf) == "one"
    _change(app, "two")  # a file of the same length, so the compiled one looks current
    worker.says("INFO app.py changed: restarting\n")
    worker.says("worker.started", times=2)
    assert _version(hf) == "two"
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_a_running_job_finishes_with_the_old_code(program: StartProgram, hf: Holdfast, app: Path) -> None:
    worker = _start(program)
    job = _holding(hf, app)
    _change(app, "two")
    worker.says("worker.stopping .* running=1")
    _change(app, "three")  # the restart under way takes it along
    (app / "go").touch()
    until(lambda: job.refresh().state is JobState.COMPLETED)
    assert (job.refresh().result, job.refresh().attempt) == ("one", 1)
    assert _version(hf) == "three"
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert worker.said.count("changed: restarting") <= 2


def test_code_that_cannot_be_imported_waits_for_the_next_change(
    program: StartProgram, hf: Holdfast, app: Path
) -> None:
    worker = _start(program)
    (app / "app.py").write_text("hf = (\n")
    worker.says(r"Error: importing app failed: SyntaxError: .* line 1\)")
    worker.says(FAILED)
    _change(app, "three")
    assert _version(hf) == "three"
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_a_worker_that_waits_for_a_change_ends_on_ctrl_c(program: StartProgram, app: Path) -> None:
    (app / "app.py").write_text("hf = (\n")
    worker = program("worker", "app:hf", "--reload", terminal=True)
    worker.says(FAILED)
    worker.press_ctrl_c()
    assert worker.exit_code() == 0


def test_ctrl_c_ends_both_processes_once_the_job_has_finished(
    program: StartProgram, hf: Holdfast, app: Path
) -> None:
    worker = _start(program, terminal=True)
    job = _holding(hf, app)
    worker.press_ctrl_c()
    worker.says("Waiting up to 30s for 1 job to finish. A second Ctrl-C stops at once.")
    (app / "go").touch()
    assert worker.exit_code() == 0
    assert job.refresh().state is JobState.COMPLETED
    assert not any(is_alive(int(pid)) for pid in worker.says(STARTED))


def test_ctrl_c_during_a_restart_stops_and_a_second_one_ends_the_grace(
    program: StartProgram, hf: Holdfast, app: Path
) -> None:
    worker = _start(program, "--grace", "10m")
    job = _holding(hf, app)
    _change(app, "two")
    worker.says("worker.stopping .* running=1")
    worker.signal_group(signal.SIGINT)
    worker.says("stopping instead of restarting")
    assert job.refresh().state is JobState.RUNNING
    worker.signal_group(signal.SIGINT)
    assert worker.exit_code() == 0
    assert job.refresh().state is JobState.PENDING
    assert len(worker.says(STARTED)) == 1


def test_the_child_does_not_outlive_a_parent_that_was_killed(program: StartProgram, hf: Holdfast) -> None:
    worker = _start(program)
    worker.signal(signal.SIGKILL)
    worker.falls_silent()
    assert [row.status for row in hf.workers.list()] == ["left"]


def test_all_processes_restart_together(program: StartProgram, hf: Holdfast, app: Path) -> None:
    worker = _start(program, "--processes", "2", "--name", "crew")
    worker.says("worker.started", times=2)
    _change(app, "two")
    worker.says("worker.started", times=4)
    assert _version(hf) == "two"
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert {row.name for row in hf.workers.list()} == {"crew-1", "crew-2"}


def test_another_directory_is_watched_too(
    program: StartProgram, hf: Holdfast, app: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "shared.py").write_text("VERSION = 'one'")
    line = f"sys.path.append({str(elsewhere)!r})\nfrom shared import VERSION"
    (app / "app.py").write_text(CODE.replace('VERSION = "one"', line))
    worker = _start(program, "--reload-dir", str(elsewhere))
    assert _version(hf) == "one"
    (elsewhere / "shared.py").write_text("VERSION = 'two'")
    worker.says(f"INFO {elsewhere}/shared.py changed: restarting\n")
    worker.says("worker.started", times=2)
    assert _version(hf) == "two"


def test_an_app_with_a_database_of_its_own_is_refused_beside_a_dsn(
    program: StartProgram, app: Path, holdfast_dsn: str
) -> None:
    (app / "app.py").write_text(CODE.replace("Holdfast()", "Holdfast('host=here')"))
    worker = program("worker", "app:hf", "--reload", "--dsn", holdfast_dsn)
    worker.says("Error: app:hf names its own database .host=here")
    worker.says(FAILED)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["app:hf", "--reload", "--drain"], "Leave out one of them."),
        (["app:hf", "--reload-dir", "."], "Add --reload too."),
        (["app:hf", "--reload", "--reload-dir", "nowhere"], "Directory 'nowhere' does not exist."),
        (["app:hf", "--reload", "--concurrency", "0"], "concurrency 0: must be an integer from 1 to 10000"),
        (["app.py:hf", "--reload"], "Did you mean app:hf?"),
    ],
)
def test_wrong_usage_is_refused_before_a_child_starts(
    without_database: Command, arguments: list[str], said: str
) -> None:
    answer = without_database("worker", *arguments)
    assert answer.code == 2
    assert said in answer.err

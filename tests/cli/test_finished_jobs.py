"""A worker on a terminal tells of each job that it has finished."""

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, JobState
from holdfast.cli import finished_jobs
from holdfast.operations.claiming import Claimed, Report
from holdfast.telemetry import Counted, emit
from tests.cli.programs import StartProgram, until

APP = """
from holdfast import Holdfast, RetryPolicy, Snooze

hf = Holdfast()


@hf.task(name="greet")
async def greet() -> str:
    return "hello"


@hf.task(name="fail", retry=RetryPolicy(max_attempts=2, base=3600, jitter=0))
def fail() -> str:
    return {}["address"]


@hf.task(name="die", max_attempts=1)
async def die() -> None:
    raise ConnectionError("the server is busy")


@hf.task(name="wait")
async def wait() -> Snooze:
    return Snooze(1800)
"""


@pytest.fixture
def app(app: Path) -> Path:
    (app / "app.py").write_text(APP)
    return app


def worked(program: StartProgram, *options: str, terminal: bool = True) -> str:
    worker = program("worker", "app:hf", "--drain", *options, terminal=terminal)
    assert worker.exit_code() == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", worker.said)


def test_each_finished_job_has_a_line(program: StartProgram, app: Path, hf: Holdfast) -> None:
    job, later = hf.enqueue("greet"), hf.enqueue("wait")
    said = worked(program)
    assert len(re.findall(rf"(?m)^\d\d:\d\d:\d\d  completed  greet  {job.id}  in <?\d+ms$", said)) == 1
    assert re.search(rf"(?m)^\d\d:\d\d:\d\d  snoozed    wait  {later.id}  in <?\d+ms, again in 30m$", said)


def test_a_failure_has_its_traceback_and_the_time_of_the_next_try(
    program: StartProgram, app: Path, hf: Holdfast
) -> None:
    job = hf.enqueue("fail", max_attempts=2)
    said = worked(program)
    assert re.search(rf"failed     fail  {job.id}  in <?\d+ms, attempt 1 of 2\n  Traceback", said)
    assert 'return {}["address"]' in said
    next_at = job.refresh().run_at.astimezone()
    shown = re.search(r"KeyError: 'address'\n  next try at (.*) \(in (1h|59m 59s)\)\n", said)
    assert shown
    assert next_at.strftime("%H:%M:%S") in shown[1]
    assert "job.failed" not in said, "once is enough"


def test_a_job_without_attempts_left_is_said_to_be_dead(
    program: StartProgram, app: Path, hf: Holdfast
) -> None:
    job = hf.enqueue("die", max_attempts=1)
    said = worked(program)
    assert "  ConnectionError: the server is busy\n  dead: it is not tried again by itself. " in said
    assert f"holdfast replay {job.id}" in said


@pytest.mark.parametrize(
    ("options", "terminal"), [(["--quiet"], True), (["--log-format", "json"], True), ([], False)]
)
def test_it_can_be_quiet_and_a_log_file_is_as_it_was(
    program: StartProgram, app: Path, hf: Holdfast, options: list[Any], terminal: bool
) -> None:
    job = hf.enqueue("die", max_attempts=1)
    said = worked(program, *options, terminal=terminal)
    assert "failed     die" not in said
    assert "job.failed" in said
    assert job.refresh().state is JobState.DEAD


def test_processes_say_which_of_them_it_was(program: StartProgram, app: Path, hf: Holdfast) -> None:
    worker = program("worker", "app:hf", "--processes=2", "--name=w", terminal=True)
    job = hf.enqueue("greet")
    assert worker.says(rf"\nw-[12]  \d\d:\d\d:\d\d  .*completed.*  greet  {job.id}  in")
    worker.press_ctrl_c()
    worker.exit_code()
    quiet = program("worker", "app:hf", "--processes=2", "--drain", "--quiet", terminal=True)
    job = hf.enqueue("greet")
    until(lambda: job.refresh().state is JobState.COMPLETED)
    quiet.exit_code()
    assert "completed" not in quiet.said


def test_more_jobs_than_a_terminal_can_take_are_counted(
    hf: Holdfast, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_jobs, "BACKLOG", 3)
    job = Claimed("l", "i", "greet", "{}", 1, 3, "default", 100, False, 0, None)
    report = Report("i", "l", "completed", seconds=0.001)
    with finished_jobs.shown(hf):
        emit("jobs.finished", jobs=Counted([job] * 1003), reports=Counted([report] * 1003), refused=Counted())
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["completed"] * 3
    assert lines[3:] == ["… and 1,000 more jobs, too many to show"]


def test_what_the_database_refused_or_was_given_back_was_not_finished(
    hf: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Claimed("l", "i", "greet", "{}", 1, 3, "default", 100, False, 0, None)
    released, done = Report("i", "l", "released"), Report("i", "l", "completed")
    with finished_jobs.shown(hf):
        emit("jobs.finished", jobs=Counted([job]), reports=Counted([released]), refused=Counted())
        emit("jobs.finished", jobs=Counted([None]), reports=Counted([done]), refused=Counted())
        emit("jobs.finished", jobs=Counted([job]), reports=Counted([done]), refused=Counted([job]))
    assert capsys.readouterr().err == ""

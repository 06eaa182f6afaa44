"""The demo as people start it: it ends by itself, says what happened, and leaves nothing behind."""

import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.demo.crew import Crew, WorkerFailed
from holdfast.demo.plan import PLAN
from holdfast.demo.stage import CLEAN_UP_SECONDS

DEMO = [sys.executable, "-m", "holdfast.demo"]
OTHER_PLAN = """
import sys
from holdfast import JobState
from holdfast.demo import main
from holdfast.demo.jobs import reminder, welcome
from holdfast.demo.plan import Planned

mails = [welcome.call(user=n) for n in range(5)]
sys.exit(main(sys.argv[1], plan=[{plan}], limit={limit}))
"""


def other_plan(plan: str, limit: float = 30) -> list[str]:
    return [sys.executable, "-c", OTHER_PLAN.format(plan=plan, limit=limit)]


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=70
    )


def eventually(fact: Callable[[], bool], *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for temporary files that root's server can reach; pytest's own is closed to it."""
    path = Path(tempfile.mkdtemp(prefix="hfd-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def demo(holdfast_dsn: str) -> "Iterator[subprocess.Popen[str]]":
    """A demo in which two workers are at work."""
    with subprocess.Popen([*DEMO, holdfast_dsn], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        next(line for line in process.stdout if "at work" in line)
        yield process
        process.kill()


def test_everything_ends_as_planned_and_nothing_is_left(place: Path) -> None:
    done = run(*DEMO, TMPDIR=str(place), HOLDFAST_DSN="host=/nowhere")
    assert done.returncode == 0, done.stdout + done.stderr
    marks = [line.split()[0] for line in done.stdout.splitlines() if line.lstrip().startswith(("✓", "✗"))]
    assert marks == ["✓"] * (len(PLAN) + 2)
    for told in ("killed with -9", "taken back", "is claimed again", "1 dead, 2 attempts", "never existed"):
        assert told in done.stdout
    assert "All 307 jobs ended as planned" in done.stdout
    assert "make docs" in done.stdout
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert list(place.iterdir()) == []


def test_jobs_that_end_otherwise_than_planned_are_named_and_the_exit_code_is_1(holdfast_dsn: str) -> None:
    done = run(*other_plan("Planned('mails', 'die', mails, end=JobState.DEAD)"), holdfast_dsn)
    assert done.returncode == 1
    assert "✗   5 mails" in done.stdout
    assert "5 completed" in done.stdout
    assert "Not as planned" in done.stdout


def test_a_job_that_does_not_end_in_time_fails_the_demo_not_its_reader(holdfast_dsn: str) -> None:
    late = "Planned('reminder', 'is sent', [reminder.options(delay=3600).call(appointment=1)])"
    done = run(*other_plan(late, limit=4), holdfast_dsn)
    assert done.returncode == 1
    assert "✗   1 reminder" in done.stdout
    assert "1 scheduled" in done.stdout


def test_on_a_terminal_it_is_painted_and_the_summary_stays(holdfast_dsn: str) -> None:
    ours, theirs = pty.openpty()
    command = [*other_plan("Planned('mails', 'are sent', mails)"), holdfast_dsn]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # a terminal whose last user is gone
            while read := os.read(ours, 65536):
                shown += read
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    text = shown.decode()
    assert "\x1b[" in text
    assert "of 5 jobs have ended" in text
    assert "All 5 jobs ended as planned" in text.rpartition("of 5 jobs have ended")[2]


def test_a_database_without_holdfast_is_told_what_to_do_without_a_traceback(holdfast_server: str) -> None:
    done = run(*DEMO, holdfast_server)
    assert done.returncode == 1
    assert "The demo failed: " in done.stdout
    assert "holdfast migrate" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_database_that_hangs_ends_the_demo_all_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"host=127.0.0.1 port={silent.getsockname()[1]}"
        done = run(*other_plan("Planned('mails', 'are sent', mails)", limit=1 - CLEAN_UP_SECONDS), dsn)
    assert done.returncode == 1
    assert "The demo failed: something hung" in done.stdout


def test_the_workers_go_when_the_demo_is_killed(hf: Holdfast, demo: "subprocess.Popen[str]") -> None:
    demo.kill()
    eventually(lambda: [worker.status for worker in hf.workers.list()] == ["left", "left"])


def test_the_workers_go_when_the_demo_is_told_to_go(hf: Holdfast, demo: "subprocess.Popen[str]") -> None:
    demo.terminate()
    assert demo.wait(20) == 128 + signal.SIGTERM
    assert [worker.status for worker in hf.workers.list()] == ["left", "left"]


def test_a_worker_that_cannot_start_is_reported_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DSN", "host=/nowhere")
    with Crew() as crew:
        crew.start("anchor")

        def failed() -> bool:
            with suppress(WorkerFailed):
                crew.check()
                return False
            return True

        eventually(failed)
        with pytest.raises(WorkerFailed, match=r"(?s)worker anchor ended with code 1:.*does not answer"):
            crew.check()

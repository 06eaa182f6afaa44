"""`holdfast worker` in a process of its own."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast import Holdfast, JobState
from tests.cli.programs import Command, StartProgram, until
from tests.fixtures import Ask, Login

INNER = """
from holdfast import Holdfast

hf = Holdfast()


def make():
    @hf.task(isolation="process")
    def inner() -> None: ...


make()
"""


def test_a_worker_runs_jobs_and_ends_in_good_order(program: StartProgram, hf: Holdfast, app: Path) -> None:
    worker = program("worker", "app:hf", "--name", "anchor", "--grace", "60s")
    job = hf.enqueue("hold", {"until": str(app / "go")})
    until(lambda: job.refresh().state in {JobState.CLAIMED, JobState.RUNNING})
    worker.says("worker.started")
    worker.signal(signal.SIGTERM)
    worker.says("worker.stopping")
    (app / "go").touch()
    assert worker.exit_code() == 0
    done = job.refresh()
    assert (done.state, done.result, done.worker_name) == (JobState.COMPLETED, worker.pid, "anchor")
    assert [row.status for row in hf.workers.list()] == ["left"]
    assert "app.loaded app=app:hf tasks=4 database=" in worker.said
    assert "INFO [anchor] worker.stopped" in worker.said
    assert "Traceback" not in worker.said


def test_a_worker_that_waits_for_a_connection_ends_in_good_order(
    program: StartProgram, login: Login, ask: Ask
) -> None:
    dsn = login()
    ask(f"alter role {conninfo_to_dict(dsn)['user']} connection limit 0")
    worker = program("worker", "app:hf", "--dsn", dsn)
    worker.says("connections.refused")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert "Traceback" not in worker.said


def test_a_second_signal_does_not_wait_for_the_grace(program: StartProgram, hf: Holdfast, app: Path) -> None:
    worker = program("worker", "app:hf", "--grace", "10m")
    job = hf.enqueue("hold", {"until": str(app / "never")})
    until(lambda: job.refresh().state in {JobState.CLAIMED, JobState.RUNNING})
    worker.signal(signal.SIGINT)
    worker.says("worker.stopping .* running=1 grace=600")
    worker.signal(signal.SIGINT)
    assert worker.exit_code() == 0
    assert job.refresh().state in {JobState.PENDING, JobState.SCHEDULED}
    assert "Ctrl-C" not in worker.said  # nobody is there who could press it


@pytest.mark.parametrize(
    ("processes", "waits"),
    [
        (1, ["Waiting up to 10m for 2 jobs to finish. A second Ctrl-C stops at once."]),
        (2, [f"w-{n} waits up to 10m for 1 job to finish. A second Ctrl-C stops at once." for n in (1, 2)]),
    ],
)
def test_ctrl_c_says_what_it_waits_for_and_again_stops_at_once(
    program: StartProgram, hf: Holdfast, app: Path, processes: int, waits: list[str]
) -> None:
    options = ["--grace=10m", "--name=w", f"--processes={processes}", f"--concurrency={2 // processes}"]
    worker = program("worker", "app:hf", *options, terminal=True)
    jobs = [hf.enqueue("hold", {"until": str(app / "never")}) for _ in range(2)]
    until(lambda: all(job.refresh().state is JobState.RUNNING for job in jobs))
    worker.press_ctrl_c()
    for line in waits:
        worker.says(f"\n{re.escape(line)}\n")
    worker.press_ctrl_c()
    assert worker.exit_code() == 0
    assert worker.said.count("Ctrl-C") == len(waits)
    assert {job.refresh().state for job in jobs} == {JobState.PENDING}


def test_ctrl_c_on_a_worker_with_nothing_to_wait_for_says_nothing_of_it(program: StartProgram) -> None:
    worker = program("worker", "app:hf", terminal=True)
    worker.says("worker.started")
    worker.press_ctrl_c()
    assert worker.exit_code() == 0
    assert "Ctrl-C" not in worker.said


def test_a_worker_drains_the_queues_it_was_given(program: StartProgram, hf: Holdfast) -> None:
    mail = [hf.enqueue("whoami", queue=queue) for queue in ("mail", "post")]
    other = hf.enqueue("whoami")
    worker = program(
        "worker", "app:hf", "--drain", "--queues", "mail, post", "--no-notify", "--concurrency=1"
    )
    assert worker.exit_code() == 0
    assert [job.refresh().result for job in mail] == [worker.pid, worker.pid]
    assert other.refresh().state is JobState.PENDING
    assert hf.workers.list()[0].queues == ["mail", "post"]


def test_a_secret_is_in_no_log_line(program: StartProgram, hf: Holdfast) -> None:
    job = hf.enqueue("charge", {"card": {"$secret": "4111-1111"}}, max_attempts=1)
    worker = program("worker", "app:hf", "--drain", "--log-level", "debug")
    assert worker.exit_code() == 0
    assert job.refresh().state is JobState.DEAD
    assert "card ***** was refused" in worker.said
    assert "4111" not in worker.said


def test_an_app_keeps_the_logging_that_it_set_up(program: StartProgram, app: Path, hf: Holdfast) -> None:
    text = (app / "app.py").read_text()
    (app / "app.py").write_text(f"import logging\nlogging.basicConfig(format='MINE %(message)s')\n{text}")
    worker = program("worker", "app:hf", "--drain")
    assert worker.exit_code() == 0
    assert "MINE worker.started" in worker.said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ap:hf"], "Error: there is no module 'ap' in "),
        (["app:number"], "Error: app:number is a int, not a Holdfast\nHint: Did you mean app:hf?"),
        (["empty:hf"], "Error: empty:hf declares no tasks, so there is nothing to run"),
        (["fixed:hf", "--dsn", "host=elsewhere"], "Error: fixed:hf names its own database (host=here"),
        (["app:hf", "--dsn", "host=localhost port=1"], "Error: the database does not answer"),
        (
            ["inner:hf"],
            "Error: task inner.make.inner runs in a process, and inner.make.",
        ),
    ],
)
def test_a_worker_that_cannot_start_says_why(
    program: StartProgram, app: Path, arguments: list[str], said: str
) -> None:
    (app / "empty.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n")
    fixed = "import app\nfrom holdfast import Holdfast\nhf = Holdfast('host=here')\nhf.tasks = app.hf.tasks\n"
    (app / "fixed.py").write_text(fixed)
    (app / "inner.py").write_text(INNER)
    worker = program("worker", *arguments)
    assert worker.exit_code() == 1
    assert said in worker.said
    assert "Traceback" not in worker.said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["app"], "Error: 'app' does not name an app\nHint: Write module:attribute, such as app:hf."),
        (["app.py:hf"], "Error: app.py is a file; a module is meant\nHint: Did you mean app:hf?"),
        (["app:hf", "--concurrency", "0"], "Error: concurrency 0: must be an integer from 1 to 10000"),
        (["app:hf", "--grace", "2d"], "Error: grace 172800.0: must be a number from 0 to 86400"),
        (["app:hf", "--lease-time", "0"], "Error: lease_time 0.0: must be between 1 second and 1 day"),
        (["app:hf", "--poll-interval", "0"], "Error: poll_interval 0.0: must be a number from 0.01 to 3600"),
        (["app:hf", "--processes", "2", "--queues", "A"], "Error: queue 'A' is not a valid name"),
    ],
)
def test_a_value_that_no_worker_would_take_is_wrong_usage(
    program: StartProgram, arguments: list[str], said: str
) -> None:
    worker = program("worker", *arguments)
    assert worker.exit_code() == 2
    assert said in worker.said
    assert "Traceback" not in worker.said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["app:hf", "--processes", "0"], "0 is not in the range"),
        (["app:hf", "--queues", ","], "names no queue"),
        (["app:hf", "--grace", "soon"], "'soon' is not a duration"),
        ([], "Missing argument 'APP'"),
    ],
)
def test_a_worker_is_not_started_on_wrong_usage(
    without_database: Command, arguments: list[Any], said: str
) -> None:
    answer = without_database("worker", *arguments)
    assert answer.code == 2
    assert said in answer.err

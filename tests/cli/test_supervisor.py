"""`holdfast worker --processes N`: one command, several processes, one end."""

import os
import signal
from pathlib import Path

import psycopg

from holdfast import Holdfast, JobState
from tests.cli.programs import Program, StartProgram, is_alive, until

CONNECTIONS = """
select application_name from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""
STARTED = r"process.started process=\d+ pid=(\d+)"


def _at_work(hf: Holdfast) -> set[int]:
    """The pids of the workers that are there."""
    return {row.pid for row in hf.workers.list() if row.status in {"idle", "busy"} and row.pid}


def _two(program: StartProgram, hf: Holdfast, *arguments: str) -> tuple[Program, set[int]]:
    supervisor = program("worker", "app:hf", "--processes", "2", "--concurrency", "1", *arguments)
    pids = {int(pid) for pid in supervisor.says(STARTED, times=2)}
    until(lambda: _at_work(hf) == pids)
    return supervisor, pids


def test_two_processes_share_the_work_and_end_together(
    program: StartProgram, hf: Holdfast, app: Path
) -> None:
    supervisor, pids = _two(program, hf, "--name", "crew")
    assert {row.name for row in hf.workers.list()} == {"crew-1", "crew-2"}
    jobs = []
    for _ in range(2):  # the second finds the first process busy
        jobs.append(hf.enqueue("hold", {"until": str(app / "go")}))
        until(lambda: jobs[-1].refresh().state in {JobState.CLAIMED, JobState.RUNNING})
    supervisor.signal(signal.SIGTERM)
    supervisor.says("worker.stopping", times=2)
    (app / "go").touch()
    assert supervisor.exit_code() == 0
    assert {job.refresh().result for job in jobs} == pids
    assert not any(is_alive(pid) for pid in pids)


def test_only_the_children_hold_connections(program: StartProgram, hf: Holdfast) -> None:
    supervisor, _ = _two(program, hf)
    hf.database.close_unused(0)  # those of this test
    with psycopg.connect(hf.dsn, autocommit=True) as watcher:
        names = [name for (name,) in watcher.execute(CONNECTIONS)]
    assert names == ["holdfast claimer"] * 2
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code() == 0


def test_a_child_that_was_killed_is_started_again(program: StartProgram, hf: Holdfast) -> None:
    supervisor, pids = _two(program, hf)
    victim = min(pids)
    os.kill(victim, signal.SIGKILL)
    supervisor.says("ERROR process.died process=[12] .*exit=SIGKILL")
    heir = int(supervisor.says(STARTED, times=3)[2])
    assert heir not in pids
    until(lambda: heir in _at_work(hf))
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code() == 0
    assert not any(is_alive(pid) for pid in (*pids, heir))


def test_ctrl_c_in_a_terminal_reaches_the_children_once(
    program: StartProgram, hf: Holdfast, app: Path
) -> None:
    supervisor, _ = _two(program, hf, "--grace", "10m")
    job = hf.enqueue("hold", {"until": str(app / "go")})
    until(lambda: job.refresh().state in {JobState.CLAIMED, JobState.RUNNING})
    supervisor.signal_group(signal.SIGINT)
    supervisor.says("worker.stopping", times=2)
    (app / "go").touch()  # told twice, they would not have waited for it
    assert supervisor.exit_code() == 0
    assert job.refresh().state is JobState.COMPLETED


def test_a_second_signal_does_not_wait(program: StartProgram, hf: Holdfast, app: Path) -> None:
    supervisor, pids = _two(program, hf, "--grace", "10m")
    job = hf.enqueue("hold", {"until": str(app / "never")})
    until(lambda: job.refresh().state in {JobState.CLAIMED, JobState.RUNNING})
    supervisor.signal(signal.SIGTERM)
    supervisor.says("worker.stopping", times=2)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code() == 0
    assert job.refresh().state in {JobState.PENDING, JobState.SCHEDULED}
    assert not any(is_alive(pid) for pid in pids)


def test_children_do_not_outlive_a_supervisor_that_was_killed(program: StartProgram, hf: Holdfast) -> None:
    supervisor, _ = _two(program, hf)
    supervisor.signal(signal.SIGKILL)
    supervisor.falls_silent()
    assert {row.status for row in hf.workers.list()} == {"left"}  # they had the time to say goodbye


def test_drained_children_are_not_started_again(program: StartProgram, hf: Holdfast) -> None:
    jobs = [hf.enqueue("whoami") for _ in range(20)]
    supervisor = program("worker", "app:hf", "--processes", "2", "--drain")
    assert supervisor.exit_code() == 0
    assert {job.refresh().state for job in jobs} == {JobState.COMPLETED}
    assert len(supervisor.says(STARTED)) == 2
    assert "process.died" not in supervisor.said


def test_a_password_is_on_no_childs_command_line(
    program: StartProgram, hf: Holdfast, holdfast_dsn: str
) -> None:
    supervisor, pids = _two(program, hf, "--dsn", f"{holdfast_dsn} password=geheim")
    for pid in pids:
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists():
            assert b"geheim" not in command.read_bytes()
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code() == 0
    assert "geheim" not in supervisor.said

"""Handlers in processes of their own: warm, stopped for certain, and alone in their death."""

import os
import signal
import subprocess
import sys
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from holdfast import BadValue, Holdfast, Job, JobSnapshot, JobState
from tests.fixtures import Ask, StartWorker, Until
from tests.worker import isolated


@pytest.fixture
def hf(hf: Holdfast) -> Holdfast:
    for task in isolated.hf.tasks:
        hf.tasks.register(task)
    return hf


def run(hf: Holdfast, *jobs: Job[Any], **options: Any) -> list[JobSnapshot]:
    hf.worker(**options).run(drain=True)
    return [job.refresh() for job in jobs]


def test_a_process_is_another_one_and_is_kept_warm(hf: Holdfast) -> None:
    jobs = [hf.enqueue("where") for _ in range(3)]
    pids = {end.result[0] for end in run(hf, *jobs, concurrency=1)}
    assert len(pids) == 1
    assert os.getpid() not in pids
    (end,) = run(hf, hf.enqueue("later", {"n": 7}))
    assert (end.state, end.result) == (JobState.COMPLETED, {"n": 7})


def test_no_more_processes_are_started_than_there_are_cores(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3}, raising=False)
    ends = run(hf, *(hf.enqueue("where") for _ in range(6)), concurrency=6)
    assert {end.state for end in ends} == {JobState.COMPLETED}
    assert len({end.result[0] for end in ends}) == 1


def test_a_job_that_waits_for_a_process_has_not_begun(hf: Holdfast, work: StartWorker, until: Until) -> None:
    jobs = [hf.enqueue("progress", max_attempts=1) for _ in range(3)]
    worker = work(concurrency=3, max_isolated=1, grace=0)
    until(lambda: any(job.refresh().progress == 40 for job in jobs))
    running, *waiting = sorted((job.refresh() for job in jobs), key=lambda it: it.state != JobState.RUNNING)
    assert running.state is JobState.RUNNING
    assert {it.state for it in waiting} == {JobState.CLAIMED}
    worker.stop()
    worker.wait()
    ended = {it.id: hf.job(it.id).refresh() for it in [running, *waiting]}
    assert ended[running.id].state is JobState.DEAD, "it was interrupted at its only attempt"
    assert [(ended[it.id].state, ended[it.id].attempt) for it in waiting] == [(JobState.PENDING, 0)] * 2


def test_a_job_that_waits_for_a_process_can_be_cancelled(
    hf: Holdfast, work: StartWorker, until: Until
) -> None:
    jobs = [hf.enqueue("progress") for _ in range(2)]
    work(concurrency=2, max_isolated=1, grace=0)
    until(lambda: any(job.refresh().progress == 40 for job in jobs))
    first, second = sorted(jobs, key=lambda job: job.refresh().state != JobState.RUNNING)
    second.cancel()
    until(lambda: second.refresh().state is JobState.CANCELLED)
    first.cancel()
    last = hf.enqueue("where")
    until(lambda: last.refresh().state is JobState.COMPLETED)  # the place is free


def test_processes_are_started_and_waited_for_outside_the_event_loop(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.task(name="thread")
    async def thread() -> int:
        return threading.get_ident()

    seen: dict[str, set[int]] = {"start": set(), "join": set()}

    def watch(verb: str) -> None:
        really = getattr(BaseProcess, verb)

        def noted(process: BaseProcess, *args: Any) -> Any:
            seen[verb].add(threading.get_ident())
            return really(process, *args)

        monkeypatch.setattr(BaseProcess, verb, noted)

    watch("start")
    watch("join")
    jobs = [hf.enqueue(name, max_attempts=1) for name in ("thread", "where", "spin")]
    loop, *_ = (end.result for end in run(hf, *jobs))
    assert seen["start"]
    assert seen["join"]
    assert loop not in seen["start"] | seen["join"]


@pytest.mark.parametrize(("isolation", "loaded"), [("", False), ("isolation='process'", True)])
def test_a_worker_loads_what_processes_need_only_for_a_task_that_asks_for_one(
    holdfast_dsn: str, tmp_path: Path, isolation: str, loaded: bool
) -> None:
    (tmp_path / "app.py").write_text(
        f"from holdfast import Holdfast\nhf = Holdfast()\n@hf.task({isolation})\ndef work() -> None: ...\n"
    )
    code = (
        "import sys, app\nif __name__ == '__main__':\n"
        "    app.work.enqueue()\n"
        "    app.hf.worker().run(drain=True)\n"
        "    print(app.hf.stats.count()[0].state, 'multiprocessing' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_DSN": holdfast_dsn},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.split() == ["completed", str(loaded)]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("exit", "ProcessDied: its process ended with exit code 7 while it ran"),
        ("segfault", "ProcessDied: its process ended by SIGSEGV while it ran"),
        ("raise", "ValueError: no"),
        ("system exit", "SystemExit: 3"),
    ],
)
def test_whatever_a_handler_dies_of_is_its_own_failure_alone(hf: Holdfast, how: str, error: str) -> None:
    jobs = [hf.enqueue("where"), hf.enqueue("die", {"how": how}, max_attempts=1), hf.enqueue("where")]
    ends = run(hf, *jobs, concurrency=1)
    assert [end.state for end in ends] == [JobState.COMPLETED, JobState.DEAD, JobState.COMPLETED]
    assert ends[1].last_error == error


def test_a_warm_process_that_died_is_no_jobs_failure(hf: Holdfast, work: StartWorker, until: Until) -> None:
    def end(job: Job[Any]) -> JobSnapshot:
        return until(lambda: (seen := job.refresh()).state.final and seen)

    work(concurrency=1)
    (first, _) = end(hf.enqueue("where")).result
    os.kill(first, signal.SIGKILL)
    after = end(hf.enqueue("where", max_attempts=1))
    assert after.state is JobState.COMPLETED
    assert after.result[0] != first


def test_outcomes_and_secrets_cross_the_boundary(hf: Holdfast) -> None:
    jobs = [
        hf.enqueue("tell", {"kind": kind, "secret": {"$secret": "hunter2"}}, max_attempts=1)
        for kind in ("cancel", "give up", "")
    ]
    ends = run(hf, *jobs)
    assert [(end.state, end.last_error) for end in ends[:2]] == [
        (JobState.CANCELLED, "no need"),
        (JobState.DEAD, "no use"),
    ]
    assert "the password is" in (ends[2].last_error or "")
    assert "hunter2" not in (ends[2].last_error or "")
    (error,) = jobs[2].errors()
    assert "isolated.py" in (error.traceback or "")
    assert "hunter2" not in (error.traceback or "")


def test_one_that_takes_too_long_is_killed(hf: Holdfast) -> None:
    (end,) = run(hf, hf.enqueue("spin", max_attempts=1))
    assert end.state is JobState.DEAD
    assert end.last_error == "TimeoutError: its process was killed: it ran longer than its timeout of 1 s"


def test_one_that_takes_too_much_memory_is_killed(hf: Holdfast) -> None:
    (end,) = run(hf, hf.enqueue("swell", max_attempts=1))
    assert end.state is JobState.DEAD
    assert "the limit is 209,715,200" in (end.last_error or "")


def test_progress_and_cancel_cross_the_boundary(hf: Holdfast, work: StartWorker, until: Until) -> None:
    job = hf.enqueue("progress")
    work()
    seen = until(lambda: (seen := job.refresh()).progress and seen)
    assert (seen.progress, seen.stage) == (40, "rendering")
    assert job.cancel() == "requested"
    end = until(lambda: (seen := job.refresh()).state.final and seen)
    assert (end.state, end.last_error) == (JobState.CANCELLED, "cancelled while it ran")


def test_a_shutdown_that_cannot_wait_kills_it_and_gives_it_back(
    hf: Holdfast, work: StartWorker, until: Until
) -> None:
    job = hf.enqueue("progress", max_attempts=2)
    worker = work(grace=0)
    until(lambda: job.refresh().progress == 40)
    worker.end()
    assert (job.refresh().state, job.refresh().attempt) == (JobState.PENDING, 1)


def test_exactly_once_works_there_too(hf: Holdfast, ask: Ask) -> None:
    ask("create table moved (n integer)")
    (end,) = run(hf, hf.enqueue("move"))
    assert (end.state, end.result) == (JobState.COMPLETED, "moved")
    assert ask("select n from moved") == [(1,)]


SCRIPT = """
from holdfast import Holdfast

hf = Holdfast()


@hf.task(isolation="process", give_up_on=ValueError)
def charge() -> None:
    raise ValueError("no")


if __name__ == "__main__":
    job = charge.enqueue()
    hf.worker().run(drain=True)
    print(job.refresh().state.value)
"""


def test_a_task_of_a_script_keeps_its_options_there(tmp_path: Path, holdfast_dsn: str) -> None:
    script = tmp_path / "shop.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"HOLDFAST_DSN": holdfast_dsn}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "dead\n"


UNGUARDED = """
from holdfast import Holdfast

hf = Holdfast()


@hf.task(isolation="process", max_attempts=1)
def charge() -> None: ...


job = charge.enqueue()
hf.worker().run(drain=True)
print(job.refresh().state.value)
"""


def test_a_script_without_a_guard_is_refused_in_its_children(
    tmp_path: Path, holdfast_dsn: str, hf: Holdfast
) -> None:
    script = tmp_path / "shop.py"
    script.write_text(UNGUARDED)
    environment = os.environ | {"HOLDFAST_DSN": holdfast_dsn}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "dead\n"
    assert 'Put that code under if __name__ == "__main__":' in done.stderr
    assert [job.task for job in hf.jobs.list()] == ["shop.charge"]


CHAIN = """
from holdfast import Holdfast

hf = Holdfast()


@hf.task(isolation="process")
def first() -> None:
    second.enqueue()


@hf.task
def second() -> None: ...


if __name__ == "__main__":
    first.enqueue()
    hf.worker().run(drain=True)
"""


def test_a_child_of_a_script_enqueues_its_tasks_by_the_same_names(
    tmp_path: Path, holdfast_dsn: str, hf: Holdfast
) -> None:
    script = tmp_path / "shop.py"
    script.write_text(CHAIN)
    environment = os.environ | {"HOLDFAST_DSN": holdfast_dsn}
    subprocess.run([sys.executable, script], env=environment, timeout=60, check=True)
    assert {(job.task, job.state) for job in hf.jobs.list()} == {
        ("shop.first", JobState.COMPLETED),
        ("shop.second", JobState.COMPLETED),
    }


def test_a_task_that_a_child_cannot_import_is_refused_when_the_worker_is_made(hf: Holdfast) -> None:
    @hf.task(name="local", isolation="process")
    def local() -> None: ...

    with pytest.raises(BadValue, match="cannot be imported there"):
        hf.worker()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"isolation": "thread"}, "isolation"),
        ({"memory_limit": 2**30}, "memory_limit"),
        ({"isolation": "process", "memory_limit": 5}, "memory_limit"),
    ],
)
def test_options_that_make_no_sense_are_refused(hf: Holdfast, options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadValue, match=field):
        hf.task(name="x", **options)(lambda: None)

"""SIGTERM and SIGINT, as a real process gets them."""

import signal
import time
from pathlib import Path
from signal import Signals

import pytest

from holdfast import Holdfast, JobState
from tests.faults.process import StartProcess
from tests.fixtures import Counts, Until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish(
    hf: Holdfast, crew: StartProcess, gate: Path, until: Until, counts: Counts, number: Signals
) -> None:
    worker = crew(concurrency=2)
    jobs = [hf.enqueue(task, {"gate": str(gate)}) for task in ("hold", "hold.thread")]
    until(lambda: counts() == {"running": 2}, say=counts)
    worker.signal(number)
    worker.told.wait_for("worker.stopping")
    late = hf.enqueue("noop")
    gate.touch()
    assert worker.wait() == 0
    assert {(job.refresh().state, job.refresh().attempt) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert late.refresh().attempt == 0
    assert [row.status for row in hf.workers.list()] == ["left"]


def test_a_second_signal_does_not_wait(
    hf: Holdfast, crew: StartProcess, gate: Path, until: Until, counts: Counts
) -> None:
    worker = crew(grace=600)
    jobs = [hf.enqueue("hold", {"gate": str(gate)}) for _ in range(3)]
    until(lambda: counts() == {"running": 3}, say=counts)
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    worker.told.wait_for("worker.stopping")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert time.monotonic() - begun < 5
    assert {(job.refresh().state, job.refresh().attempt) for job in jobs} == {(JobState.PENDING, 1)}


@pytest.mark.parametrize("task", ["stuck", "stubborn"])
def test_a_handler_that_never_ends_cannot_prevent_the_exit(
    hf: Holdfast, crew: StartProcess, until: Until, counts: Counts, task: str
) -> None:
    worker = crew(grace=0.1, clean_up=0.2)
    job = hf.enqueue(task)
    until(lambda: counts() == {"running": 1}, say=counts)
    worker.signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert worker.told.named("worker.abandoned")[0]["handlers"] == "1"
    assert (job.refresh().state, job.refresh().attempt) == (JobState.PENDING, 1)
    assert job.errors()[0].error == "interrupted: its worker was stopped"

"""A worker that dies in the middle of a job: the next one goes on after the steps that are done."""

import signal
from pathlib import Path

from holdfast import Holdfast
from tests.faults.process import StartProcess
from tests.fixtures import Until

LEASE = 2.0


def test_kill_9_after_step_3_of_5(
    hf: Holdfast, crew: StartProcess, gate: Path, tmp_path: Path, until: Until
) -> None:
    log = tmp_path / "log"
    crew(queues=["elsewhere"], lease_time=LEASE)  # only sees who dies
    victim = crew(lease_time=LEASE)
    job = hf.enqueue("climb", {"log": str(log), "gate": str(gate)})
    until(lambda: len(job.steps()) == 3)
    victim.signal(signal.SIGKILL)
    victim.wait()
    gate.touch()
    heir = crew(lease_time=LEASE)
    assert job.result(timeout=60) == [1, 2, 3, 4, 5]
    lines = [line.split() for line in log.read_text().splitlines()]
    assert lines == [
        *([str(number), str(victim.pid)] for number in (1, 2, 3)),
        *([str(number), str(heir.pid)] for number in (4, 5)),
    ]
    assert job.refresh().attempt == 1  # a first death costs no attempt
    assert [(step.name, step.attempt) for step in job.steps()] == [
        (f"step {number}", 1) for number in range(1, 6)
    ]

"""Part of a fleet dies: no job is lost, and the others run the duties in time.

`make faults` repeats each fault 20 times, and prints how late the duties were.
"""

import random
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Holdfast, JobState
from holdfast.task import named_job
from tests.faults.fleet import REPEATS, Fleet, note
from tests.fixtures import Counts, Until

LEASE = timedelta(seconds=4)
# How late a duty may be: a due job, a schedule, or the recovery of jobs whose lease has expired.
LATE = timedelta(seconds=2)
OPTIONS = ("--lease-time", f"{LEASE.total_seconds():g}s")

pytestmark = pytest.mark.parametrize("repeat", range(REPEATS))


@pytest.fixture
def fleet(hf: Holdfast) -> Iterator[Fleet]:
    fleet = Fleet(hf)
    yield fleet
    fleet.close()


def test_half_of_the_fleet_is_killed(
    hf: Holdfast,
    fleet: Fleet,
    gate: Path,
    until: Until,
    counts: Counts,
    repeat: int,
) -> None:
    programs = fleet.start(6, *OPTIONS, "--concurrency", "2")
    held = hf.enqueue_many(named_job("hold", {"gate": str(gate)}) for _ in range(12))
    until(lambda: counts() == {"running": 12}, say=counts)
    rest = hf.enqueue_many(named_job("work", {"seconds": 0.01}) for _ in range(50))

    last = fleet.next_run()
    others = [program.pid for program in programs if program.pid != last]
    victims = {last, *random.Random(repeat).sample(others, 2)}
    killed_at = fleet.kill(*victims)
    fleet.delay_jobs(killed_at, amount=20)
    lost = fleet.held_by(victims)
    gate.touch()
    until(lambda: counts() == {"completed": 12 + 50 + 20 + 1}, say=counts)

    claimed = {job.id: job.refresh().claimed_at for job in held if job.id in lost}
    recovered = max(at for at in claimed.values() if at) - killed_at
    note("recovered", recovered)
    note("late", max(fleet.lateness()))
    assert len(lost) >= 6
    assert {job.refresh().state for job in (*held, *rest)} == {JobState.COMPLETED}
    assert recovered <= LEASE + LATE
    assert max(fleet.lateness()) <= LATE
    for program in programs:
        assert "worker.lost" not in program.said
        assert "Traceback" not in program.said


def test_the_worker_that_ran_the_duties_last_is_killed(
    fleet: Fleet, until: Until, counts: Counts, repeat: int
) -> None:
    """No other worker knows of the jobs and the schedule that are due next."""
    fleet.start(2 + repeat % 3, *OPTIONS)
    killed_at = fleet.kill(fleet.next_run())
    fleet.delay_jobs(killed_at, amount=10)
    until(lambda: counts() == {"completed": 10 + 1}, say=counts)
    note("late", max(fleet.lateness()))
    assert max(fleet.lateness()) <= LATE


def test_a_supervisor_is_killed(
    hf: Holdfast,
    fleet: Fleet,
    gate: Path,
    until: Until,
    counts: Counts,
    repeat: int,
) -> None:
    (supervisor,) = fleet.start(1, *OPTIONS, "--processes", "2", "--concurrency", "2")
    children = fleet.pids()
    held = hf.enqueue_many(named_job("hold", {"gate": str(gate)}) for _ in range(4))
    until(lambda: counts() == {"running": 4}, say=counts)
    fleet.start(1, *OPTIONS)
    until(lambda: fleet.next_run() in children)
    killed_at = fleet.kill(supervisor.pid)
    fleet.delay_jobs(killed_at, amount=10)
    supervisor.says("worker.stopping", times=2)
    rest = hf.enqueue_many(named_job("work", {"seconds": 0.01}) for _ in range(20))
    until(lambda: {job.refresh().state for job in rest} == {JobState.COMPLETED})
    gate.touch()
    supervisor.falls_silent()
    assert fleet.pids().isdisjoint(children)
    until(lambda: set(counts()) == {"completed"}, say=counts)
    note("late", max(fleet.lateness()))
    assert {(job.refresh().attempt, job.refresh().result in children) for job in held} == {(1, True)}
    assert sorted(row.status for row in hf.workers.list()) == ["idle", "left", "left"]
    assert max(fleet.lateness()) <= LATE
    assert "Traceback" not in supervisor.said


def test_a_child_that_is_stopped_loses_its_jobs_to_its_sibling(
    hf: Holdfast,
    fleet: Fleet,
    gate: Path,
    until: Until,
    counts: Counts,
    repeat: int,
) -> None:
    (supervisor,) = fleet.start(1, *OPTIONS, "--processes", "2", "--concurrency", "4")
    job = hf.enqueue("hold", {"gate": str(gate)})
    until(lambda: job.refresh().state is JobState.RUNNING)
    stopped = fleet.holder(job.id)
    assert stopped
    stopped_at = fleet.stop(stopped)
    until(lambda: fleet.holder(job.id) not in {None, stopped})
    claimed_at = job.refresh().claimed_at
    assert claimed_at
    recovered = claimed_at - stopped_at
    note("recovered", recovered)
    assert "process.died" not in supervisor.said

    fleet.resume()
    supervisor.says("worker.lost")
    until(lambda: stopped in fleet.pids())
    gate.touch()
    until(lambda: counts() == {"completed": 1}, say=counts)
    assert job.refresh().result in fleet.pids() - {stopped}
    assert recovered <= LEASE + LATE
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code() == 0

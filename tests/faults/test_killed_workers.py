"""A worker that dies takes nothing with it, and only those pay for its death who may have caused it."""

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, JobState
from holdfast.task import named_job
from holdfast.testing import Clock
from tests.faults.process import Process, StartProcess
from tests.fixtures import Ask, Counts, Until

LEASE = 2.0
SESSIONS = "select from pg_stat_activity where datname = current_database() and application_name = %s"


@pytest.fixture
def watcher(crew: StartProcess) -> Process:
    """A live worker that serves another queue: it only sees who dies."""
    return crew(queues=["elsewhere"], lease_time=LEASE)


def test_kill_9_in_the_middle_of_a_batch(
    hf: Holdfast, crew: StartProcess, watcher: Process, gate: Path, ask: Ask, until: Until, counts: Counts
) -> None:
    victim = crew(concurrency=5, lease_time=LEASE, longest_wait=60)
    for _ in range(3):
        hf.enqueue("noop")
    until(lambda: counts() == {"completed": 3})
    # Short ones first, so that it takes many at once; then those that it cannot finish.
    hf.enqueue_many(named_job("noop") for _ in range(3000))
    hf.enqueue_many(named_job("hold", {"gate": str(gate)}) for _ in range(60))
    until(lambda: counts().get("running") == 5 and counts().get("claimed", 0) > 5, say=counts)
    victim.signal(signal.SIGKILL)
    victim.wait()
    # A write that was under way has ended, one way or the other.
    until(lambda: not ask(SESSIONS, "holdfast finisher"))  # the watcher has nothing to report
    started = {row[0] for row in ask("select job_id from holdfast.running")}
    claimed = {row[0] for row in ask("select id from holdfast.job where state = 'claimed'")}
    assert len(started) == 5 < len(claimed)
    until(lambda: set(counts()) == {"completed", "pending"}, say=counts)
    attempts: dict[Any, int] = dict(ask("select id, attempt from holdfast.job"))
    assert {attempts[job] for job in claimed} == {0}
    assert {job for (job,) in ask("select job_id from holdfast.death")} == started

    gate.touch()
    crew(concurrency=5, lease_time=LEASE)
    until(lambda: counts() == {"completed": 3063}, say=counts)
    attempts = dict(ask("select id, attempt from holdfast.finished"))
    assert set(attempts.values()) == {1}


def test_with_100_000_jobs_waiting_those_of_a_dead_worker_are_back_in_time_and_go_first(
    hf: Holdfast, crew: StartProcess, watcher: Process, gate: Path, ask: Ask, until: Until, counts: Counts
) -> None:
    victim = crew(concurrency=20, lease_time=LEASE)
    hf.enqueue_many(named_job("hold", {"gate": str(gate)}) for _ in range(20))
    until(lambda: counts() == {"running": 20}, say=counts)
    hf.enqueue_many(named_job("noop") for _ in range(100_000))
    ((killed_at,),) = ask("select clock_timestamp()")
    victim.signal(signal.SIGKILL)
    until(lambda: len(ask(SESSIONS, "holdfast claimer")) == 1)  # the watcher's: no claim is under way
    lost = [job for (job,) in ask("select id from holdfast.job where state = 'claimed' order by seq")]
    assert len(lost) >= 20
    until(lambda: not {"claimed", "running"} & set(counts()), say=counts)

    consumer = uuid4()
    order: list[Any] = []
    while len(order) < len(lost):
        taken = ask("select id, lease from holdfast.claim(worker => %s)", consumer)
        order += [job for job, _ in taken]
        for job, lease in taken:
            ask("select holdfast.complete(%s, %s)", job, lease)
    assert order == lost
    ((claimed_at,),) = ask("select max(claimed_at) from holdfast.finished")
    assert claimed_at - killed_at < timedelta(seconds=LEASE + 5)


@pytest.mark.parametrize(("concurrency", "others", "attempts"), [(201, 200, 2), (1, 5, 1)])
def test_a_job_that_kills_its_process_dies_alone(
    hf: Holdfast,
    crew: StartProcess,
    ask: Ask,
    until: Until,
    counts: Counts,
    concurrency: int,
    others: int,
    attempts: int,
) -> None:
    crew(queues=["elsewhere"], lease_time=1)
    poison, *rest = hf.enqueue_many(
        [named_job("poison", max_attempts=attempts), *(named_job("noop") for _ in range(others))]
    )
    for _ in range(attempts + 1):  # the first death charges nobody: any of them may have caused it
        worker = crew(lease_time=1, concurrency=concurrency)
        assert worker.wait() == -signal.SIGKILL
        until(lambda: not {"claimed", "running"} & set(counts()), say=counts)
    assert (poison.refresh().state, poison.refresh().attempt) == (JobState.DEAD, attempts)
    assert "died or was cut off" in (poison.refresh().last_error or "")
    errors = poison.errors()
    assert [error.attempt for error in errors] == [*range(1, attempts + 1)]
    assert all("died or was cut off while it ran this job" in error.error for error in errors)
    survivor = crew(lease_time=1, concurrency=concurrency)
    until(lambda: counts() == {"completed": others, "dead": 1}, say=counts)
    assert ask("select distinct attempt from holdfast.finished") == [(1,)]
    assert {job.refresh().state for job in rest[:5]} == {JobState.COMPLETED}
    assert survivor.told.named("worker.lost") == []


def test_a_job_that_kills_its_process_late_costs_its_neighbours_nothing(
    hf: Holdfast, crew: StartProcess, gate: Path, tmp_path: Path, ask: Ask, until: Until, counts: Counts
) -> None:
    """All of them were seen at work when the process died, as when it runs out of memory."""
    fuse = tmp_path / "fuse"
    crew(queues=["elsewhere"], lease_time=1)
    poison, *others = hf.enqueue_many(
        [
            named_job("poison.late", {"fuse": str(fuse)}, max_attempts=1),
            *(named_job("hold", {"gate": str(gate)}, max_attempts=1) for _ in range(10)),
        ]
    )
    worker = crew(lease_time=1, concurrency=20)
    until(lambda: counts() == {"running": 11}, say=counts)
    fuse.touch()
    assert worker.wait() == -signal.SIGKILL
    until(lambda: counts() == {"pending": 11}, say=counts)
    assert ask("select distinct attempt from holdfast.live") == [(0,)]
    gate.touch()
    assert crew(lease_time=1, concurrency=20).wait() == -signal.SIGKILL
    crew(lease_time=1, concurrency=20)
    until(lambda: counts() == {"completed": 10, "dead": 1}, say=counts)
    assert (poison.refresh().state, poison.refresh().attempt) == (JobState.DEAD, 1)
    assert {(job.refresh().attempt, len(job.errors())) for job in others} == {(1, 0)}


def test_a_suspect_that_kills_later_than_any_other_would_start_kills_alone(
    hf: Holdfast,
    crew: StartProcess,
    gate: Path,
    tmp_path: Path,
    ask: Ask,
    until: Until,
    counts: Counts,
    clock: Clock,
) -> None:
    fuse = tmp_path / "fuse"
    poison, *others = hf.enqueue_many(
        [
            named_job("poison.late", {"fuse": str(fuse)}, max_attempts=1),
            *(named_job("hold", {"gate": str(gate)}, max_attempts=1) for _ in range(10)),
        ]
    )

    def dies(worker: Process, seconds: float) -> None:
        clock.advance(seconds=seconds)
        # One that comes now is claimed now, and so would be the next suspect.
        last = hf.enqueue("noop")
        until(lambda: last.refresh().state is JobState.COMPLETED)
        held = sum(counts().get(state, 0) for state in ("claimed", "running"))
        fuse.touch()
        assert worker.wait() == -signal.SIGKILL
        until(lambda: ask("select holdfast.recover(timeout => '0')") == [(held,)])
        fuse.unlink()

    worker = crew(lease_time=60, concurrency=20)
    until(lambda: counts() == {"running": 11}, say=counts)
    dies(worker, 7)
    worker = crew(lease_time=60, concurrency=20)
    until(lambda: counts().get("running") == 1, say=counts)
    dies(worker, 8)
    assert (poison.refresh().state, poison.refresh().attempt) == (JobState.DEAD, 1)
    assert [job.refresh().attempt for job in others] == [0] * 10
    gate.touch()
    crew(lease_time=60, concurrency=20)
    until(lambda: counts() == {"completed": 12, "dead": 1}, say=counts)
    assert {(job.refresh().attempt, len(job.errors())) for job in others} == {(1, 0)}


def test_others_do_not_wait_for_a_job_that_kills_its_worker(
    hf: Holdfast, crew: StartProcess, ask: Ask, until: Until, counts: Counts
) -> None:
    workers = [crew(lease_time=1) for _ in range(3)]
    poison, *others = hf.enqueue_many(
        [named_job("poison", max_attempts=2), *(named_job("noop") for _ in range(200))]
    )

    def is_dead() -> bool:
        workers[:] = [crew(lease_time=1) if worker.dead else worker for worker in workers]
        return poison.refresh().state is JobState.DEAD

    until(is_dead, timeout=30, say=counts)
    ends = [job.refresh() for job in others]
    assert {(end.state, end.attempt) for end in ends} == {(JobState.COMPLETED, 1)}
    finished = poison.refresh().finished_at
    assert finished
    assert all(end.finished_at and end.finished_at < finished for end in ends)


def test_a_stopped_worker_that_comes_back_late_is_refused_and_begins_anew(
    hf: Holdfast, crew: StartProcess, watcher: Process, gate: Path, ask: Ask, until: Until, counts: Counts
) -> None:
    sleeper = crew(concurrency=10, lease_time=LEASE, longest_wait=60, slow_beats=True)
    hf.enqueue_many(named_job("noop") for _ in range(2000))
    until(lambda: counts() == {"completed": 2000}, say=counts)
    held = hf.enqueue_many(named_job("hold", {"gate": str(gate)}) for _ in range(40))
    until(lambda: counts().get("running") == 10 and counts().get("claimed", 0) > 0, say=counts)
    sleeper.signal(signal.SIGSTOP)
    until(lambda: counts() == {"completed": 2000, "pending": 40}, say=counts)
    gate.touch()
    sleeper.signal(signal.SIGCONT)

    sleeper.told.wait_for("worker.started", 2)
    sleeper.told.wait_for("report.refused", 10)
    refused = sleeper.told.named("report.refused")
    # Those that ran; what waited in its buffer was not even begun on a lease that had run out.
    assert [event["sqlstate"] for event in refused] == ["HF001"] * 10
    assert len(sleeper.told.named("worker.lost")) == 1
    # Nobody else serves this queue: what it lost, it now does under its new registration.
    until(lambda: counts() == {"completed": 2040}, say=counts)
    attempts: dict[Any, int] = dict(
        ask("select attempt, count(*) from holdfast.finished where task = 'hold' group by attempt")
    )
    assert attempts == {1: 40}
    assert {job.refresh().result for job in held} == {sleeper.pid}
    again = hf.enqueue("noop")
    until(lambda: again.refresh().state is JobState.COMPLETED)
    assert watcher.told.named("worker.lost") == []

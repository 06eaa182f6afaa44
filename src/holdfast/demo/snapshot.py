"""The state of jobs and workers, read from the database, and what has changed since an earlier one."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from holdfast import JobSnapshot, JobState
from holdfast.demo.plan import KindOfJob, Planned
from holdfast.demo.tasks import QUEUES, hf
from holdfast.demo.worker_processes import LEASE_TIME
from holdfast.operations.workers import WorkerRow

# Far more than one run has, because the database may have jobs of earlier runs.
MOST_JOBS = 2000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The jobs and the workers of this run at one moment."""

    seconds: float = 0.0
    kinds: KindOfJob = field(default_factory=dict)
    jobs: Mapping[UUID, JobSnapshot] = field(default_factory=dict)
    workers: Mapping[str, WorkerRow] = field(default_factory=dict)

    @property
    def states(self) -> "Counter[JobState]":
        return Counter(job.state for job in self.jobs.values())

    @property
    def ended(self) -> int:
        return sum(job.state.final for job in self.jobs.values())

    @property
    def in_progress(self) -> list[JobSnapshot]:
        """Running jobs that report their progress."""
        running = [job for job in self.jobs.values() if job.state is JobState.RUNNING and job.stage]
        return sorted(running, key=label)

    def of(self, kind: Planned) -> list[JobSnapshot]:
        return [job for job in self.jobs.values() if self.kinds[job.id] is kind]

    def has_ended(self, kind: Planned) -> bool:
        jobs = self.of(kind)
        return len(jobs) == len(kind.jobs) and all(job.state.final for job in jobs)

    def is_lost(self, worker: str) -> bool:
        return worker in self.workers and self.workers[worker].status == "lost"


def take_snapshot(seconds: float, kinds: KindOfJob, pids: Container[int | None]) -> Snapshot:
    jobs = (job for queue in QUEUES for job in hf.jobs.list(queue=queue, limit=MOST_JOBS))
    return Snapshot(
        seconds,
        kinds,
        {job.id: job for job in jobs if job.id in kinds},
        {worker.name: worker for worker in reversed(hf.workers.list()) if worker.pid in pids},
    )


def label(job: JobSnapshot) -> str:
    """Return a name for a job: its task and its first argument."""
    return f"{job.task.rpartition('.')[2]} {next(iter(job.payload.values()), '')}"


def outcome(kind: Planned, jobs: Sequence[JobSnapshot]) -> str:
    """Return the states and attempts of these jobs in a few words."""
    if not jobs and kind.end is None:
        return "never existed"
    states = [f"{amount} {state}" for state, amount in Counter(job.state for job in jobs).most_common()]
    if missing := len(kind.jobs) - len(jobs):
        states.append(f"{missing} missing")
    attempts = sorted({job.attempt for job in jobs})
    if attempts and attempts[-1] > 1:
        between = "-".join(str(number) for number in dict.fromkeys((attempts[0], attempts[-1])))
        states.append(f"{between} attempts")
    return ", ".join(states)


def changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Describe in sentences what has happened between two snapshots."""
    for name, worker in after.workers.items():
        if after.is_lost(name) and not before.is_lost(name):
            yield f"{name} was silent for {LEASE_TIME:g} s: its {worker.recovered} jobs are taken back"
    for kind in dict.fromkeys(after.kinds.values()):
        yield from _first_failure(kind, before, after)
        if kind.loses_a_worker:
            yield from _claimed_again(kind, before, after)
        if after.has_ended(kind) and not before.has_ended(kind):
            yield f"{kind.what}: {outcome(kind, after.of(kind))}"


def _first_failure(kind: Planned, before: Snapshot, after: Snapshot) -> Iterator[str]:
    failed = [job for job in after.of(kind) if job.last_error and job.state is JobState.SCHEDULED]
    if failed and not any(job.last_error for job in before.of(kind)):
        yield f"{label(failed[0])} failed: {failed[0].last_error}; it will be retried"


def _claimed_again(kind: Planned, before: Snapshot, after: Snapshot) -> Iterator[str]:
    for job in after.of(kind):
        claimed_at = before.jobs.get(job.id, job).claimed_at
        if claimed_at is not None and claimed_at != job.claimed_at:
            yield f"{label(job)} is claimed again, by {job.worker_name}"

"""Reads the state of jobs and workers from the database."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from holdfast import JobSnapshot, JobState
from holdfast.demo.jobs import QUEUES, hf
from holdfast.demo.plan import Cast, Planned
from holdfast.operations.workers import WorkerRow

# Far more than one run has, because your own database may have jobs of earlier runs.
AMOUNT = 2000


@dataclass(frozen=True, slots=True)
class Picture:
    """The jobs and the workers of this run at one moment."""

    seconds: float = 0.0
    cast: Cast = field(default_factory=dict)
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
        return [job for job in self.jobs.values() if self.cast[job.id] is kind]

    def has_ended(self, kind: Planned) -> bool:
        jobs = self.of(kind)
        return len(jobs) == len(kind.jobs) and all(job.state.final for job in jobs)

    def is_lost(self, worker: str) -> bool:
        return worker in self.workers and self.workers[worker].status == "lost"


def look(seconds: float, cast: Cast, pids: Container[int | None]) -> Picture:
    jobs = (job for queue in QUEUES for job in hf.jobs.list(queue=queue, limit=AMOUNT))
    return Picture(
        seconds,
        cast,
        {job.id: job for job in jobs if job.id in cast},
        {worker.name: worker for worker in reversed(hf.workers.list()) if worker.pid in pids},
    )


def label(job: JobSnapshot) -> str:
    """Return a name for a job: its task and its first argument."""
    return f"{job.task.rpartition('.')[2]} {next(iter(job.payload.values()), '')}"

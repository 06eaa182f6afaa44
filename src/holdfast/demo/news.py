"""Describes in sentences what has happened since the last call."""

from collections.abc import Iterator

from holdfast import JobState
from holdfast.demo.crew import LEASE_TIME
from holdfast.demo.picture import Picture, label
from holdfast.demo.plan import Planned
from holdfast.demo.verdict import outcome


def news(before: Picture, after: Picture) -> Iterator[str]:
    for name, worker in after.workers.items():
        if after.is_lost(name) and not before.is_lost(name):
            yield f"{name} was silent for {LEASE_TIME:g} s: its {worker.recovered} jobs are taken back"
    for kind in dict.fromkeys(after.cast.values()):
        yield from _first_failure(kind, before, after)
        if kind.loses_a_worker:
            yield from _claimed_again(kind, before, after)
        if after.has_ended(kind) and not before.has_ended(kind):
            yield f"{kind.what}: {outcome(kind, after.of(kind))}"


def _first_failure(kind: Planned, before: Picture, after: Picture) -> Iterator[str]:
    failed = [job for job in after.of(kind) if job.last_error and job.state is JobState.SCHEDULED]
    if failed and not any(job.last_error for job in before.of(kind)):
        yield f"{label(failed[0])} failed: {failed[0].last_error}; it will be retried"


def _claimed_again(kind: Planned, before: Picture, after: Picture) -> Iterator[str]:
    for job in after.of(kind):
        claimed_at = before.jobs.get(job.id, job).claimed_at
        if claimed_at is not None and claimed_at != job.claimed_at:
            yield f"{label(job)} is claimed again, by {job.worker_name}"

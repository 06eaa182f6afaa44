"""Gauges of the database, for all processes together: jobs, queues, workers.

To add a family, ask for it in `questions`, keep the answer in `Overview`, and return it in `families_of`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from holdfast.operations.queues import QueueRow, list_queues
from holdfast.operations.stats import Gauge, Stat, clock, count_jobs, gauges
from holdfast.operations.workers import WorkerRow, list_workers
from holdfast.telemetry.metrics.exposition import OTHER, Family
from holdfast.values.call import Call
from holdfast.values.job import JobState

WORKER_STATUSES = ("idle", "busy", "silent", "lost", "left")
# This many queues have their own samples; those of the others are summed.
MOST_QUEUES = 1000


class Overview(NamedTuple):
    """The answers to `questions()`, with the database's time of the reading."""

    now_at: datetime
    stats: Sequence[Stat]
    queues: Sequence[QueueRow]
    workers: Sequence[WorkerRow]
    gauges: Sequence[Gauge]


def questions() -> tuple[Call[Any], ...]:
    return (clock(), count_jobs(), list_queues(), list_workers(), gauges())


def families_of(overview: Overview) -> Iterator[Family]:
    known = {row.name for row in overview.queues[:MOST_QUEUES]}
    yield _jobs(overview.stats, known)
    yield from _queues(overview, known)
    yield from _workers(overview.workers, overview.now_at)
    for name, value, meaning in overview.gauges:
        family = Family(f"holdfast_{name}", "gauge", meaning)
        family.add(value)
        yield family


def _jobs(stats: Sequence[Stat], known: set[str]) -> Family:
    """Return a sample for every state of every queue, even if it is 0: a series must not vanish."""
    family = Family(
        "holdfast_jobs", "gauge", "Jobs by queue and state; finished jobs count while they are kept."
    )
    counts: Counter[tuple[str, str]] = Counter()
    for stat in stats:
        counts[stat.queue if stat.queue in known else OTHER, stat.state] += stat.jobs
    for queue in sorted({*known, *(queue for queue, _ in counts)}):
        for state in JobState:
            family.add(counts[queue, state.value], queue=queue, state=state.value)
    return family


def _queues(overview: Overview, known: set[str]) -> Iterator[Family]:
    oldest = Family("holdfast_queue_oldest_waiting_seconds", "gauge", "The age of the oldest waiting job.")
    paused = Family("holdfast_queue_paused", "gauge", "1 for a queue that is paused.")
    for row in overview.queues:
        if row.name in known:
            age = 0.0 if row.oldest_at is None else (overview.now_at - row.oldest_at).total_seconds()
            oldest.add(max(age, 0.0), queue=row.name)
            paused.add(float(row.paused_at is not None), queue=row.name)
    yield oldest
    yield paused


def _workers(workers: Sequence[WorkerRow], now_at: datetime) -> Iterator[Family]:
    counts = Counter(worker.status for worker in workers)
    statuses = Family("holdfast_workers", "gauge", "Workers of the last day by status.")
    for status in dict.fromkeys((*WORKER_STATUSES, *counts)):
        statuses.add(counts[status], status=status)
    yield statuses
    # A silent worker may come back and still holds its jobs. Alerts use the length of its silence.
    alive = [worker for worker in workers if worker.status in {"idle", "busy", "silent"}]
    holds = Family("holdfast_workers_held_jobs", "gauge", "Jobs that live workers hold.")
    holds.add(sum(worker.holds for worker in alive))
    yield holds
    silence = Family(
        "holdfast_workers_longest_silence_seconds", "gauge", "The longest time without a heartbeat."
    )
    last = min((worker.heartbeat_at for worker in alive), default=now_at)
    silence.add(max((now_at.astimezone(UTC) - last).total_seconds(), 0.0))
    yield silence

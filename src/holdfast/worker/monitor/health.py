"""The health of a worker, and its gauges for Prometheus."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.telemetry.metrics import Family


class Condition(NamedTuple):
    """The state of a worker. Its times are those of the monotonic clock."""

    # Empty until it is registered.
    worker: str
    name: str | None
    version: str
    lost: bool
    stopping: bool
    lease_time: float
    # The end of the lease that the last accepted heartbeat has renewed.
    lease_valid_until: float
    # The last error of the database or of the connection to it.
    last_error: str | None
    concurrency: int
    buffered: int
    unwritten: int
    # By queue and task.
    running: Counter[tuple[str, str]]


def why_not_alive(condition: Condition, blocked: float, now: float | None = None) -> list[str]:
    """Return the reasons why the worker must be restarted; empty if it is alive.

    `blocked` is the time for which its event loop is blocked.
    """
    now = time.monotonic() if now is None else now
    why = []
    if blocked > condition.lease_time:
        why.append(f"a handler has blocked its event loop for {blocked:.0f} s")
    late = now - condition.lease_valid_until
    if late > 0:
        silence = late + condition.lease_time
        why.append(f"no heartbeat was accepted for {silence:.0f} s, its lease is {condition.lease_time:g} s")
    return why


def why_not_ready(condition: Condition, blocked: float, now: float | None = None) -> list[str]:
    """Return the reasons why the worker takes no jobs now; empty if it is ready."""
    why = []
    if not condition.worker:
        why.append("it is starting: not registered yet")
    if condition.stopping:
        why.append("it is stopping")
    if condition.lost:
        why.append("it was declared lost and registers again")
    if condition.last_error is not None:
        why.append(f"the database does not answer: {condition.last_error}")
    return [*why, *why_not_alive(condition, blocked, now)]


def gauges_of(condition: Condition, blocked: float) -> Iterator[Family]:
    """Yield the worker's gauges: its slots, its jobs, and its health."""
    now = time.monotonic()
    running = Family("holdfast_jobs_running", "gauge", "Jobs whose handlers run in this process.")
    for (queue, task), amount in sorted(condition.running.items()):
        running.add(amount, queue=queue, task=task)
    yield running
    silence = max(now - condition.lease_valid_until + condition.lease_time, 0.0) if condition.worker else 0.0
    for name, text, value in (
        ("slots_busy", "Handlers that run in this process.", condition.running.total()),
        ("slots", "The number of handlers that may run at once.", condition.concurrency),
        ("jobs_buffered", "Jobs that were claimed and have not started.", condition.buffered),
        ("jobs_unreported", "Jobs that have ended and are not yet reported.", condition.unwritten),
        (
            "worker_alive",
            "1 while /healthz reports that it is alive.",
            not why_not_alive(condition, blocked, now),
        ),
        (
            "worker_ready",
            "1 while /readyz reports that it is ready.",
            not why_not_ready(condition, blocked, now),
        ),
        ("worker_heartbeat_age_seconds", "Seconds since the last accepted heartbeat.", silence),
        ("worker_loop_blocked_seconds", "How long the event loop has been blocked.", blocked),
    ):
        family = Family(f"holdfast_{name}", "gauge", text)
        family.add(float(value))
        yield family
    info = Family("holdfast_worker_info", "gauge", "The worker of this process.")
    info.add(1, worker=condition.worker, name=condition.name or "", version=condition.version)
    yield info

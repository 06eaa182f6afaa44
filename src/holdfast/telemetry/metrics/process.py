"""Counters of this process: one subscriber, and the only place where anything is counted.

    metrics = Metrics()
    unsubscribe = subscribe(metrics)
    print(exposition(metrics.families()))

A batch is one event, so a job costs a few additions, or nothing without a subscriber.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

from holdfast.operations.claiming import Claimed, Report
from holdfast.telemetry.metrics.exposition import OTHER, ROUND_TRIP_SECONDS, Family, Histogram

Key = tuple[str, str]

# Pairs of queue and task beyond this number, or names of events, are counted together as "(other)".
MOST_KEYS = 500
MOST_EVENTS = 200

# By outcome of a report: the help text of its counter.
_OUTCOMES = {
    "completed": "Jobs that were completed.",
    "failed": "Attempts that failed: the handler raised, or asked for a retry.",
    "retried": "Failed attempts after which the job waits for another one.",
    "dead": "Jobs that ended in the dead letters.",
    "cancelled": "Jobs that were cancelled while this process held them.",
    "snoozed": "Attempts that asked to be run later.",
    "released": "Jobs that were given back before they started.",
    "interrupted": "Attempts that a shutdown interrupted.",
    "refused": "Reports that the database refused: the job was no longer held.",
}
# Events with their own counter: its name, the field to add up, and its help text.
_COUNTED: dict[str, tuple[str, str | None, str]] = {
    "worker.lost": ("worker_lost", None, "Times that this worker was declared lost."),
    "lease.lost": ("leases_lost", None, "Jobs that were taken from this process while they ran."),
    "listener.lost": ("listener_lost", None, "Times that the connection for notifications was lost."),
    "loop.blocked": ("loop_blocked", None, "Times that a handler blocked the event loop for 1 s or more."),
    "jobs.recovered": ("jobs_recovered", "jobs", "Jobs that this process took back from lost workers."),
    "worker.disowned": ("jobs_disowned", "jobs", "Jobs held in its name that this process did not know."),
    "worker.abandoned": ("handlers_abandoned", "handlers", "Handlers that could not be stopped."),
}


class Metrics:
    """A subscriber that counts. `families()` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: Counter[str] = Counter()
        self._named: Counter[str] = Counter()
        self._claims: Counter[str] = Counter()
        self._tallies: dict[Key, _Tally] = {}
        self._round_trips = {name: Histogram(ROUND_TRIP_SECONDS) for name in ("claim", "finish", "heartbeat")}
        # How far the database's clock is ahead, in seconds. Waiting times use the database's clock only.
        self._offset: float | None = None
        self._handlers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "jobs.claimed": self._on_claimed,
            "jobs.finished": self._on_finished,
            "heartbeat.accepted": self._on_heartbeat,
        }

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        with self._lock:
            handle = self._handlers.get(name)
            if handle is not None:
                handle(fields)
                return
            known = name in self._events or len(self._events) < MOST_EVENTS
            self._events[name if known else OTHER] += 1
            if (counted := _COUNTED.get(name)) is not None:
                _, field, _ = counted
                self._named[name] += 1 if field is None else int(fields.get(field, 1))

    def _on_claimed(self, fields: Mapping[str, Any]) -> None:
        jobs = fields["jobs"]
        self._claims["jobs" if jobs else "empty"] += 1
        self._round_trips["claim"].observe(fields["seconds"])
        now = None if self._offset is None else time.time() + self._offset
        for key, some in groupby(jobs, _PLACE):
            group, tally = list(some), self._tally(key)
            tally.counts["claimed"] += len(group)
            if now is not None:
                first = [job for job in group if job.attempt == 1]
                tally.waits.observe_many([max(now - job.created / 1e6, 0.0) for job in first])

    def _on_finished(self, fields: Mapping[str, Any]) -> None:
        self._round_trips["finish"].observe(fields["seconds"])
        refused = {refusal.id for refusal in fields["refused"]}
        known = (
            (job, it) for job, it in zip(fields["jobs"], fields["reports"], strict=True) if job is not None
        )
        for key, some in groupby(known, _place_of_first):
            group, tally = list(some), self._tally(key)
            tally.runs.observe_many([report.seconds for _, report in group if report.seconds is not None])
            counts = tally.counts
            for job, report in group:
                if report.outcome == "completed" and not refused:  # nearly all of them
                    counts["completed"] += 1
                    continue
                for outcome in ("refused",) if report.id in refused else _counted_as(job, report):
                    counts[outcome] += 1

    def _on_heartbeat(self, fields: Mapping[str, Any]) -> None:
        self._round_trips["heartbeat"].observe(fields["seconds"])
        self._offset = fields["offset"]

    def _tally(self, key: Key) -> "_Tally":
        found = self._tallies.get(key)
        if found is None:
            if len(self._tallies) >= MOST_KEYS:
                key = (OTHER, OTHER)
            found = self._tallies.setdefault(key, _Tally())
        return found

    def families(self) -> list[Family]:
        """Return everything counted until now."""
        with self._lock:
            return list(self._families())

    def _families(self) -> Iterator[Family]:
        yield self._by_key("claimed", "Jobs that this process has claimed.")
        for outcome, text in _OUTCOMES.items():
            name = "holdfast_reports_refused_total" if outcome == "refused" else None
            yield self._by_key(outcome, text, name)
        runs = Family("holdfast_job_run_seconds", "histogram", "The run time of handlers, by attempt.")
        waits = Family(
            "holdfast_job_wait_seconds",
            "histogram",
            "The time from enqueue to the first claim, including a requested delay.",
        )
        for (queue, task), tally in self._tallies.items():
            runs.samples += tally.runs.samples({"queue": queue, "task": task})
            waits.samples += tally.waits.samples({"queue": queue, "task": task})
        yield runs
        yield waits
        claims = Family("holdfast_claims_total", "counter", "Claims, by whether they brought jobs.")
        for result in ("jobs", "empty"):
            claims.add(self._claims[result], result=result)
        yield claims
        for name, text in (
            ("claim", "The round trip of a claim."),
            ("finish", "The round trip of a batch of reports."),
            ("heartbeat", "The round trip of a heartbeat."),
        ):
            samples = list(self._round_trips[name].samples({}))
            yield Family(f"holdfast_{name}_seconds", "histogram", text, samples)
        if self._offset is not None:
            offset = Family(
                "holdfast_clock_offset_seconds", "gauge", "How far the database's clock is ahead."
            )
            offset.add(self._offset)
            yield offset
        for event, (name, _, text) in _COUNTED.items():
            family = Family(f"holdfast_{name}_total", "counter", text)
            family.add(self._named[event])
            yield family
        events = Family("holdfast_events_total", "counter", "Other events of this process, by name.")
        for event, amount in sorted(self._events.items()):
            events.add(amount, event=event)
        yield events

    def _by_key(self, outcome: str, text: str, name: str | None = None) -> Family:
        family = Family(name or f"holdfast_jobs_{outcome}_total", "counter", text)
        for (queue, task), tally in self._tallies.items():
            if outcome in tally.counts:
                family.add(tally.counts[outcome], queue=queue, task=task)
        return family


class _Tally:
    """The counts of one queue and task."""

    __slots__ = ("counts", "runs", "waits")

    def __init__(self) -> None:
        # Present from the start: a counter that appears with its first failure hides it from `rate()`.
        self.counts: Counter[str] = Counter(dict.fromkeys(("claimed", "completed", "failed", "dead"), 0))
        self.runs = Histogram()
        self.waits = Histogram()


_PLACE: Callable[[Claimed], Key] = attrgetter("queue", "task")


def _place_of_first(pair: tuple[Claimed, Report]) -> Key:
    return _PLACE(pair[0])


def _counted_as(job: Claimed, report: Report) -> tuple[str, ...]:
    """Return the names under which a report counts.

    Only the database knows whether a job is dead. This judges by the attempts in the claim.
    """
    last = report.retry is False or job.attempt >= job.max_attempts
    match report.outcome:
        case "failed":
            return ("failed", "dead" if last else "retried")
        case "interrupted":
            return ("interrupted", "dead") if last else ("interrupted",)
        case outcome:
            return (outcome,)

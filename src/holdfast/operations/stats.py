"""Statistics: `hf.stats` counts the jobs in the queues, and those finished in the last hour and day."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal, NamedTuple

from holdfast.operations.base import Namespace, operation, twin
from holdfast.values import limits
from holdfast.values.call import Call, Row, function, one

By = Literal["queue", "task"]


class Stat(NamedTuple):
    queue: str
    state: str
    jobs: int
    oldest_at: datetime
    paused: bool
    estimated: bool
    """True if `jobs` is an estimate: a very large number is not counted exactly."""


class Gauge(NamedTuple):
    name: str
    value: float
    meaning: str


class Times(NamedTuple):
    """The average, the median, and the 95th and 99th percentile of a time."""

    avg: timedelta | None
    p50: timedelta | None
    p95: timedelta | None
    p99: timedelta | None


class Activity(NamedTuple):
    """The work done in an hour or a day. `failed` counts attempts, and `failures` is their share of all."""

    completed: int
    failed: int
    dead: int
    cancelled: int
    per_second: float
    failures: float | None
    wait: Times
    run: Times


class Statistic(NamedTuple):
    """The statistics of one queue, or of one task in it: its present jobs, and its recent work."""

    queue: str
    task: str | None
    paused_at: datetime | None
    waiting: int
    scheduled: int
    running: int
    dead: int
    estimated: bool
    waiting_since: datetime | None
    hour: Activity
    day: Activity
    minutes: list[int]
    """The jobs completed in each minute of the last hour, the oldest first."""


_count_jobs = function("count_jobs", columns="queue, state, jobs, oldest_at, paused, estimated")
_gauges = function("gauges")
_clock = function("clock")


def _activity(window: str) -> str:
    counts = ["completed", "failed", "dead", "cancelled", "per_second", "failures"]
    times = [f"{what}_{figure}" for what in ("wait", "run") for figure in Times._fields]
    return ", ".join(f"{window}_{name}" for name in [*counts, *times])


_NOW = "queue, task, paused_at, waiting, scheduled, running, dead, estimated, waiting_since"
_statistics = function(
    "statistics", "by text, queue text", f"{_NOW}, {_activity('hour')}, {_activity('day')}, minutes"
)


class Stats(Namespace):
    """The number of jobs in the queues, and the recent work."""

    called = "count()"

    @operation
    def count(self) -> Call[list[Stat]]:
        """Return the number of jobs by queue and state. Large numbers are marked as estimates."""
        return count_jobs()

    acount = twin(count)

    @operation
    def recent(self, *, by: By = "queue", queue: str | None = None) -> Call[list[Statistic]]:
        """Return the number of unfinished and dead jobs, and the recent work, by queue or task."""
        if by not in {"queue", "task"}:
            raise limits.refused("by", by, "must be 'queue' or 'task'")
        return _statistics(lambda rows: [_read(row) for row in rows], by, queue)

    arecent = twin(recent)


def count_jobs() -> Call[list[Stat]]:
    return _count_jobs(lambda rows: [Stat._make(row) for row in rows])


def gauges() -> Call[list[Gauge]]:
    return _gauges(lambda rows: [Gauge._make(row) for row in rows])


def clock() -> Call[datetime]:
    """Return the time of the database, which is the clock of Holdfast."""
    return _clock(one)


def _read(row: Row) -> Statistic:
    values: Iterator[Any] = iter(row)
    now = list(islice(values, len(_NOW.split(", "))))
    return Statistic._make([*now, _read_activity(values), _read_activity(values), next(values)])


def _read_activity(values: Iterator[Any]) -> Activity:
    counts = list(islice(values, len(Activity._fields) - 2))
    return Activity._make([*counts, *(Times._make(islice(values, len(Times._fields))) for _ in range(2))])

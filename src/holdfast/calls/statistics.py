"""What was done in the last hour and day, and how the queues are."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal, NamedTuple

from holdfast.calls.base import Call, Row, Rows, function

By = Literal["queue", "task"]
Status = Literal["OK", "WARNING", "CRITICAL"]


class Times(NamedTuple):
    """How long something took: the average, and what half, 95 % and 99 % of all stayed below."""

    avg: timedelta | None
    p50: timedelta | None
    p95: timedelta | None
    p99: timedelta | None


class Done(NamedTuple):
    """What was done in an hour or a day. `failed` are attempts, `failures` is their share of all of them."""

    completed: int
    failed: int
    dead: int
    cancelled: int
    per_second: float
    failures: float | None
    wait: Times
    run: Times


class Statistic(NamedTuple):
    """A queue, or a task of it: what is there now, and what was done of late."""

    queue: str
    task: str | None
    paused_at: datetime | None
    waiting: int
    scheduled: int
    running: int
    dead: int
    estimated: bool
    waiting_since: datetime | None
    hour: Done
    day: Done
    minutes: list[int]
    """The jobs completed in each minute of the last hour, the oldest first."""


class QueueReport(NamedTuple):
    """How a queue is, why, and what that was judged by; attempts and failures are those of the last hour."""

    queue: str
    status: Status
    message: str
    waiting: int
    estimated: bool
    waiting_since: datetime | None
    oldest: timedelta | None
    attempts: int
    failed: int
    failures: float | None
    workers: int
    paused_at: datetime | None


def _done(window: str) -> str:
    counts = ["completed", "failed", "dead", "cancelled", "per_second", "failures"]
    times = [f"{what}_{figure}" for what in ("wait", "run") for figure in Times._fields]
    return ", ".join(f"{window}_{name}" for name in [*counts, *times])


_NOW = "queue, task, paused_at, waiting, scheduled, running, dead, estimated, waiting_since"
_statistics = function(
    "statistics", "by text, queue text", f"{_NOW}, {_done('hour')}, {_done('day')}, minutes"
)
_health = function("health", "queue text", ", ".join(QueueReport._fields))


def statistics(by: By = "queue", queue: str | None = None) -> Call[list[Statistic]]:
    return _statistics(lambda rows: [_read(row) for row in rows], by, queue)


def _read(row: Row) -> Statistic:
    values: Iterator[Any] = iter(row)
    now = list(islice(values, len(_NOW.split(", "))))
    return Statistic._make([*now, _read_done(values), _read_done(values), next(values)])


def _read_done(values: Iterator[Any]) -> Done:
    counts = list(islice(values, len(Done._fields) - 2))
    return Done._make([*counts, *(Times._make(islice(values, len(Times._fields))) for _ in range(2))])


def health(queue: str | None = None) -> Call[list[QueueReport]]:
    def read(rows: Rows) -> list[QueueReport]:
        return [QueueReport._make(row) for row in rows]

    return _health(read, queue)

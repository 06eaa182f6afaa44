"""Calls about a job that runs: its start, its progress, what it publishes and remembers."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from holdfast import arrays
from holdfast.calls.base import Call, Rows, column, function, given, interval, one

_start = function(
    "start",
    "ids uuid[], leases uuid[], seconds double precision[], timeouts interval[], once boolean[]",
    "start::text",
)
_not_held = function("not_held", "ids uuid[], leases uuid[]", "not_held::text")
_progress_many = function(
    "progress_many",
    "ids uuid[], leases uuid[], percents integer[], stages text[], messages text[], steps text[], "
    "states jsonb[]",
    "progress_many::text",
)
_publish_many = function(
    "publish_many",
    "ids uuid[], leases uuid[], numbers integer[], names text[], datas jsonb[]",
    "publish_many::text",
)
_keep_step = function(
    "keep_step",
    "id uuid, lease uuid, name text, result jsonb, duration double precision",
    "keep_step::text",
)
_memory = function("memory", "id uuid", "state::text, names, results")


def start(ids: list[str], leases: list[str], seconds: list[float]) -> Call[list[str]]:
    """Write down that these run; answers with those that are no longer held."""
    return _start.plain(column, arrays.words(ids), arrays.words(leases), arrays.numbers(seconds), None, None)


def start_one(job_id: str, lease: str, *, timeout: timedelta | None, once: bool) -> Call[list[str]]:
    """The same before it runs, with its deadline, and whether it may never run again."""
    deadline = None if timeout is None else arrays.texts([interval(timeout)])
    mark = arrays.words([str(once)])
    return _start.plain(column, arrays.words([job_id]), arrays.words([lease]), None, deadline, mark)


def not_held(ids: list[str], leases: list[str]) -> Call[list[str]]:
    """Answers with those that are no longer held."""
    return _not_held.plain(column, arrays.words(ids), arrays.words(leases))


class Progress(NamedTuple):
    id: str
    lease: str
    percent: int | None
    stage: str | None
    message: str | None
    # Empty once the step has ended.
    step: str | None = None
    # A checkpoint, as JSON text.
    state: str | None = None


def progress_many(reports: Sequence[Progress]) -> Call[list[str]]:
    """Write down how far these are; answers with those that are no longer held."""
    return _progress_many.plain(
        column,
        arrays.words([report.id for report in reports]),
        arrays.words([report.lease for report in reports]),
        arrays.numbers([report.percent for report in reports]),
        arrays.texts([report.stage for report in reports]),
        arrays.texts([report.message for report in reports]),
        given([report.step for report in reports]),
        given([report.state for report in reports]),
    )


class Published(NamedTuple):
    """An event of a handler, numbered under its lease; `data` is JSON text."""

    id: str
    lease: str
    number: int
    name: str
    data: str | None


def publish_many(events: Sequence[Published]) -> Call[list[str]]:
    """Write these events, each once; answers with the jobs that are no longer held."""
    return _publish_many.plain(
        column,
        arrays.words([event.id for event in events]),
        arrays.words([event.lease for event in events]),
        arrays.numbers([event.number for event in events]),
        arrays.texts([event.name for event in events]),
        arrays.texts([event.data for event in events]),
    )


def keep_step(job_id: str, lease: str, name: str, result: str, seconds: float) -> Call[str | None]:
    """Answers with the result that is kept, as JSON text."""
    return _keep_step(one, job_id, lease, name, result, seconds)


class Memory(NamedTuple):
    """What an attempt goes on from, as JSON text: a checkpoint, and the results of finished steps."""

    state: str | None
    steps: dict[str, str]


def memory(job_id: str) -> Call[Memory]:
    def read(rows: Rows) -> Memory:
        if not rows:
            return Memory(None, {})
        state, names, results = rows[0]
        return Memory(state, dict(zip(names, results, strict=True)))

    return _memory(read, job_id)

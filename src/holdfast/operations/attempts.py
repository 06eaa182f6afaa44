"""Attempts: the start, progress, events, steps and checkpoints of a running job. Only workers call these."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from holdfast.values import arrays
from holdfast.values.call import Call, Rows, column, function, interval, one

_start = function(
    "start",
    "ids uuid[], leases uuid[], seconds double precision[], timeouts interval[], once boolean[], "
    "skip_locked boolean",
    "start::text, locked",
)
_not_held = function("not_held", "ids uuid[], leases uuid[]", "not_held::text")
_progress_many = function(
    "progress_many",
    "ids uuid[], leases uuid[], percents integer[], stages text[], messages text[], steps text[], "
    "states jsonb[], skip_locked boolean",
    "progress_many::text, locked",
)
_publish_many = function(
    "publish_many",
    "ids uuid[], leases uuid[], numbers integer[], names text[], datas jsonb[], skip_locked boolean",
    "publish_many::text, locked",
)
_keep_step = function(
    "keep_step",
    "id uuid, lease uuid, name text, result jsonb, duration double precision",
    "keep_step::text",
)
_memory = function("memory", "id uuid", "state::text, names, results")


class Unwritten(NamedTuple):
    """The jobs for which nothing was written: no longer held, or locked by another transaction."""

    gone: set[str]
    locked: set[str]


def _read_unwritten(rows: Rows) -> Unwritten:
    locked = {job_id for job_id, locked in rows if locked}
    return Unwritten({job_id for job_id, _ in rows} - locked, locked)


def start(ids: list[str], leases: list[str], seconds: list[float]) -> Call[Unwritten]:
    """Record that these jobs run, except the ones that another transaction has locked."""
    return _start.plain(
        _read_unwritten, arrays.words(ids), arrays.words(leases), arrays.numbers(seconds), None, None, True
    )


def start_one(job_id: str, lease: str, *, timeout: timedelta | None, once: bool) -> Call[Unwritten]:
    """Record the start of one job before it runs, with its deadline, and whether it must not run again."""
    deadline = None if timeout is None else arrays.texts([interval(timeout)])
    mark = arrays.words([str(once)])
    return _start.plain(
        _read_unwritten, arrays.words([job_id]), arrays.words([lease]), None, deadline, mark, True
    )


def not_held(ids: list[str], leases: list[str]) -> Call[list[str]]:
    """Return the jobs that are no longer held."""
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


def progress_many(reports: Sequence[Progress]) -> Call[Unwritten]:
    """Record the progress of these jobs, except the ones that another transaction has locked."""
    return _progress_many.plain(
        _read_unwritten,
        arrays.words([report.id for report in reports]),
        arrays.words([report.lease for report in reports]),
        arrays.numbers([report.percent for report in reports]),
        arrays.texts([report.stage for report in reports]),
        arrays.texts([report.message for report in reports]),
        arrays.texts_if_any([report.step for report in reports]),
        arrays.texts_if_any([report.state for report in reports]),
        True,
    )


class Published(NamedTuple):
    """An event of a handler, numbered under its lease; `data` is JSON text."""

    id: str
    lease: str
    number: int
    name: str
    data: str | None


def publish_many(events: Sequence[Published], *, skip_locked: bool = False) -> Call[Unwritten]:
    """Write these events, each once."""
    return _publish_many.plain(
        _read_unwritten,
        arrays.words([event.id for event in events]),
        arrays.words([event.lease for event in events]),
        arrays.numbers([event.number for event in events]),
        arrays.texts([event.name for event in events]),
        arrays.texts([event.data for event in events]),
        skip_locked,
    )


def keep_step(job_id: str, lease: str, name: str, result: str, seconds: float) -> Call[str | None]:
    """Store the result of a step, and return the stored result as JSON text."""
    return _keep_step(one, job_id, lease, name, result, seconds)


class Memory(NamedTuple):
    """The stored state of a job, as JSON text: its checkpoint and the results of its finished steps."""

    state: str | None
    steps: dict[str, str]


def memory(job_id: str) -> Call[Memory]:
    def read(rows: Rows) -> Memory:
        if not rows:
            return Memory(None, {})
        state, names, results = rows[0]
        return Memory(state, dict(zip(names, results, strict=True)))

    return _memory.plain(read, job_id)

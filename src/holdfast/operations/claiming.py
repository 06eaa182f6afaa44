"""Claiming jobs and reporting their outcomes: the calls of a worker, which have no namespace."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import NamedTuple, cast

import msgspec

from holdfast.operations.attempts import Progress, Published
from holdfast.values import arrays
from holdfast.values.call import Call, Rows, function, interval, nothing

# Each job has one of these. A msgspec struct takes 0.1 µs to make, and a named tuple up to 0.5 µs. They
# cannot be part of a reference cycle, so the garbage collector ignores them.


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A claimed job. `payload` and `headers` are still JSON text."""

    lease: str
    id: str
    task: str
    payload: str
    attempt: int
    max_attempts: int
    queue: str
    priority: int
    suspect: bool
    created: int  # microseconds since 1970
    headers: str | None

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(self.created / 1e6, UTC)


# Reading a time would take half the time of a row, and few handlers need it. A number is cheap to read.
_CLAIMED = (
    "id, task, payload, attempt, max_attempts, queue, priority, suspect, "
    "(date_part('epoch', created_at) * 1e6)::bigint, headers"
)
_claim = function(
    "claim", "worker uuid, lease uuid, queues text[], tasks text[], amount integer, above integer", _CLAIMED
)
_claimed = function("claimed", "worker uuid, lease uuid", _CLAIMED)


def _read_claimed(lease: str) -> Callable[[Rows], list[Claimed]]:
    """Return a reader of claimed jobs. The caller knows the lease, so the rows leave it out."""
    # A comprehension would spend half its time on unpacking each row.
    return lambda rows: list(starmap(partial(Claimed, lease), rows))


def claim(
    *,
    worker: str,
    lease: str,
    queues: list[str] | None,
    tasks: list[str] | None,
    amount: int,
    above: int | None = None,
) -> Call[list[Claimed]]:
    return _claim.plain(
        _read_claimed(lease),
        worker,
        lease,
        arrays.texts_or_null(queues),
        arrays.texts_or_null(tasks),
        amount,
        above,
    )


def claimed(*, worker: str, lease: str) -> Call[list[Claimed]]:
    return _claimed.plain(_read_claimed(lease), worker, lease)


class Report(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one claimed job. `result` is JSON text, and `seconds` the run time of the handler."""

    id: str
    lease: str
    outcome: str
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    retry: bool | None = None
    delay: timedelta | None = None
    seconds: float | None = None
    # Events and progress that must be recorded before the outcome.
    events: list[Published] = []
    note: Progress | None = None


_complete = function("complete", "id uuid, lease uuid, result jsonb")


def complete(job_id: str, lease: str, result: str | None) -> Call[None]:
    """Complete a job. Raises where `finish` returns a refusal, so that the transaction rolls back."""
    return _complete(nothing, job_id, lease, result)


# The SQLSTATE of a report on a job that another transaction has locked. Send the report again later.
LOCKED = "55P03"


class Refusal(NamedTuple):
    """A report that changed nothing, with the reason."""

    id: str
    sqlstate: str
    message: str
    state: str | None
    lease: str | None


_finish = function(
    "finish",
    "ids uuid[], leases uuid[], outcomes text[], results jsonb[], errors text[], tracebacks text[], "
    "retries boolean[], delays interval[], durations double precision[], skip_locked boolean",
    "id::text, sqlstate, message, state, lease::text",
)


def finish(reports: Sequence[Report]) -> Call[list[Refusal]]:
    """Write these reports without waiting for other transactions: see `LOCKED`."""
    # The function locks rows in the order of ids. Sorted reports spare it a search for each row.
    reports = sorted(reports, key=attrgetter("id"))
    leases = [report.lease for report in reports]  # a single lease stands for all of them
    outcomes = [report.outcome for report in reports]
    retries = [None if report.retry is None else str(report.retry) for report in reports]
    delays = [None if report.delay is None else interval(report.delay) for report in reports]
    return _finish.plain(
        _read_refusals,
        arrays.uuids([report.id for report in reports]),
        arrays.uuids(leases if len(set(leases)) > 1 else leases[:1]),
        None if outcomes.count("completed") == len(outcomes) else arrays.words(outcomes),
        arrays.texts_if_any([report.result for report in reports]),
        arrays.texts_if_any([report.error for report in reports]),
        arrays.texts_if_any([report.traceback for report in reports]),
        arrays.texts_if_any(retries),
        arrays.texts_if_any(delays),
        _durations([report.seconds for report in reports]),
        True,
    )


def _durations(seconds: list[float | None]) -> str | bytes:
    return arrays.numbers(seconds) if None in seconds else arrays.doubles(cast("list[float]", seconds))


def _read_refusals(rows: Rows) -> list[Refusal]:
    return [Refusal._make(row) for row in rows]

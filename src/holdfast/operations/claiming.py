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

# Msgspec structs, because there is one for each job: making one takes 0.1 µs, and a named tuple up to 0.5.
# They cannot be part of a reference cycle, so the garbage collector ignores them.


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A job as a claim hands it out. `payload` and `headers` are still JSON text."""

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


# A time is half of what it takes to read a row, and few handlers ask for it: as a number it costs little.
_CLAIMED = (
    "id, task, payload, attempt, max_attempts, queue, priority, suspect, "
    "(date_part('epoch', created_at) * 1e6)::bigint, headers"
)
_claim = function(
    "claim", "worker uuid, lease uuid, queues text[], tasks text[], amount integer, above integer", _CLAIMED
)
_claimed = function("claimed", "worker uuid, lease uuid", _CLAIMED)


def _read_claimed(lease: str) -> Callable[[Rows], list[Claimed]]:
    """Who asks knows the lease, so it is not sent back with each job."""
    # Not in a comprehension, where to unpack each row takes as long as all the rest.
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
    """What became of one claimed job; `result` is JSON text, `seconds` how long the handler ran."""

    id: str
    lease: str
    outcome: str
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    retry: bool | None = None
    delay: timedelta | None = None
    seconds: float | None = None
    # What must be on record before it.
    events: list[Published] = []
    note: Progress | None = None


_complete = function("complete", "id uuid, lease uuid, result jsonb")


def complete(job_id: str, lease: str, result: str | None) -> Call[None]:
    """Raises where `finish` answers with a refusal: for a transaction that must not commit then."""
    return _complete(nothing, job_id, lease, result)


# The SQLSTATE of a report on a job that another transaction has locked: it is to be repeated later.
LOCKED = "55P03"


class Refusal(NamedTuple):
    """A report that changed nothing, and why."""

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
    """Write these reports. It waits for no other transaction: see `LOCKED`."""
    # In the order of ids, as the rows are locked: then the function need not look for each again.
    reports = sorted(reports, key=attrgetter("id"))
    leases = [report.lease for report in reports]  # one may stand for all
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

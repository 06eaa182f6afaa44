"""Schedules of a task: declared here, computed in the database."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal, cast

from holdfast.values import limits

Missed = Literal["skip", "once", "all"]
_MISSED = ("skip", "once", "all")
_SECOND = timedelta(seconds=1)
_YEAR = timedelta(days=366)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """A schedule: the times of a cron expression in a time `zone`, or an interval (`every`).

    `missed` decides about times that passed while nothing ran: enqueue one job for the last (`once`), one for
    each (`all`), or none (`skip`). Without `overlap`, a time is skipped while the last job is unfinished.
    Each job starts with a random delay of up to `jitter`. Only the database reads expressions and zones.

    >>> Schedule(every=30).every
    datetime.timedelta(seconds=30)
    """

    cron: str | None
    every: timedelta | None
    zone: str
    missed: Missed
    overlap: bool
    jitter: timedelta

    def __init__(
        self,
        *,
        cron: str | None = None,
        every: timedelta | float | None = None,
        zone: str = "UTC",
        missed: Missed = "once",
        overlap: bool = True,
        jitter: timedelta | float = 0,
    ) -> None:
        check_times(cron, every)
        given = {
            "cron": cron,
            "every": every,
            "zone": zone,
            "missed": missed,
            "overlap": overlap,
            "jitter": jitter,
        }
        for field, value in given.items():
            object.__setattr__(self, field, None if value is None else RULES[field](value))


def check_times(cron: object, every: object) -> None:
    """Refuse a schedule with both a cron expression and an interval, or with neither."""
    if (cron is None) == (every is None):
        raise limits.refused("cron", cron, "give either cron or every")


def _every(value: object) -> timedelta:
    """Return the interval of a schedule."""
    length = limits.duration("every", value)
    if not _SECOND <= length <= _YEAR or length.microseconds:
        raise limits.refused("every", value, "must be whole seconds, from 1 second to 366 days")
    return length


def _missed(value: object) -> Missed:
    """Return what to do about missed times."""
    if value in _MISSED:
        return cast("Missed", value)
    raise limits.refused("missed", value, f"must be one of {', '.join(_MISSED)}")


def _jitter(value: object) -> timedelta:
    """Return the largest random delay of a job."""
    length = limits.duration("jitter", value)
    if length > _DAY:
        raise limits.refused("jitter", value, "must be between 0 and 1 day")
    return length


def _cron(value: object) -> str:
    """Return a cron expression with the right number of fields. The database checks the rest."""
    text = limits.text("cron", value)
    fields = text.split()
    if len(fields) not in ((1,) if text.lstrip().startswith("@") else (5, 6)):
        raise limits.refused(
            "cron",
            value,
            "must have five fields (minute, hour, day of the month, month, day of the week), or six with the "
            f"second first, or be a name such as @daily; it has {len(fields)}",
        )
    return text


RULES: dict[str, Callable[[object], Any]] = {
    "cron": _cron,
    "every": _every,
    "zone": partial(limits.text, "zone"),
    "missed": _missed,
    "overlap": partial(limits.truth, "overlap"),
    "jitter": _jitter,
}

"""Calls about schedules."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.calls.base import Call, column, function, interval, one
from holdfast.values.encoding import shown
from holdfast.values.job import Priority

_SCHEDULE = (
    "name text, task text, cron text, every interval, zone text, payload jsonb, queue text, "
    "priority integer, max_attempts integer, missed text, overlap boolean, jitter interval"
)
_add_schedule = function("add_schedule", f"{_SCHEDULE}, declared boolean")
_declare_schedule = function("declare_schedule", _SCHEDULE)
_change_schedule = function("change_schedule", _SCHEDULE)
_pause_schedule = function("pause_schedule", "name text")
_resume_schedule = function("resume_schedule", "name text")
_remove_schedule = function("remove_schedule", "name text")
_run_schedule = function("run_schedule", "name text")
_list_schedules = function(
    "list_schedules",
    "upcoming integer",
    "name, words, cron, every, zone, task, payload::text, queue, priority, max_attempts, missed, overlap, "
    "jitter, declared, paused_at, next_at, upcoming, last_at, last_job, skipped, error",
)
_upcoming = function("upcoming", "name text, amount integer")
_next_occurrence = function("next_occurrence", "cron text, after timestamptz, zone text")
_cron_in_words = function("cron_in_words", "cron text")
_USUAL_SCHEDULE = {
    "zone": "UTC",
    "payload": "{}",
    "queue": "default",
    "priority": int(Priority.SYSTEM),
    "missed": "once",
    "overlap": True,
    "jitter": timedelta(0),
}


def add_schedule(name: str, said: Mapping[str, Any], *, declared: bool) -> Call[datetime]:
    """Answers when it runs next. What is said has the names of the function's parameters."""
    values = _schedule_values(name, {**_USUAL_SCHEDULE, **said})
    return _declare_schedule(one, *values) if declared else _add_schedule(one, *values, False)


def change_schedule(name: str, said: Mapping[str, Any]) -> Call[datetime]:
    return _change_schedule(one, *_schedule_values(name, said))


def _schedule_values(name: str, said: Mapping[str, Any]) -> list[Any]:
    given = {**said, "name": name}
    for field in ("every", "jitter"):
        if given.get(field) is not None:
            given[field] = interval(given[field])
    return [given.get(parameter) for parameter in _change_schedule.parameters]


def pause_schedule(name: str) -> Call[bool]:
    return _pause_schedule(one, name)


def resume_schedule(name: str) -> Call[bool]:
    return _resume_schedule(one, name)


def remove_schedule(name: str) -> Call[bool]:
    return _remove_schedule(one, name)


def run_schedule(name: str) -> Call[UUID]:
    return _run_schedule(one, name)


class ScheduleRow(NamedTuple):
    """A schedule as it stands: what it says in words, and its next times."""

    name: str
    words: str
    cron: str | None
    every: timedelta | None
    zone: str
    task: str
    payload: Any
    queue: str
    priority: int
    max_attempts: int | None
    missed: str
    overlap: bool
    jitter: timedelta
    declared: bool
    paused_at: datetime | None
    next_at: datetime | None
    upcoming: list[datetime]
    last_at: datetime | None
    last_job: UUID | None
    skipped: int
    error: str | None


def list_schedules(upcoming: int = 5) -> Call[list[ScheduleRow]]:
    return _list_schedules(
        lambda rows: [ScheduleRow._make(row)._replace(payload=shown(row[6])) for row in rows], upcoming
    )


def upcoming(name: str, amount: int) -> Call[list[datetime]]:
    return _upcoming(column, name, amount)


def next_occurrence(cron: str, after: datetime, zone: str) -> Call[datetime]:
    return _next_occurrence(one, cron, after, zone)


def cron_in_words(cron: str) -> Call[str]:
    return _cron_in_words(one, cron)

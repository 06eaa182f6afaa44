"""The fields of a schedule: what a caller says of it, checked, under the parameter names in SQL."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypedDict

import msgspec

from holdfast.task import Task, named_job
from holdfast.values import limits, schedule
from holdfast.values.call import interval
from holdfast.values.errors import UnknownOption
from holdfast.values.job import NewJob, Priority
from holdfast.values.schedule import Missed

Scheduled = NewJob | Task[..., Any] | str
"""The job of a schedule: a call (`task.call(…)`), a task that needs no arguments, or a task's name."""

PARAMETERS = (
    "name text, task text, cron text, every interval, zone text, payload jsonb, queue text, "
    "priority integer, max_attempts integer, missed text, overlap boolean, jitter interval"
)
USUAL = {
    "zone": "UTC",
    "payload": "{}",
    "queue": "default",
    "priority": int(Priority.SYSTEM),
    "missed": "once",
    "overlap": True,
    "jitter": timedelta(0),
}


class ScheduleKeywords(TypedDict, total=False):
    """The options of a schedule. `Schedule` explains its times; the other options are those of its jobs."""

    cron: str | None
    every: timedelta | float | None
    zone: str | None
    missed: Missed | None
    overlap: bool | None
    jitter: timedelta | float | None
    queue: str | None
    priority: int | None
    max_attempts: int | None


def schedule_fields(
    name: str, job: Scheduled | None, payload: Any, options: ScheduleKeywords
) -> dict[str, Any]:
    """Check what the caller gives for a schedule, and return it under the parameter names in SQL."""
    limits.name("name", name)
    UnknownOption.check(options, _RULES, owner="a schedule", also=["job", "payload"])
    fields = {option: _RULES[option](value) for option, value in options.items() if value is not None}
    if payload is not msgspec.UNSET:
        if isinstance(job, NewJob | Task):
            raise limits.refused(
                "payload", payload, "is for a task by name", hint="Write task.call(…) with the arguments."
            )
        fields["payload"] = named_job("payload", payload).payload
    if isinstance(job, str):
        fields["task"] = limits.name("task", job)
        return fields
    return fields if job is None else {**job_fields(job), **fields}


def job_fields(job: NewJob | Task[..., Any]) -> dict[str, Any]:
    """Return the job that the schedule enqueues at each of its times. The job cannot choose a time."""
    new_job = job.call() if isinstance(job, Task) else job
    if not isinstance(new_job, NewJob):
        raise limits.refused(
            "job", job, "must be a call, a task or the name of a task", hint="Write task.call(…)."
        )
    for field in ("run_at", "delay", "id", "headers"):
        if (value := getattr(new_job, field)) is not None:
            raise limits.refused(
                field,
                value,
                "cannot be given: the schedule sets the times and makes many jobs",
                hint="Leave it out.",
            )
    fields = ("task", "payload", "queue", "priority", "max_attempts")
    return {field: value for field in fields if (value := getattr(new_job, field)) is not None}


def in_order(name: str, fields: Mapping[str, Any]) -> list[Any]:
    """Return the fields as values in the order of `PARAMETERS`."""
    given = {**fields, "name": name}
    for field in ("every", "jitter"):
        if given.get(field) is not None:
            given[field] = interval(given[field])
    return [given.get(parameter.split()[0]) for parameter in PARAMETERS.split(", ")]


_RULES: dict[str, Callable[[object], Any]] = {
    **schedule.RULES,
    "queue": partial(limits.name, "queue"),
    "priority": limits.priority,
    "max_attempts": limits.max_attempts,
}

"""Schedules that are managed at run time: `hf.schedules`.

hf.schedules.add("nightly", report.call(kind="full"), cron="0 2 * * *", zone="Europe/Berlin")
hf.schedules.add("beat", ping, every=30)
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Unpack
from uuid import UUID

import msgspec

from holdfast.operations.base import Namespace, operation, twin
from holdfast.operations.job import Job
from holdfast.operations.schedule_fields import (
    PARAMETERS,
    USUAL,
    Scheduled,
    ScheduleKeywords,
    in_order,
    job_fields,
    schedule_fields,
)
from holdfast.task import Task
from holdfast.telemetry import emit
from holdfast.values import limits
from holdfast.values.call import Call, Rows, column, function, one
from holdfast.values.encoding import shown
from holdfast.values.errors import BadArguments, BadValue
from holdfast.values.schedule import check_times

_add_schedule = function("add_schedule", f"{PARAMETERS}, declared boolean")
_declare_schedule = function("declare_schedule", PARAMETERS)
_change_schedule = function("change_schedule", PARAMETERS)
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


class ScheduleRow(NamedTuple):
    """The current state of a schedule, with its times in words and its next times."""

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


class Schedules(Namespace):
    """The schedules of one database."""

    @operation
    def add(
        self,
        name: str,
        job: Scheduled,
        payload: Any = msgspec.UNSET,
        *,
        declared: bool = True,
        **options: Unpack[ScheduleKeywords],
    ) -> Call[datetime]:
        """Run a job at regular times from now on, and return the first time.

        Call this each time your program starts: it updates an existing schedule of this name. A paused
        schedule stays paused, and a schedule that an operator has made or changed stays as it is. With
        `declared=False` you act as the operator, and an existing name is refused.
        """
        fields = schedule_fields(name, job, payload, self._of_task(job, options))
        check_times(fields.get("cron"), fields.get("every"))
        return add_schedule(name, fields, declared=limits.truth("declared", declared))

    aadd = twin(add)

    @operation
    def change(
        self,
        name: str,
        job: Scheduled | None = None,
        payload: Any = msgspec.UNSET,
        **options: Unpack[ScheduleKeywords],
    ) -> Call[datetime]:
        """Change these options as an operator, and return the next time. The change overrides the code."""
        return _change_schedule(one, *in_order(name, schedule_fields(name, job, payload, options)))

    achange = twin(change)

    @operation
    def pause(self, name: str) -> Call[bool]:
        """Make no jobs at the times of a schedule, and return whether it was running."""
        return _pause_schedule(one, name)

    apause = twin(pause)

    @operation
    def resume(self, name: str) -> Call[bool]:
        """Continue with the next time, and return whether the schedule was paused."""
        return _resume_schedule(one, name)

    aresume = twin(resume)

    @operation
    def remove(self, name: str) -> Call[bool]:
        """Remove a schedule but not its jobs, and return whether there was one."""
        return _remove_schedule(one, name)

    aremove = twin(remove)

    @operation
    def run(self, name: str) -> Call[Job[Any]]:
        """Run the job of a schedule now, in addition to its times, even if it is paused."""
        return _run_schedule(lambda rows: Job(self._holdfast.resources.root, one(rows)), name)

    arun = twin(run)

    @operation
    def upcoming(self, name: str, limit: int = 5) -> Call["list[datetime]"]:
        """Return the next times of a schedule. A paused schedule has none."""
        return _upcoming(column, name, limit)

    aupcoming = twin(upcoming)

    @operation
    def next_occurrence(self, cron: str, after: datetime, zone: str = "UTC") -> Call[datetime]:
        """Return the first time after `after` that matches a cron expression in a time zone."""
        return _next_occurrence(one, cron, after, zone)

    anext_occurrence = twin(next_occurrence)

    @operation
    def in_words(self, cron: str) -> Call[str]:
        """Return a cron expression in words."""
        return _cron_in_words(one, cron)

    ain_words = twin(in_words)

    @operation
    def list(self, *, upcoming: int = 5) -> Call["list[ScheduleRow]"]:
        """Return all schedules by name, in words and with their next times."""
        return list_schedules(upcoming)

    alist = twin(list)

    def declare(self, tasks: Iterable[Task[..., Any]]) -> None:
        """Store the schedules that `@hf.task(schedule=…)` declares, each under the name of its task.

        A schedule that an operator has changed stays as it is, and the event `schedule.kept` reports it.
        """
        scheduled = {task.name: task for task in tasks if task.settings.schedule is not None}
        for name, task in scheduled.items():
            times = task.settings.schedule
            assert times is not None  # noqa: S101 - only tasks with a schedule were chosen
            try:
                fields = {**job_fields(task), **asdict(times)}
                self.carrier.run(add_schedule(name, fields, declared=True))
            except BadArguments as error:
                hint = "Give them defaults, or use hf.schedules.add(name, task.call(…), cron=…)."
                raise _refused(task, f"the task needs arguments: {error.message}", hint) from error
            except BadValue as error:
                raise _refused(task, error.message, error.hint) from error
        for row in self.carrier.run(list_schedules(0)) if scheduled else ():
            if row.name in scheduled and not row.declared:
                emit("schedule.kept", name=row.name, words=row.words, reason="an operator has changed it")

    def _of_task(self, job: Scheduled, options: ScheduleKeywords) -> ScheduleKeywords:
        """Add the queue and priority of a known task, unless the options give them."""
        if not isinstance(job, str) or job not in self._holdfast.tasks:
            return options
        known = self._holdfast.tasks.settings(job)
        given: ScheduleKeywords = {**options}
        if given.get("queue") is None:
            given["queue"] = known.queue
        if given.get("priority") is None:
            given["priority"] = known.priority
        return given


def add_schedule(name: str, fields: Mapping[str, Any], *, declared: bool) -> Call[datetime]:
    """Add a schedule and return its next time. The keys of `fields` are the parameters of the function."""
    values = in_order(name, {**USUAL, **fields})
    return _declare_schedule(one, *values) if declared else _add_schedule(one, *values, False)


def list_schedules(upcoming: int) -> Call[list[ScheduleRow]]:
    def read(rows: Rows) -> list[ScheduleRow]:
        return [ScheduleRow._make(row)._replace(payload=shown(row[6])) for row in rows]

    return _list_schedules(read, upcoming)


def _refused(task: Task[..., Any], why: str, hint: str | None) -> BadValue:
    """Return the error for a schedule that a task declares; it names the task."""
    times = task.settings.schedule
    return limits.refused(
        "schedule", times and (times.cron or times.every), f"of task {task.name}: {why}", hint=hint
    )

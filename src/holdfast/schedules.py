"""Schedules of a database, at run time: `hf.schedules.add(…)`, `hf.schedules.pause(…)` and the like.

    hf.schedules.add("nightly", report.call(kind="full"), cron="0 2 * * *", zone="Europe/Berlin")
    hf.schedules.add("beat", ping, every=30)

They are stored at once, in the transaction of `conn` if one is given. Methods that talk to the database have
async twins with the prefix `a`.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypedDict, TypeVar, Unpack
from uuid import UUID

import msgspec

from holdfast import calls
from holdfast.calls import Call, ScheduleRow
from holdfast.task import JobHandle, Registry, Task, named_job
from holdfast.telemetry import emit
from holdfast.values import limits, schedule
from holdfast.values.errors import BadArguments, BadValue, UnknownOption
from holdfast.values.job import NewJob
from holdfast.values.renamed import renamed
from holdfast.values.schedule import Missed

T = TypeVar("T")
# The class below has a method of that name.
ScheduleRows = list[ScheduleRow]
Times = list[datetime]
Scheduled = NewJob | Task[..., Any] | str
"""What a schedule runs: a call (`task.call(…)`), a task that needs no arguments, or the name of one."""


class ScheduleKeywords(TypedDict, total=False):
    """What can be said of a schedule; see `Schedule` for its times. The rest is that of its jobs."""

    cron: str | None
    every: timedelta | float | None
    zone: str | None
    missed: Missed | None
    overlap: bool | None
    jitter: timedelta | float | None
    queue: str | None
    priority: int | None
    max_attempts: int | None


class Carrier(Protocol):
    """Who takes calls to the database: the client."""

    tasks: Registry

    def run(self, call: Call[T], *, conn: Any = None) -> T: ...
    async def arun(self, call: Call[T], *, conn: Any = None) -> T: ...
    def job(self, job_id: UUID | str) -> JobHandle[Any]: ...


class Schedules:
    """The schedules of one database."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def add(
        self,
        name: str,
        job: Scheduled,
        payload: Any = msgspec.UNSET,
        *,
        declared: bool = True,
        conn: Any = None,
        **options: Unpack[ScheduleKeywords],
    ) -> datetime:
        """Run a job at regular times from now on; answers when it next does.

        A program says this each time it starts: a schedule of this name is changed to what is said here. One
        that is paused stays so, and one that an operator has made or changed stays as it is. With
        `declared=False` you are the operator, and a name that is taken is refused.
        """
        said = self._of_task(job, options)
        return self._carrier.run(_add(name, job, payload, said, declared=declared), conn=conn)

    async def aadd(
        self,
        name: str,
        job: Scheduled,
        payload: Any = msgspec.UNSET,
        *,
        declared: bool = True,
        conn: Any = None,
        **options: Unpack[ScheduleKeywords],
    ) -> datetime:
        said = self._of_task(job, options)
        return await self._carrier.arun(_add(name, job, payload, said, declared=declared), conn=conn)

    def _of_task(self, job: Scheduled, options: ScheduleKeywords) -> ScheduleKeywords:
        """Add the queue and priority that a task named here declares, where the options do not give them."""
        if not isinstance(job, str) or job not in self._carrier.tasks:
            return options
        known = self._carrier.tasks.settings(job)
        given: ScheduleKeywords = {**options}
        if given.get("queue") is None:
            given["queue"] = known.queue
        if given.get("priority") is None:
            given["priority"] = known.priority
        return given

    def change(
        self,
        name: str,
        job: Scheduled | None = None,
        payload: Any = msgspec.UNSET,
        *,
        conn: Any = None,
        **options: Unpack[ScheduleKeywords],
    ) -> datetime:
        """Change what is given, as an operator: it wins over what code declares. When it next runs."""
        return self._carrier.run(_change(name, job, payload, options), conn=conn)

    async def achange(
        self,
        name: str,
        job: Scheduled | None = None,
        payload: Any = msgspec.UNSET,
        *,
        conn: Any = None,
        **options: Unpack[ScheduleKeywords],
    ) -> datetime:
        return await self._carrier.arun(_change(name, job, payload, options), conn=conn)

    def declare(self, tasks: Iterable[Task[..., Any]]) -> None:
        """Write down what `@hf.task(schedule=…)` says; each schedule has the name of its task.

        Where an operator has said otherwise, that stays, and `schedule.kept` tells.
        """
        scheduled = {task.name: task for task in tasks if task.settings.schedule is not None}
        for name, task in scheduled.items():
            times = task.settings.schedule
            assert times is not None  # noqa: S101 - they were chosen by it
            try:
                said = {**_job(task), **asdict(times)}
                self._carrier.run(calls.add_schedule(name, said, declared=True))
            except BadArguments as error:
                hint = "Give them defaults, or use hf.schedules.add(name, task.call(…), cron=…)."
                raise _refused(task, f"the task needs arguments: {error.message}", hint) from error
            except BadValue as error:
                raise _refused(task, error.message, error.hint) from error
        for row in self._carrier.run(calls.list_schedules(0)) if scheduled else ():
            if row.name in scheduled and not row.declared:
                emit("schedule.kept", name=row.name, words=row.words, reason="an operator has changed it")

    def pause(self, name: str, *, conn: Any = None) -> bool:
        """Let its times pass without a job; whether it was running."""
        return self._carrier.run(calls.pause_schedule(name), conn=conn)

    async def apause(self, name: str, *, conn: Any = None) -> bool:
        return await self._carrier.arun(calls.pause_schedule(name), conn=conn)

    def resume(self, name: str, *, conn: Any = None) -> bool:
        """Go on at its next time; whether it was paused."""
        return self._carrier.run(calls.resume_schedule(name), conn=conn)

    async def aresume(self, name: str, *, conn: Any = None) -> bool:
        return await self._carrier.arun(calls.resume_schedule(name), conn=conn)

    def remove(self, name: str, *, conn: Any = None) -> bool:
        """Forget it; its jobs stay. Whether there was one."""
        return self._carrier.run(calls.remove_schedule(name), conn=conn)

    async def aremove(self, name: str, *, conn: Any = None) -> bool:
        return await self._carrier.arun(calls.remove_schedule(name), conn=conn)

    def run(self, name: str, *, conn: Any = None) -> JobHandle[Any]:
        """Run its job now, besides its times, paused or not."""
        return self._carrier.job(self._carrier.run(calls.run_schedule(name), conn=conn))

    async def arun(self, name: str, *, conn: Any = None) -> JobHandle[Any]:
        job_id = await self._carrier.arun(calls.run_schedule(name), conn=conn)
        return self._carrier.job(job_id)

    def list(self, *, upcoming: int = 5) -> ScheduleRows:
        """All schedules by name, with the times to come and what they say in words."""
        return self._carrier.run(calls.list_schedules(upcoming))

    async def alist(self, *, upcoming: int = 5) -> ScheduleRows:
        return await self._carrier.arun(calls.list_schedules(upcoming))

    @renamed(amount="limit")
    def upcoming(self, name: str, limit: int = 5) -> Times:
        """Its next times; none if it is paused."""
        return self._carrier.run(calls.upcoming(name, limit))

    @renamed(amount="limit")
    async def aupcoming(self, name: str, limit: int = 5) -> Times:
        return await self._carrier.arun(calls.upcoming(name, limit))


def _refused(task: Task[..., Any], why: str, hint: str | None) -> BadValue:
    """The error for a schedule beside a task, which must say which task that is."""
    times = task.settings.schedule
    return limits.refused(
        "schedule", times and (times.cron or times.every), f"of task {task.name}: {why}", hint=hint
    )


def _add(
    name: str, job: Scheduled, payload: Any, options: ScheduleKeywords, *, declared: bool
) -> Call[datetime]:
    said = _said(name, job, payload, options)
    if ("cron" in said) == ("every" in said):
        raise limits.refused("cron", said.get("cron"), "give either cron or every")
    return calls.add_schedule(name, said, declared=limits.truth("declared", declared))


def _change(name: str, job: Scheduled | None, payload: Any, options: ScheduleKeywords) -> Call[datetime]:
    return calls.change_schedule(name, _said(name, job, payload, options))


def _said(name: str, job: Scheduled | None, payload: Any, options: ScheduleKeywords) -> dict[str, Any]:
    """What is said of a schedule, checked, by the names that SQL has for it."""
    limits.name("name", name)
    for option in options:
        if option not in _RULES:
            raise UnknownOption.among(option, [*_RULES, "job", "payload"], owner="a schedule")
    said = {option: _RULES[option](value) for option, value in options.items() if value is not None}
    if payload is not msgspec.UNSET:
        if isinstance(job, NewJob | Task):
            raise limits.refused(
                "payload", payload, "is for a task by name", hint="Write task.call(…) with the arguments."
            )
        said["payload"] = named_job("payload", payload).payload
    if isinstance(job, str):
        said["task"] = limits.name("task", job)
        return said
    return said if job is None else {**_job(job), **said}


def _job(job: NewJob | Task[..., Any]) -> dict[str, Any]:
    """What is to be enqueued at each time, which only the schedule may choose."""
    new_job = job.call() if isinstance(job, Task) else job
    if not isinstance(new_job, NewJob):
        raise limits.refused(
            "job", job, "must be a call, a task or the name of one", hint="Write task.call(…)."
        )
    for field in ("run_at", "delay", "id", "headers"):
        if (value := getattr(new_job, field)) is not None:
            raise limits.refused(
                field, value, "a schedule says when, and makes many jobs", hint="Leave it out."
            )
    fields = ("task", "payload", "queue", "priority", "max_attempts")
    return {field: value for field in fields if (value := getattr(new_job, field)) is not None}


_RULES: dict[str, Callable[[object], Any]] = {
    **schedule.RULES,
    "queue": partial(limits.name, "queue"),
    "priority": limits.priority,
    "max_attempts": limits.max_attempts,
}

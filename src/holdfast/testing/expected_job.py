"""The job that a test expects: how it differs from the jobs that exist."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import msgspec

from holdfast.task import Task
from holdfast.values import limits
from holdfast.values.encoding import Unstorable, to_json
from holdfast.values.errors import BadArguments, UnknownOption, suggest
from holdfast.values.job import JobSnapshot, JobState
from holdfast.values.secret import MARK, mask

# Two times may differ by this, because one was read slightly later than the other.
SECOND = timedelta(seconds=1)
SHOWN = 10
WIDTH = 200


class Wanted(TypedDict, total=False):
    """The expected fields of a job. Fields that are left out may be anything."""

    args: Mapping[str, Any] | None
    queue: str | None
    priority: int | None
    run_at: datetime | None
    delay: timedelta | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedJob:
    """The expected job. A field that is `None` may be anything."""

    task: str
    args: Mapping[str, Any]
    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None

    @classmethod
    def of(cls, owner: str, task: Task[..., Any] | str, wanted: Wanted) -> "ExpectedJob":
        for option in wanted:
            if option not in Wanted.__annotations__:
                unknown = UnknownOption.among(option, [*Wanted.__annotations__, "conn", "count"], owner=owner)
                unknown.hint = f"{unknown.hint} Put the arguments of the task into args={{{option!r}: …}}."
                raise unknown
        queue, priority = wanted.get("queue"), wanted.get("priority")
        run_at, delay = wanted.get("run_at"), wanted.get("delay")
        return cls(
            task=task.name if isinstance(task, Task) else limits.name("task", task),
            args=_plain(task, wanted.get("args") or {}),
            queue=None if queue is None else limits.name("queue", queue),
            priority=None if priority is None else limits.priority(priority),
            run_at=None if run_at is None else limits.moment("run_at", run_at),
            delay=None if delay is None else limits.duration("delay", delay),
        )

    def differences(self, job: JobSnapshot) -> list[str]:
        """Return the differences between this job and the expected one, as text."""
        found = [] if job.task == self.task else [f"its task is {job.task}"]
        payload = job.payload if isinstance(job.payload, dict) else {}
        for name, value in self.args.items():
            if name not in payload:
                found.append(f"it has no {name}")
            elif not _same(value, payload[name]):
                found.append(f"{name} is {_short(payload[name])}")
        if self.queue not in {None, job.queue}:
            found.append(f"its queue is {job.queue}")
        if self.priority not in {None, job.priority}:
            found.append(f"its priority is {job.priority}")
        due_at = job.run_at or job.created_at
        if self.run_at is not None and abs(due_at - self.run_at) > SECOND:
            found.append(f"it is due at {_moment(due_at)}")
        if self.delay is not None and abs(due_at - job.created_at - self.delay) > SECOND:
            found.append(f"its delay is {_length(due_at - job.created_at)}")
        return found

    def distance(self, job: JobSnapshot) -> tuple[float, int]:
        """Return how unlike the expected job this one is: by the name of its task, then by its fields."""
        unlike = 1 - difflib.SequenceMatcher(None, self.task, job.task).ratio()
        return unlike, len(self.differences(job))

    def __str__(self) -> str:
        words = [self.task]
        if self.args:
            words.append(f"with {_short(self.args)}")
        if self.queue is not None:
            words.append(f"on queue {self.queue}")
        if self.priority is not None:
            words.append(f"of priority {self.priority}")
        if self.run_at is not None:
            words.append(f"due at {_moment(self.run_at)}")
        if self.delay is not None:
            words.append(f"with a delay of {_length(self.delay)}")
        return " ".join(words)


def listed(jobs: Sequence[JobSnapshot], expected: ExpectedJob | None = None) -> str:
    """Return a line for each of the first jobs, with their differences from the expected one."""
    lines = [_line(job, expected.differences(job) if expected else []) for job in jobs[:SHOWN]]
    if len(jobs) > SHOWN:
        lines.append(f"… and {len(jobs) - SHOWN} more")
    return "\n".join(f"  {line}" for line in lines)


def _line(job: JobSnapshot, differences: list[str]) -> str:
    when = f" for {_moment(job.run_at)}" if job.state is JobState.SCHEDULED and job.run_at else ""
    line = f"{job.task} {_short(job.payload)} on {job.queue}, {job.state.value}{when}"
    return f"{line}: {', '.join(differences)}" if differences else line


def _plain(task: Task[..., Any] | str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as a payload has them."""
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise limits.refused(
            "args", args, "must be a mapping of arguments", hint='Write args={"user_id": 7}.'
        )
    given = dict(args)
    if isinstance(task, Task):
        signature = task.arguments.signature
        for name in given:
            # A misspelled name would match no job: an assertion would fail, but a refutation always pass.
            if name not in signature.hints and not signature.takes_more:
                raise BadArguments(
                    f"{task.name} has no argument {name!r}",
                    hint=suggest(name, signature.hints),
                    task=task.name,
                    argument=name,
                )
        given = signature.seal(given)
    try:
        plain: dict[str, Any] = msgspec.json.decode(to_json(given))
    except Unstorable as trouble:
        raise limits.refused(
            "args", given, f"{trouble.path} cannot be in a payload: {trouble.reason}"
        ) from None
    return plain


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(found, dict) and MARK in found and not (isinstance(wanted, dict) and MARK in wanted):
        found = found[MARK]
    return bool(wanted == found)


def _short(value: Any) -> str:
    text = repr(mask(value))
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _length(delay: timedelta) -> str:
    return str(timedelta(seconds=round(delay.total_seconds())))

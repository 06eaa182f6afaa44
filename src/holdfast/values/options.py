"""The options of a task, and of a single call.

A call overrides its task, and a task overrides the queue's settings in the database. Options are keywords and
are checked here. The error for an unknown option suggests a similar one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Self, TypeAlias, TypedDict
from uuid import UUID

from holdfast.values import limits
from holdfast.values.encoding import Unstorable, to_json
from holdfast.values.errors import BadPayload, UnknownOption
from holdfast.values.job import NewJob, Priority
from holdfast.values.retry import RetryPolicy
from holdfast.values.schedule import Schedule

Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]


class TaskKeywords(TypedDict, total=False):
    """The keywords of `@hf.task(…)`, for type checkers."""

    queue: str
    priority: int
    max_attempts: int | None
    timeout: timedelta | float | None
    retry: RetryPolicy | None
    retry_on: "Errors | None"
    give_up_on: "Errors | None"
    at_most_once: bool
    isolation: Literal["process"] | None
    memory_limit: int | None
    delay: timedelta | float | None
    schedule: str | Schedule | None
    zone: str | None


class CallKeywords(TypedDict, total=False):
    """The keywords of `task.options(…)`, for type checkers."""

    queue: str | None
    priority: int | None
    run_at: datetime | None
    delay: timedelta | float | None
    max_attempts: int | None
    id: UUID | str | None
    headers: Mapping[str, Any] | None


class WorkerKeywords(TypedDict, total=False):
    """The keywords of `hf.worker(…)`, for type checkers."""

    queues: list[str] | None
    concurrency: int
    lease_time: float | timedelta
    poll_interval: float
    grace: float
    notify: bool
    name: str | None
    http: int | str | None
    max_isolated: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of every job of a task, unless its call overrides them."""

    queue: str = "default"
    priority: int = int(Priority.SYSTEM)
    max_attempts: int | None = None
    timeout: timedelta | None = None
    retry: RetryPolicy | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    at_most_once: bool = False
    isolation: Literal["process"] | None = None
    memory_limit: int | None = None
    delay: timedelta | None = None
    schedule: Schedule | None = None

    @classmethod
    def of(cls, owner: str, keywords: Mapping[str, Any]) -> Self:
        """Return the options that these keywords set; errors name the `owner`."""
        said = _checked(owner, keywords, _TASK_RULES, also=("name",))
        times = _schedule(said.pop("schedule", None), said.pop("zone", None))
        options = cls(**said, schedule=times)
        if options.memory_limit is not None and options.isolation is None:
            raise limits.refused(
                "memory_limit", options.memory_limit, "needs a process", hint='Add isolation="process".'
            )
        if not options.at_most_once:
            return options
        for name in ("max_attempts", "retry", "retry_on"):
            if keywords.get(name):
                raise limits.refused(
                    name, keywords[name], f"{owner} runs at most once", hint="Leave one of the two out."
                )
        return replace(options, max_attempts=1)

    @property
    def declared_attempts(self) -> int | None:
        """The number of attempts that the code declares."""
        if self.max_attempts is None and self.retry is not None:
            return self.retry.max_attempts
        return self.max_attempts

    def gives_up_on(self, error: BaseException) -> bool:
        """Return whether another attempt after this error is pointless; `give_up_on` is checked first."""
        if isinstance(error, self.give_up_on):
            return True
        return bool(self.retry_on) and not isinstance(error, self.retry_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of one call. `None` leaves an option to the task. `headers` is JSON text."""

    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    max_attempts: int | None = None
    id: UUID | None = None
    headers: str | None = None

    @classmethod
    def of(cls, owner: str, keywords: Mapping[str, Any]) -> Self:
        """Return the options that these keywords set; errors name the `owner`."""
        options = cls(**_checked(owner, keywords, _CALL_RULES))
        if options.run_at is not None and options.delay is not None:
            raise limits.refused("delay", options.delay, "give either run_at or delay, not both")
        return options

    def over(self, earlier: "CallOptions") -> "CallOptions":
        """Return these options, completed by the earlier ones."""
        timed = self if self.run_at is not None or self.delay is not None else earlier
        return CallOptions(
            queue=_first(self.queue, earlier.queue),
            priority=_first(self.priority, earlier.priority),
            run_at=timed.run_at,
            delay=timed.delay,
            max_attempts=_first(self.max_attempts, earlier.max_attempts),
            id=_first(self.id, earlier.id),
            headers=_first(self.headers, earlier.headers),
        )

    def jobs(self, task: str, settings: TaskOptions) -> Callable[..., NewJob]:
        """Return a function that makes a job of a `payload`, with these options completed by the task's.

        Resolved once here, not on every call.
        """
        attempts = _first(self.max_attempts, settings.max_attempts)
        said = {
            "task": task,
            "queue": _first(self.queue, settings.queue),
            "priority": _first(self.priority, settings.priority),
            "run_at": self.run_at,
            "delay": settings.delay if self.delay is None and self.run_at is None else self.delay,
            "max_attempts": attempts,
            "id": self.id,
            "headers": self.headers,
            "declared_attempts": settings.declared_attempts if attempts is None else None,
        }
        return partial(NewJob, **{name: value for name, value in said.items() if value is not None})


def _policy(value: object) -> RetryPolicy:
    if isinstance(value, RetryPolicy):
        return value
    raise limits.refused("retry", value, "must be a RetryPolicy")


def _errors(field: str, value: object) -> tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return kinds
    raise limits.refused(field, value, "must be an exception class or a tuple of them")


def _isolation(value: object) -> str:
    if value == "process":
        return "process"
    raise limits.refused(
        "isolation", value, 'must be "process"', hint="Leave it out for a thread or the loop."
    )


def _schedule(times: object, zone: str | None) -> Schedule | None:
    if times is None or isinstance(times, Schedule):
        if zone is not None:
            raise limits.refused(
                "zone", zone, "belongs to a cron expression", hint='Write schedule="…", or Schedule(zone=…).'
            )
        return times
    if not isinstance(times, str):
        raise limits.refused(
            "schedule", times, "must be a cron expression or a Schedule", hint="Write Schedule(every=30)."
        )
    return Schedule(cron=times, zone=zone or "UTC")


# The database has the same limit and decides: its text of the same headers is slightly longer.
HEADERS_LIMIT = 8192
OWN_HEADERS = frozenset({"resumes", "schedule", "tick"})


def _headers(value: object) -> str:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise limits.refused("headers", value, "must be a mapping with text as keys")
    try:
        text = to_json(dict(value))
    except Unstorable as trouble:
        path = "headers" + trouble.path
        raise BadPayload(f"{path}: {trouble.reason}", path=path) from trouble
    if own := sorted(OWN_HEADERS.intersection(value)):
        raise limits.refused("headers", own[0], "this name is reserved; choose another")
    if len(text) > HEADERS_LIMIT:
        rule = f"may have {HEADERS_LIMIT} bytes: put the rest into the payload"
        raise limits.refused("headers", f"{len(text)} bytes", rule)
    return text.decode()


_Rule = Callable[[object], Any]
# A bare interpreter with Holdfast takes about 40 MiB.
_MEMORY = range(64 * 2**20, 2**50)

_SHARED_RULES: dict[str, _Rule] = {
    "queue": partial(limits.name, "queue"),
    "priority": limits.priority,
    "max_attempts": limits.max_attempts,
    "delay": partial(limits.duration, "delay"),
}
_TASK_RULES: dict[str, _Rule] = {
    **_SHARED_RULES,
    "timeout": partial(limits.duration, "timeout", above_zero=True),
    "retry": _policy,
    "retry_on": partial(_errors, "retry_on"),
    "give_up_on": partial(_errors, "give_up_on"),
    "at_most_once": partial(limits.truth, "at_most_once"),
    "isolation": _isolation,
    "schedule": lambda times: times,
    "zone": partial(limits.text, "zone"),
    "memory_limit": lambda value: limits.integer("memory_limit", value, _MEMORY),
}
_CALL_RULES: dict[str, _Rule] = {
    **_SHARED_RULES,
    "run_at": partial(limits.moment, "run_at"),
    "id": partial(limits.identity, "id"),
    "headers": _headers,
}


# The names that other queues use, and the option to write instead.
ELSEWHERE = {
    **dict.fromkeys(["countdown", "in_", "wait", "defer_by", "schedule_in"], "delay"),
    **dict.fromkeys(["eta", "at", "when", "defer_until", "schedule_at", "scheduled_at"], "run_at"),
    **dict.fromkeys(["retries", "max_retries", "attempts", "max_tries", "tries"], "max_attempts"),
    **dict.fromkeys(["autoretry_for", "retry_for"], "retry_on"),
    **dict.fromkeys(["dont_autoretry_for", "throws"], "give_up_on"),
    **dict.fromkeys(
        ["retry_backoff", "retry_backoff_max", "retry_jitter", "min_backoff", "backoff"], "retry"
    ),
    **dict.fromkeys(["time_limit", "soft_time_limit", "job_timeout"], "timeout"),
    **dict.fromkeys(["task_id", "job_id"], "id"),
    **dict.fromkeys(["cron", "crontab", "every"], "schedule"),
}
_WRITTEN = {"retry": "retry=RetryPolicy(…)", "every": "schedule=Schedule(every=…)"}


def _instead(option: str, rules: Mapping[str, _Rule]) -> str | None:
    """Return a hint for an option of another queue, or for one that belongs elsewhere."""
    if option == "expires":
        return "A waiting job does not expire. Cancel it with job.cancel()."
    if option == "conn":
        return "Give the connection once: task.on(conn).enqueue(…), or hf.on(conn)."
    ours = ELSEWHERE.get(option, option)
    written = _WRITTEN.get(option) or _WRITTEN.get(ours, f"{ours}=…")
    first = " The first run counts as an attempt." if option in {"retries", "max_retries"} else ""
    if ours in rules:
        return f"Write {written}.{first}"
    if ours in _TASK_RULES:
        return f"It is an option of a task: @hf.task({written}).{first}"
    return f"It is an option of a call: task.options({written})." if ours in _CALL_RULES else None


def _checked(
    owner: str, keywords: Mapping[str, Any], rules: Mapping[str, _Rule], *, also: Iterable[str] = ()
) -> dict[str, Any]:
    for option in keywords:
        if option not in rules:
            known, hint = [*rules, *also], _instead(option, rules)
            raise UnknownOption.among(option, known, owner=owner, hint=hint)
    return {option: rules[option](value) for option, value in keywords.items() if value is not None}


def _first(preferred: Any, otherwise: Any) -> Any:
    return otherwise if preferred is None else preferred

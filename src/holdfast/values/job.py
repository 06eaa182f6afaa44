"""The values around jobs: new jobs, snapshots, and the outcomes of attempts.

NewJob ──enqueue──► JobState: scheduled ─► pending ─► claimed ─► running ─► completed │ dead │ cancelled
                                  ▲                                 │
                                  └── Retry, Snooze, Failed ◄── Outcome ──► Done, Cancel, GiveUp
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from holdfast.values import limits


class JobState(StrEnum):
    SCHEDULED = "scheduled"
    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """True if a job in this state has ended."""
        return self in {JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED}


class Priority(IntEnum):
    """Named priorities. Larger is more urgent; any number from -32768 to 32767 is allowed."""

    USER = 150
    """A user has asked for it and waits."""
    SYSTEM = 100
    """The system needs it: the default."""
    BACKFILL = 30
    """It can wait until there is no other work."""


# A msgspec struct, because a bulk enqueue makes many thousands. Making one takes 0.3 µs; a frozen dataclass
# of nine fields takes 1.5 µs.
class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job to be enqueued, checked and ready to send. `None` leaves the choice to the database.

    `payload` and `headers` are JSON text. The repr shows neither, since both may hold secrets.
    """

    task: str
    payload: str = "{}"
    queue: str = "default"
    priority: int = int(Priority.SYSTEM)
    run_at: datetime | None = None
    delay: timedelta | None = None
    max_attempts: int | None = None
    id: UUID | None = None
    headers: str | None = None
    declared_attempts: int | None = None
    """The `max_attempts` that the task's code declares. An operator's policy takes precedence."""

    def __repr__(self) -> str:
        return f"NewJob({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        hidden = {"payload", "headers"}
        shown = ((name, getattr(self, name)) for name in self.__struct_fields__ if name not in hidden)
        return [(name, value) for name, value in shown if value is not None]


# A job's id in any form. Making a number or a text takes a tenth of the time of a UUID.
JobId: TypeAlias = UUID | int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """A job as it was when it was read: one row of the view `holdfast.jobs`.

    Secrets in it are `*****`, and so is everything that the queue's settings hide from the reader. The repr
    still leaves out the payload.
    """

    # domain
    id: UUID
    queue: str
    task: str
    payload: Any = field(repr=False)
    priority: int
    headers: dict[str, Any] | None = field(default=None, repr=False)
    # lifecycle
    state: JobState
    attempt: int
    max_attempts: int
    worker: UUID | None = None
    worker_name: str | None = None
    lease: UUID | None = None
    progress: int | None = None
    stage: str | None = None
    message: str | None = None
    step: str | None = None
    events: int = 0
    result: Any = field(default=None, repr=False)
    last_error: str | None = None
    # timing
    run_at: datetime | None = None
    created_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    changed_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    duration: timedelta | None = None
    # An estimate, made when the job last reported its progress.
    time_left: timedelta | None = None


# The outcomes of an attempt. A handler returns one of the first five, or any other value as its result.


@dataclass(frozen=True, slots=True)
class Done:
    """The job is completed, with this result. Returning a plain value means the same."""

    result: Any = None


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """Try again after this time, or when the retry policy says. Uses up an attempt.

    After the last attempt the job is dead, with `error` as the reason.
    """

    after: timedelta | None
    error: str | None

    def __init__(self, after: timedelta | float | None = None, error: str | None = None) -> None:
        object.__setattr__(self, "after", None if after is None else limits.duration("after", after))
        object.__setattr__(self, "error", error)


@dataclass(frozen=True, slots=True, init=False)
class Snooze:
    """Run again after this time. Does not use up an attempt."""

    delay: timedelta

    def __init__(self, delay: timedelta | float) -> None:
        object.__setattr__(self, "delay", limits.duration("delay", delay))


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the job as cancelled, and never try again."""

    reason: str | None = None


# The reason of a job that was cancelled while it ran.
CANCELLED_WHILE_RUNNING = "cancelled while it ran"


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job failed, and another attempt would not help. It is dead at once, even if attempts are left."""

    error: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised. The retry policy decides when to try again, unless `final`."""

    error: str
    type: str | None = None
    traceback: str | None = field(default=None, repr=False)
    final: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """The job was given back before it started; the attempt is refunded."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The job was given back while it ran, because a shutdown could not wait; the attempt stays counted."""

    reason: str | None = None


Outcome: TypeAlias = Done | Retry | Snooze | Cancel | GiveUp | Failed | Released | Interrupted


class Stop(Exception):  # noqa: N818 - it ends an attempt on purpose and is no error
    """End the attempt with this outcome from any depth of the handler's code.

    The handler itself should return the outcome instead. Like any exception it can be caught on the way, so
    avoid a bare `except Exception` in between.
    """

    def __init__(self, outcome: Done | Retry | Snooze | Cancel | GiveUp) -> None:
        super().__init__(outcome)
        self.outcome = outcome

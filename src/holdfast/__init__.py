"""A job queue that lives in PostgreSQL."""

from holdfast.client import Holdfast
from holdfast.operations.events import Event
from holdfast.operations.job import Job
from holdfast.task import Task
from holdfast.telemetry import subscribe
from holdfast.values.errors import (
    BadArguments,
    BadName,
    BadPayload,
    BadResult,
    BadValue,
    DatabaseUnavailable,
    HoldfastError,
    IdConflict,
    IllegalTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    LeaseLost,
    NotAllowed,
    NotHeld,
    PayloadTooLarge,
    SchemaMissing,
    TooManyLanes,
    UnknownMethod,
    UnknownOption,
    WorkerLost,
)
from holdfast.values.job import (
    Cancel,
    Done,
    GiveUp,
    JobSnapshot,
    JobState,
    NewJob,
    Priority,
    Retry,
    Snooze,
    Stop,
)
from holdfast.values.retry import RetryPolicy
from holdfast.values.schedule import Schedule
from holdfast.values.secret import Secret
from holdfast.worker.context import Context

__all__ = [
    "BadArguments",
    "BadName",
    "BadPayload",
    "BadResult",
    "BadValue",
    "Cancel",
    "Context",
    "DatabaseUnavailable",
    "Done",
    "Event",
    "GiveUp",
    "Holdfast",
    "HoldfastError",
    "IdConflict",
    "IllegalTransition",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobSnapshot",
    "JobState",
    "LeaseLost",
    "NewJob",
    "NotAllowed",
    "NotHeld",
    "PayloadTooLarge",
    "Priority",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "SchemaMissing",
    "Secret",
    "Snooze",
    "Stop",
    "Task",
    "TooManyLanes",
    "UnknownMethod",
    "UnknownOption",
    "WorkerLost",
    "subscribe",
]

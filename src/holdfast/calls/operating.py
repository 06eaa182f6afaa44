"""Calls that change what is to happen to jobs and queues."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.calls.base import Call, function, interval, nothing, one

_cancel = function("cancel", "id uuid")
_cancel_many = function("cancel_many", "ids uuid[]")
_cancel_matching = function(
    "cancel_matching",
    "queue text, task text, state text, amount integer, after uuid, everything boolean",
    "cancelled, requested, last_id",
)
_give_up = function("give_up", "id uuid, reason text")
_run_now = function("run_now", "id uuid")
_reschedule = function("reschedule", "id uuid, run_at timestamptz, delay interval")
_pause = function("pause", "queue text")
_resume = function("resume", "queue text")


def cancel(job_id: UUID) -> Call[str]:
    """Answers `cancelled`, `requested`, or the end state that the job had already."""
    return _cancel(one, job_id)


def cancel_many(ids: Sequence[UUID]) -> Call[dict[UUID, str | None]]:
    """Answers for each id as `cancel` does, or with `None` for one that no job has."""
    return _cancel_many(lambda rows: {row[0]: row[1] for row in rows}, list(ids))


class Cancelled(NamedTuple):
    """How many jobs were called off at once, and for how many their worker was asked to."""

    cancelled: int
    requested: int


def cancel_matching(
    *,
    queue: str | None,
    task: str | None,
    state: str | None,
    amount: int,
    after: UUID | None,
    everything: bool = False,
) -> Call[tuple[Cancelled, UUID | None]]:
    """Answers also with the id to go on `after`, or with `None` if nothing is left."""
    return _cancel_matching(
        lambda rows: (Cancelled(*rows[0][:2]), rows[0][2]), queue, task, state, amount, after, everything
    )


def give_up(job_id: UUID, reason: str | None) -> Call[str]:
    return _give_up(one, job_id, reason)


def run_now(job_id: UUID) -> Call[str]:
    return _run_now(one, job_id)


def reschedule(job_id: UUID, run_at: datetime | None, delay: timedelta | None) -> Call[datetime]:
    """Answers when it is due."""
    return _reschedule(one, job_id, run_at, None if delay is None else interval(delay))


def pause(queue: str) -> Call[None]:
    return _pause(nothing, queue)


def resume(queue: str) -> Call[None]:
    return _resume(nothing, queue)

"""Calls about dead letters."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from holdfast.calls.base import Call, function, nothing, one
from holdfast.calls.looking import SNAPSHOT, read_snapshot
from holdfast.values.job import JobSnapshot

_replay = function("replay", "id uuid, start_over boolean")
_purge = function("purge", "id uuid")
_DEAD = "queue text, task text, error text, died_after timestamptz, died_before timestamptz, amount integer"
_replay_many = function("replay_many", f"{_DEAD}, start_over boolean, everything boolean")
_purge_many = function("purge_many", f"{_DEAD}, everything boolean")
_list_dead = function("list_dead", _DEAD, SNAPSHOT)


class Dead(NamedTuple):
    """Which dead letters are meant; what is `None` matches all. `error` is a part of the last error."""

    queue: str | None = None
    task: str | None = None
    error: str | None = None
    died_after: datetime | None = None
    died_before: datetime | None = None
    amount: int | None = None


def replay(job_id: UUID, *, start_over: bool = False) -> Call[str]:
    return _replay(one, job_id, start_over)


def purge(job_id: UUID) -> Call[None]:
    return _purge(nothing, job_id)


def replay_many(dead: Dead, *, start_over: bool = False, everything: bool = False) -> Call[int]:
    return _replay_many(one, *dead, start_over, everything)


def purge_many(dead: Dead, *, everything: bool = False) -> Call[int]:
    return _purge_many(one, *dead, everything)


def list_dead(dead: Dead) -> Call[list[JobSnapshot]]:
    return _list_dead(lambda rows: [read_snapshot(row) for row in rows], *dead)

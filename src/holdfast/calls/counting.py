"""Calls that show queues and workers, and count jobs."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from holdfast.calls.base import Call, function

_count_jobs = function("count_jobs", columns="queue, state, jobs, oldest_at, paused, estimated")
_list_queues = function("list_queues")
_list_workers = function("list_workers")


class Stat(NamedTuple):
    queue: str
    state: str
    jobs: int
    oldest_at: datetime
    paused: bool
    estimated: bool
    """Whether `jobs` is an estimate: very many are not counted one by one."""


def stats() -> Call[list[Stat]]:
    return _count_jobs(lambda rows: [Stat._make(row) for row in rows])


class QueueRow(NamedTuple):
    name: str
    paused_at: datetime | None
    scheduled: int
    pending: int
    held: int
    oldest_at: datetime | None


def list_queues() -> Call[list[QueueRow]]:
    return _list_queues(lambda rows: [QueueRow._make(row) for row in rows])


class WorkerRow(NamedTuple):
    id: UUID
    name: str
    host: str | None
    pid: int | None
    queues: list[str] | None
    tasks: list[str] | None
    status: str
    holds: int
    started_at: datetime
    heartbeat_at: datetime
    recovered: int


def list_workers() -> Call[list[WorkerRow]]:
    return _list_workers(lambda rows: [WorkerRow._make(row) for row in rows])

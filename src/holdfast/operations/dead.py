"""Dead letters: `hf.dead`."""

from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.operations.base import Namespace, operation, twin
from holdfast.operations.snapshots import SNAPSHOT, read_snapshots
from holdfast.values import limits
from holdfast.values.call import Call, function, nothing, one
from holdfast.values.job import JobSnapshot, JobState
from holdfast.values.renamed import renamed

_FILTER = "queue text, task text, error text, died_after timestamptz, died_before timestamptz, amount integer"
_replay = function("replay", "id uuid, start_over boolean")
_purge = function("purge", "id uuid")
_replay_many = function("replay_many", f"{_FILTER}, start_over boolean, everything boolean")
_purge_many = function("purge_many", f"{_FILTER}, everything boolean")
_list_dead = function("list_dead", _FILTER, SNAPSHOT)


class Dead(Namespace):
    """Jobs that have failed for good. The filter `error` is a part of the last error."""

    called = "list(…)"

    @operation
    def replay(self, job: UUID | str, *, start_over: bool = False) -> Call[JobState]:
        """Put a dead job back on its queue: the same job, with attempts from 0.

        It continues after its finished steps, unless you ask it to start over.
        """
        job_id = limits.identity("id", job)
        return _replay(lambda rows: JobState(one(rows)), job_id, limits.truth("start_over", start_over))

    areplay = twin(replay)

    @operation
    @renamed(amount="limit")
    def replay_many(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        error: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        everything: bool = False,
        limit: int | None = None,
        start_over: bool = False,
    ) -> Call[int]:
        """Put the dead jobs that match back on their queues, oldest first, and return how many.

        They continue after their finished steps, unless you ask them to start over. Without a filter it needs
        `everything=True`.
        """
        _refuse_all(queue, task, error, after, before, everything=everything)
        matching = _filter(queue, task, error, after, before, limit)
        return _replay_many(one, *matching, limits.truth("start_over", start_over), everything)

    areplay_many = twin(replay_many)

    @operation
    def purge(self, job: UUID | str) -> Call[None]:
        """Remove a dead job for good, with its errors."""
        return _purge(nothing, limits.identity("id", job))

    apurge = twin(purge)

    @operation
    @renamed(amount="limit")
    def purge_many(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        error: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        everything: bool = False,
        limit: int | None = None,
    ) -> Call[int]:
        """Remove the dead jobs that match for good, oldest first, and return how many.

        Without a filter it needs `everything=True`.
        """
        _refuse_all(queue, task, error, after, before, everything=everything)
        return _purge_many(one, *_filter(queue, task, error, after, before, limit), everything)

    apurge_many = twin(purge_many)

    @operation
    @renamed(amount="limit")
    def list(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        error: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 50,
    ) -> Call["list[JobSnapshot]"]:
        """Return the dead jobs that match, the latest first: those that died `after` or `before` a time."""
        return _list_dead(read_snapshots, *_filter(queue, task, error, after, before, limit))

    alist = twin(list)


def _filter(  # noqa: PLR0917 - in the order of the SQL functions
    queue: str | None,
    task: str | None,
    error: str | None,
    after: datetime | None,
    before: datetime | None,
    limit: int | None,
) -> tuple[Any, ...]:
    return (
        queue,
        task,
        error,
        None if after is None else limits.moment("after", after),
        None if before is None else limits.moment("before", before),
        None if limit is None else limits.integer("limit", limit, range(1, 2**31)),
    )


def _refuse_all(*filters: object, everything: bool) -> None:
    # An empty text or a None filters nothing: it is a variable that was not set, never "all of them".
    if not limits.truth("everything", everything) and all(value in {None, ""} for value in filters):
        raise limits.refused(
            "everything", everything, "no filter is given", hint="Say everything=True for all dead jobs."
        )

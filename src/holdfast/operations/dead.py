"""Dead letters: `hf.dead`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack
from uuid import UUID

from holdfast.operations.base import Namespace, operation, twin
from holdfast.operations.snapshots import SNAPSHOT, read_snapshots
from holdfast.values import limits
from holdfast.values.call import Call, function, nothing, one
from holdfast.values.errors import UnknownOption
from holdfast.values.job import JobSnapshot, JobState

_FILTER = "queue text, task text, error text, died_after timestamptz, died_before timestamptz, amount integer"
_replay = function("replay", "id uuid, start_over boolean")
_purge = function("purge", "id uuid")
_replay_many = function("replay_many", f"{_FILTER}, start_over boolean, everything boolean")
_purge_many = function("purge_many", f"{_FILTER}, everything boolean")
_list_dead = function("list_dead", _FILTER, SNAPSHOT)


class DeadFilter(TypedDict, total=False):
    """A filter of dead jobs: by a part of the last error, and by the time of death (`after`, `before`)."""

    queue: str | None
    task: str | None
    error: str | None
    after: datetime | None
    before: datetime | None


class Dead(Namespace):
    """Dead letters. `error` is a part of the last error; `after` and `before` limit the time of death."""

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
    def replay_many(
        self,
        *,
        everything: bool = False,
        limit: int | None = None,
        start_over: bool = False,
        **which: Unpack[DeadFilter],
    ) -> Call[int]:
        """Put the matching dead jobs back on their queues, oldest first, and return their number.

        They continue after their finished steps, unless you ask them to start over. Without a filter it needs
        `everything=True`.
        """
        matching = _filter_values("replay_many", which, limit, "everything", "start_over")
        _refuse_all(matching[:-1], everything=everything)
        return _replay_many(one, *matching, limits.truth("start_over", start_over), everything)

    areplay_many = twin(replay_many)

    @operation
    def purge(self, job: UUID | str) -> Call[None]:
        """Remove a dead job for good, with its errors."""
        return _purge(nothing, limits.identity("id", job))

    apurge = twin(purge)

    @operation
    def purge_many(
        self, *, everything: bool = False, limit: int | None = None, **which: Unpack[DeadFilter]
    ) -> Call[int]:
        """Remove the matching dead jobs for good, oldest first, and return their number.

        Without a filter it needs `everything=True`.
        """
        matching = _filter_values("purge_many", which, limit, "everything")
        _refuse_all(matching[:-1], everything=everything)
        return _purge_many(one, *matching, everything)

    apurge_many = twin(purge_many)

    @operation
    def list(self, *, limit: int = 50, **which: Unpack[DeadFilter]) -> Call["list[JobSnapshot]"]:
        """Return the matching dead jobs, latest first."""
        return _list_dead(read_snapshots, *_filter_values("list", which, limit))

    alist = twin(list)


def _filter_values(verb: str, which: DeadFilter, limit: int | None, *others: str) -> Sequence[Any]:
    """Check a filter, and return it in the order of the SQL functions. Errors name the `others` as well."""
    UnknownOption.check(which, DeadFilter.__annotations__, owner=f"{verb}()", also=["limit", *others])
    after, before = which.get("after"), which.get("before")
    return (
        which.get("queue"),
        which.get("task"),
        which.get("error"),
        None if after is None else limits.moment("after", after),
        None if before is None else limits.moment("before", before),
        None if limit is None else limits.integer("limit", limit, range(1, 2**31)),
    )


def _refuse_all(filters: Sequence[object], *, everything: bool) -> None:
    # An empty text or None is probably a variable that was not set. It never means all jobs.
    if not limits.truth("everything", everything) and all(value in {None, ""} for value in filters):
        raise limits.refused(
            "everything", everything, "no filter is given", hint="Write everything=True for all dead jobs."
        )

"""What an operator does: pause, configure, call off, replay, and how tasks are retried."""

import asyncio
import os
from collections.abc import Iterable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from uuid import UUID

from holdfast import calls
from holdfast.calls import Call, Cancelled, Dead, PolicyRow
from holdfast.calls.settings import Change
from holdfast.client.asking import Asking, known_state
from holdfast.settings import SettingKeywords, change
from holdfast.values import limits
from holdfast.values.errors import UnknownOption
from holdfast.values.job import JobSnapshot, JobState
from holdfast.values.renamed import renamed
from holdfast.values.retry import RetryPolicy

if TYPE_CHECKING:
    from holdfast.exporting import Exported, Receiver, Shape

CANCEL_BATCH = 10_000


class DeadKeywords(TypedDict, total=False):
    """Which dead letters are meant; `error` is a part of the last error, in any case of letters."""

    queue: str | None
    task: str | None
    error: str | None
    after: datetime | None
    before: datetime | None


class Operating(Asking):
    def pause(self, queue: str) -> None:
        """Hand out no more jobs of this queue; those that run go on."""
        self.run(calls.pause(queue))

    async def apause(self, queue: str) -> None:
        await self.arun(calls.pause(queue))

    def resume(self, queue: str) -> None:
        self.run(calls.resume(queue))

    async def aresume(self, queue: str) -> None:
        await self.arun(calls.resume(queue))

    def configure(self, queue: str, *, conn: Any = None, **settings: Unpack[SettingKeywords]) -> list[Change]:
        """Change settings of a queue, or by the name `*` of all, without a restart; what has changed.

        `hf.configure("mail", retention=timedelta(days=7), max_attempts=5)`; `None` goes back to the default.
        """
        return self.run(change(queue, settings), conn=conn)

    async def aconfigure(
        self, queue: str, *, conn: Any = None, **settings: Unpack[SettingKeywords]
    ) -> list[Change]:
        return await self.arun(change(queue, settings), conn=conn)

    # Calling off.

    def cancel(self, ids: Iterable[UUID | str]) -> dict[UUID, str | None]:
        """Call many jobs off; for each what `job.cancel()` says, or `None` if there is no such job."""
        return self.run(calls.cancel_many(_identities(ids)))

    async def acancel(self, ids: Iterable[UUID | str]) -> dict[UUID, str | None]:
        return await self.arun(calls.cancel_many(_identities(ids)))

    def cancel_matching(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: JobState | str | None = None,
        everything: bool = False,
    ) -> Cancelled:
        """Call off all live jobs of a queue, a task or both, in batches; how many.

        Without a queue and a task it needs `everything=True`.
        """
        batches: list[Cancelled] = []
        last: UUID | None = None
        while last is not None or not batches:
            some, last = self.run(_cancel_some(queue, task, state, last, everything))
            batches.append(some)
        return _total(batches)

    async def acancel_matching(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: JobState | str | None = None,
        everything: bool = False,
    ) -> Cancelled:
        batches: list[Cancelled] = []
        last: UUID | None = None
        while last is not None or not batches:
            some, last = await self.arun(_cancel_some(queue, task, state, last, everything))
            batches.append(some)
        return _total(batches)

    # Dead letters.

    @renamed(amount="limit")
    def dead(self, *, limit: int = 50, **which: Unpack[DeadKeywords]) -> list[JobSnapshot]:
        """Dead jobs, the latest first: by `queue`, `task`, part of the `error`, died `after` or `before`."""
        return self.run(calls.list_dead(_dead(which, limit=limit)))

    @renamed(amount="limit")
    async def adead(self, *, limit: int = 50, **which: Unpack[DeadKeywords]) -> list[JobSnapshot]:
        return await self.arun(calls.list_dead(_dead(which, limit=limit)))

    @renamed(amount="limit")
    def replay(
        self,
        *,
        everything: bool = False,
        limit: int | None = None,
        start_over: bool = False,
        **which: Unpack[DeadKeywords],
    ) -> int:
        """Put the dead jobs that match back on their queues, oldest first; how many.

        They go on after the steps that they have finished, unless they are to start over.
        """
        dead = _dead(which, limit=limit, everything=everything)
        return self.run(_replay(dead, start_over, everything))

    @renamed(amount="limit")
    async def areplay(
        self,
        *,
        everything: bool = False,
        limit: int | None = None,
        start_over: bool = False,
        **which: Unpack[DeadKeywords],
    ) -> int:
        dead = _dead(which, limit=limit, everything=everything)
        return await self.arun(_replay(dead, start_over, everything))

    @renamed(amount="limit")
    def purge(
        self, *, everything: bool = False, limit: int | None = None, **which: Unpack[DeadKeywords]
    ) -> int:
        """Remove the dead jobs that match for good, oldest first; how many."""
        return self.run(_purge(which, limit, everything))

    @renamed(amount="limit")
    async def apurge(
        self, *, everything: bool = False, limit: int | None = None, **which: Unpack[DeadKeywords]
    ) -> int:
        return await self.arun(_purge(which, limit, everything))

    # Retry policies.

    def retry_policies(self) -> list[PolicyRow]:
        """What is set for tasks; a task that is missing follows its queue and the default."""
        return self.run(calls.list_retry_policies())

    async def aretry_policies(self) -> list[PolicyRow]:
        return await self.arun(calls.list_retry_policies())

    def set_retry_policy(self, task: str, policy: RetryPolicy) -> None:
        """Say how a task is retried from now on; this wins over the policy that its code declares."""
        self.run(_set_retry_policy(task, policy))

    async def aset_retry_policy(self, task: str, policy: RetryPolicy) -> None:
        await self.arun(_set_retry_policy(task, policy))

    def reset_retry_policy(self, task: str) -> bool:
        """Forget what was set; whether anything was."""
        return self.run(calls.reset_retry_policy(limits.name("task", task)))

    async def areset_retry_policy(self, task: str) -> bool:
        return await self.arun(calls.reset_retry_policy(limits.name("task", task)))

    # Retention.

    def export(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        to: "Receiver | None" = None,
        format: "Shape" = "csv",  # noqa: A002 - the word for it
        compress: bool = False,
        day: date | None = None,
    ) -> "list[Exported]":
        """Write the days that are due, or one day, to a directory, or to a function; the files.

        Each comes with a manifest: rows, columns with types, SHA-256. What was due may be dropped then. `to`
        is called with the name and the chunks of each file: `hf.export(to=upload, compress=True)`.
        """
        from holdfast.exporting import export  # noqa: PLC0415 - few processes do

        return export(self.database, directory, to=to, shape=format, compress=compress, day=day)

    async def aexport(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        to: "Receiver | None" = None,
        format: "Shape" = "csv",  # noqa: A002
        compress: bool = False,
        day: date | None = None,
    ) -> "list[Exported]":
        return await asyncio.to_thread(
            self.export, directory, to=to, format=format, compress=compress, day=day
        )


def _identities(ids: Iterable[UUID | str]) -> list[UUID]:
    if isinstance(ids, str | UUID):
        raise limits.refused("ids", ids, "must be a list of ids", hint="Write [id], or hf.job(id).cancel().")
    return [limits.identity("ids", job_id) for job_id in ids]


def _cancel_some(
    queue: str | None,
    task: str | None,
    state: JobState | str | None,
    after: UUID | None,
    everything: bool,
) -> Call[tuple[Cancelled, UUID | None]]:
    if not limits.truth("everything", everything) and not queue and not task:
        raise limits.refused(
            "everything",
            everything,
            "no queue and no task is given",
            hint="Say everything=True for all jobs.",
        )
    return calls.cancel_matching(
        queue=queue or None,
        task=task or None,
        state=known_state(state),
        amount=CANCEL_BATCH,
        after=after,
        everything=everything,
    )


def _total(batches: list[Cancelled]) -> Cancelled:
    return Cancelled(*map(sum, zip(*batches, strict=True)))


def _replay(dead: Dead, start_over: bool, everything: bool) -> Call[int]:
    start_over = limits.truth("start_over", start_over)
    return calls.replay_many(dead, start_over=start_over, everything=everything)


def _purge(which: DeadKeywords, limit: int | None, everything: bool) -> Call[int]:
    return calls.purge_many(_dead(which, limit=limit, everything=everything), everything=everything)


def _dead(which: DeadKeywords, *, limit: int | None, everything: bool = True) -> Dead:
    for option in which:
        if option not in DeadKeywords.__annotations__:
            raise UnknownOption.among(option, DeadKeywords.__annotations__, owner="dead letters")
    # An empty text or a None filters nothing: it is a variable that was not set, never "all of them".
    filtered = any(value is not None and value != "" for value in which.values())
    if not limits.truth("everything", everything) and not filtered:
        raise limits.refused(
            "everything", everything, "no filter is given", hint="Say everything=True for all dead jobs."
        )
    after, before = which.get("after"), which.get("before")
    return Dead(
        queue=which.get("queue"),
        task=which.get("task"),
        error=which.get("error"),
        died_after=None if after is None else limits.moment("after", after),
        died_before=None if before is None else limits.moment("before", before),
        amount=None if limit is None else limits.integer("limit", limit, range(1, 2**31)),
    )


def _set_retry_policy(task: str, policy: RetryPolicy) -> Call[None]:
    if not isinstance(policy, RetryPolicy):
        raise limits.refused("policy", policy, "must be a RetryPolicy")
    return calls.set_retry_policy(limits.name("task", task), policy)

"""The front door: declare tasks, enqueue jobs, look after them.

    hf = Holdfast()          # an argument, else HOLDFAST_DSN, else an embedded PostgreSQL

    @hf.task(queue="mail")
    async def welcome(user_id: int) -> None: ...

    welcome.enqueue(user_id=7)
    hf.worker().run()

Methods that talk to the database have async twins with the prefix `a`.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from holdfast import calls, embedded, limits, schema
from holdfast.access import Access
from holdfast.calls import (
    AttemptError,
    Call,
    Cancelled,
    Dead,
    End,
    Event,
    Finding,
    PolicyRow,
    QueueRow,
    Reason,
    Stat,
    StepRow,
    WorkerRow,
)
from holdfast.calls.retention import DueExport, PartitionRow
from holdfast.calls.settings import AuditRow, Change, SettingRow
from holdfast.calls.statistics import By, QueueReport, Statistic
from holdfast.database import Database, aload_on, arun_on, examine, load_on, run_on
from holdfast.errors import HoldfastError, JobCancelled, JobFailed, JobNotFound, UnknownOption, suggest
from holdfast.job import JobId, JobSnapshot, JobState, NewJob
from holdfast.metrics import Overview, exposition, families_of, questions
from holdfast.options import CallKeywords, TaskKeywords
from holdfast.retry import RetryPolicy
from holdfast.schedules import Schedules
from holdfast.secret import mask_dsn
from holdfast.settings import SettingKeywords, change
from holdfast.task import AroundEnqueue, JobHandle, Registry, Task, named_job
from holdfast.waiting import Waiting

if TYPE_CHECKING:
    from holdfast.exporting import Exported, Receiver, Shape
    from holdfast.worker.worker import Worker

CANCEL_BATCH = 10_000
EMPTY_LOOKS = 20
AT_ONCE = 0.2

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class DeadKeywords(TypedDict, total=False):
    """Which dead letters are meant; `error` is a part of the last error, in any case of letters."""

    queue: str | None
    task: str | None
    error: str | None
    after: datetime | None
    before: datetime | None


class Job(JobHandle[R], Generic[R]):
    """A job that was enqueued or looked up: its id, and what can be done with it."""

    __slots__ = ("_holdfast", "_id")

    def __init__(self, holdfast: "Holdfast", job_id: JobId) -> None:
        self._holdfast = holdfast
        self._id = job_id

    @property
    def id(self) -> UUID:
        known = self._id
        if not isinstance(known, UUID):  # made when it is asked for: most handles are never looked at
            known = self._id = UUID(known) if isinstance(known, str) else UUID(int=known)
        return known

    def refresh(self) -> JobSnapshot:
        """The job as it is now; raises `JobNotFound` once it is past its retention, or was rolled back."""
        return _known(self._holdfast.run(calls.job(self.id)), self.id)

    async def arefresh(self) -> JobSnapshot:
        return _known(await self._holdfast.arun(calls.job(self.id)), self.id)

    def why(self) -> list[Reason]:
        """Why it does not run, the decisive reason first; or how it ended. Knows unknown ids, too."""
        return self._holdfast.why(self.id)

    async def awhy(self) -> list[Reason]:
        return await self._holdfast.awhy(self.id)

    def cancel(self) -> str:
        """Call it off: `cancelled`, `requested` (a worker holds it), or the end state that it had already."""
        return self._holdfast.run(calls.cancel(self.id))

    async def acancel(self) -> str:
        return await self._holdfast.arun(calls.cancel(self.id))

    def run_now(self) -> JobState:
        """Do not wait for its time or its backoff; the state that it has then."""
        return JobState(self._holdfast.run(calls.run_now(self.id)))

    async def arun_now(self) -> JobState:
        return JobState(await self._holdfast.arun(calls.run_now(self.id)))

    def reschedule(
        self, *, run_at: datetime | None = None, delay: timedelta | float | None = None
    ) -> datetime:
        """Give a scheduled job another time; when it is due. Raises `IllegalTransition` for any other."""
        return self._holdfast.run(_reschedule(self.id, run_at, delay))

    async def areschedule(
        self, *, run_at: datetime | None = None, delay: timedelta | float | None = None
    ) -> datetime:
        return await self._holdfast.arun(_reschedule(self.id, run_at, delay))

    def give_up(self, reason: str | None = None) -> JobState:
        """Send it to the dead letters while it waits; raises `IllegalTransition` if it does not wait."""
        return JobState(self._holdfast.run(calls.give_up(self.id, reason)))

    async def agive_up(self, reason: str | None = None) -> JobState:
        return JobState(await self._holdfast.arun(calls.give_up(self.id, reason)))

    def replay(self, *, start_over: bool = False) -> JobState:
        """Put it back on its queue, once it is dead: the same job, with attempts from 0.

        It goes on after the steps that it has finished, unless it is to start over.
        """
        return JobState(self._holdfast.run(calls.replay(self.id, start_over=_start_over(start_over))))

    async def areplay(self, *, start_over: bool = False) -> JobState:
        return JobState(await self._holdfast.arun(calls.replay(self.id, start_over=_start_over(start_over))))

    def purge(self) -> None:
        """Remove it for good, once it is dead, with its errors."""
        self._holdfast.run(calls.purge(self.id))

    async def apurge(self) -> None:
        await self._holdfast.arun(calls.purge(self.id))

    def errors(self) -> list[AttemptError]:
        """What went wrong, attempt by attempt."""
        return self._holdfast.run(calls.job_errors(self.id))

    async def aerrors(self) -> list[AttemptError]:
        return await self._holdfast.arun(calls.job_errors(self.id))

    def steps(self) -> list[StepRow]:
        """The steps that it has finished, in their order."""
        return self._holdfast.run(calls.job_steps(self.id))

    async def asteps(self) -> list[StepRow]:
        return await self._holdfast.arun(calls.job_steps(self.id))

    def checkpoint(self) -> dict[str, Any] | None:
        """What its handler kept last with `ctx.checkpoint`."""
        return self._holdfast.run(calls.job_checkpoint(self.id))

    async def acheckpoint(self) -> dict[str, Any] | None:
        return await self._holdfast.arun(calls.job_checkpoint(self.id))

    def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for its end; what the handler returned.

        Raises `JobFailed` if it is dead, `JobCancelled` if it was called off, `JobNotFound` if there is no
        such job, and `TimeoutError` if it has not ended within so many seconds.
        """
        (result,) = self._holdfast.gather([self], timeout=timeout)
        return result  # type: ignore[no-any-return]  # as its task says, if it is known here

    async def aresult(self, timeout: timedelta | float | None = None) -> R:  # noqa: ASYNC109 - the twin of result
        (result,) = await self._holdfast.agather([self], timeout=timeout)
        return result  # type: ignore[no-any-return]

    def watch(self, *, poll: float = 0.5) -> Iterator[JobSnapshot]:
        """The job as it is now, and again whenever it has changed, until it has ended."""
        last = None
        while last is None or not last.state.final:
            snapshot = self.refresh()
            if snapshot != last:
                yield snapshot
            last = snapshot
            if not last.state.final:
                time.sleep(limits.number("poll", poll, 0.01, 3600))

    async def awatch(self, *, poll: float = 0.5) -> AsyncIterator[JobSnapshot]:
        last = None
        while last is None or not last.state.final:
            snapshot = await self.arefresh()
            if snapshot != last:
                yield snapshot
            last = snapshot
            if not last.state.final:
                await asyncio.sleep(limits.number("poll", poll, 0.01, 3600))

    def events(self, *, after: str | None = None, follow: bool = True, poll: float = 0.5) -> Iterator[Event]:
        """Its events: those that were, then those that come, until it has ended. See `hf.events`."""
        return self._holdfast.events(job_id=self.id, after=after, follow=follow, poll=poll)

    def aevents(
        self, *, after: str | None = None, follow: bool = True, poll: float = 0.5
    ) -> AsyncIterator[Event]:
        return self._holdfast.aevents(job_id=self.id, after=after, follow=follow, poll=poll)

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)


class Holdfast:
    """One queue system in one database.

    `dsn` is a libpq connection string; without it HOLDFAST_DSN is used, and without that a private
    PostgreSQL is started when it is first needed, and migrated by itself. `transaction_pooling` is for
    PgBouncer in transaction mode.
    """

    def __init__(
        self, dsn: str | None = None, *, transaction_pooling: bool = False, pool_size: int = 10
    ) -> None:
        self.tasks = Registry()
        self.schedules = Schedules(self)
        self.around_enqueue: AroundEnqueue | None = None
        self.access = Access(self)
        if dsn is not None and not (isinstance(dsn, str) and dsn.strip()):
            # An unset variable must not send anybody to another database.
            raise limits.refused(
                "dsn", dsn, "must be a connection string", hint="Leave it out for the default."
            )
        self._given = dsn
        self._transaction_pooling = transaction_pooling
        self._pool_size = limits.integer("pool_size", pool_size, range(1, 1001))
        self._lock = threading.RLock()
        self._database: Database | None = None
        self._server: embedded.Server | None = None
        self._waiting: Waiting | None = None

    @property
    def dsn(self) -> str:
        """Which database this talks to; starts the embedded one if that is it."""
        return self.database.dsn

    @property
    def database(self) -> Database:
        if self._database is not None:
            return self._database
        with self._lock:
            if self._database is None:
                dsn = self._given or os.environ.get("HOLDFAST_DSN") or self._start_embedded()
                self._database = Database(
                    dsn, transaction_pooling=self._transaction_pooling, pool_size=self._pool_size
                )
            return self._database

    def _start_embedded(self) -> str:
        if self._server is None:
            self._server = embedded.start()
        with Database(self._server.dsn).connection() as connection:
            schema.apply(connection)
        return self._server.dsn

    def migrate(self, *, roles: bool = False) -> list[str]:
        """Install or upgrade the schema; the names of the files that were applied.

        With `roles`, also make holdfast_producer, _worker, _viewer and _operator, where the cluster has none
        yet, and give them their rights in this database.
        """
        with self.database.connection() as connection:
            return schema.apply(connection, roles=limits.truth("roles", roles))

    def verify(self) -> None:
        """Raise `SchemaMissing`, `SchemaOutdated` or `SchemaTooNew` unless the schema fits this release."""
        with self.database.connection() as connection:
            schema.verify(connection)

    # Tasks.

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, *, name: str | None = None, **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(  # type: ignore[misc]  # mypy does not see Unpack through an overload
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any
    ) -> Any:
        """Declare a function as a task, with or without options: `@hf.task` or `@hf.task(queue="mail")`."""

        def declare(function: Callable[P, R]) -> Task[P, R]:
            task: Task[P, R] = Task(function, name=name, enqueuer=self, **options)
            if task.settings.timeout is not None and not task.is_async and task.settings.isolation is None:
                raise limits.refused(
                    "timeout",
                    task.settings.timeout,
                    f"task {task.name} is a plain function, and a thread cannot be stopped",
                    hint='Make it async, or say isolation="process".',
                )
            self.tasks.register(task)
            return task

        return declare if function is None else declare(function)

    # Enqueueing.

    def enqueue(self, task: str, payload: Any = msgspec.UNSET, **options: Unpack[CallKeywords]) -> Job[Any]:
        """Enqueue by name; the task need not be known here. Options are those of `task.options(…)`."""
        return self.enqueue_new(named_job(task, payload, **options), options.get("conn"))

    async def aenqueue(
        self, task: str, payload: Any = msgspec.UNSET, **options: Unpack[CallKeywords]
    ) -> Job[Any]:
        return await self.aenqueue_new(named_job(task, payload, **options), options.get("conn"))

    def enqueue_many(self, jobs: Iterable[NewJob], *, conn: Any = None) -> list[Job[Any]]:
        """Enqueue thousands, all of them or none.

        `hf.enqueue_many(welcome.call(user_id=i) for i in range(10_000))`
        """
        if self.around_enqueue is None:
            loaded = self.database.load(jobs) if conn is None else load_on(conn, jobs)
        else:
            with self.around_enqueue(iter(jobs)) as sending:
                jobs = sending.jobs
                loaded = self.database.load(jobs) if conn is None else load_on(conn, jobs)
                sending.ids = loaded
        return [Job(self, job_id) for job_id in loaded]

    async def aenqueue_many(self, jobs: Iterable[NewJob], *, conn: Any = None) -> list[Job[Any]]:
        if self.around_enqueue is None:
            loaded = await (self.database.aload(jobs) if conn is None else aload_on(conn, jobs))
        else:
            with self.around_enqueue(iter(jobs)) as sending:
                jobs = sending.jobs
                loaded = await (self.database.aload(jobs) if conn is None else aload_on(conn, jobs))
                sending.ids = loaded
        return [Job(self, job_id) for job_id in loaded]

    def enqueue_new(self, new_job: NewJob, conn: Any = None) -> Job[Any]:
        """Enqueue what `task.call(…)` made."""
        if self.around_enqueue is None:
            return Job(self, self.run(calls.enqueue(new_job), conn=conn))
        with self.around_enqueue((new_job,)) as sending:
            (new_job,) = sending.jobs
            job_id = self.run(calls.enqueue(new_job), conn=conn)
            sending.ids = (job_id,)
        return Job(self, job_id)

    async def aenqueue_new(self, new_job: NewJob, conn: Any = None) -> Job[Any]:
        if self.around_enqueue is None:
            job_id = await self.arun(calls.enqueue(new_job), conn=conn)
            return Job(self, job_id)
        with self.around_enqueue((new_job,)) as sending:
            (new_job,) = sending.jobs
            job_id = await self.arun(calls.enqueue(new_job), conn=conn)
            sending.ids = (job_id,)
        return Job(self, job_id)

    # Looking and operating.

    def job(self, job_id: UUID | str) -> Job[Any]:
        """A handle on a job by its id; nothing is asked of the database yet."""
        return Job(self, limits.identity("id", job_id))

    def jobs(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: JobState | str | None = None,
        amount: int = 50,
    ) -> list[JobSnapshot]:
        """Jobs that match, those that changed last first."""
        return self.run(_jobs(queue, task, state, amount))

    async def ajobs(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: JobState | str | None = None,
        amount: int = 50,
    ) -> list[JobSnapshot]:
        return await self.arun(_jobs(queue, task, state, amount))

    def stats(self) -> list[Stat]:
        """How many jobs there are per queue and state; very many are estimated, and marked so."""
        return self.run(calls.stats())

    async def astats(self) -> list[Stat]:
        return await self.arun(calls.stats())

    def statistics(self, *, by: By = "queue", queue: str | None = None) -> list[Statistic]:
        """What waits, runs and is dead, and what was done in the last hour and day, by queue or by task."""
        return self.run(_statistics(by, queue))

    async def astatistics(self, *, by: By = "queue", queue: str | None = None) -> list[Statistic]:
        return await self.arun(_statistics(by, queue))

    def health(self, queue: str | None = None) -> list[QueueReport]:
        """How each queue is, or this one: OK, WARNING or CRITICAL by its thresholds, and why."""
        return self.run(calls.statistics.health(queue))

    async def ahealth(self, queue: str | None = None) -> list[QueueReport]:
        return await self.arun(calls.statistics.health(queue))

    def queues(self) -> list[QueueRow]:
        """The queues that were used or are paused, and what waits in them."""
        return self.run(calls.list_queues())

    async def aqueues(self) -> list[QueueRow]:
        return await self.arun(calls.list_queues())

    def workers(self) -> list[WorkerRow]:
        return self.run(calls.list_workers())

    async def aworkers(self) -> list[WorkerRow]:
        return await self.arun(calls.list_workers())

    # What is wrong.

    def why(self, job_id: UUID | str) -> list[Reason]:
        """Why a job does not run: what stands in its way, the decisive reason first, and what to do.

        One that has ended, or that nobody knows, is explained as well.
        """
        return self.run(calls.why(limits.identity("id", job_id)))

    async def awhy(self, job_id: UUID | str) -> list[Reason]:
        return await self.arun(calls.why(limits.identity("id", job_id)))

    def doctor(self, *, healthy: bool = False) -> list[Finding]:
        """What is wrong with the database, the worst first; nothing if all is well.

        With `healthy` the checks that found nothing are among them, as `ok`.
        """
        return examine(self.database, healthy=limits.truth("healthy", healthy))

    async def adoctor(self, *, healthy: bool = False) -> list[Finding]:
        return await asyncio.to_thread(self.doctor, healthy=healthy)

    def pause(self, queue: str) -> None:
        """Hand out no more jobs of this queue; those that run go on."""
        self.run(calls.pause(queue))

    async def apause(self, queue: str) -> None:
        await self.arun(calls.pause(queue))

    def resume(self, queue: str) -> None:
        self.run(calls.resume(queue))

    async def aresume(self, queue: str) -> None:
        await self.arun(calls.resume(queue))

    # Settings.

    def configure(self, queue: str, *, conn: Any = None, **settings: Unpack[SettingKeywords]) -> list[Change]:
        """Change settings of a queue, or by the name `*` of all, without a restart; what has changed.

        `hf.configure("mail", retention=timedelta(days=7), max_attempts=5)`; `None` goes back to the default.
        """
        return self.run(change(queue, settings), conn=conn)

    async def aconfigure(
        self, queue: str, *, conn: Any = None, **settings: Unpack[SettingKeywords]
    ) -> list[Change]:
        return await self.arun(change(queue, settings), conn=conn)

    def settings(self, queue: str | None = None) -> list[SettingRow]:
        """The settings of a queue, or of all that have any, `*` first: its own, or the default of all."""
        return self.run(calls.settings.settings(queue))

    async def asettings(self, queue: str | None = None) -> list[SettingRow]:
        return await self.arun(calls.settings.settings(queue))

    def audit(
        self,
        *,
        target: str | None = None,
        action: str | None = None,
        who: str | None = None,
        since: datetime | None = None,
        amount: int = 50,
    ) -> list[AuditRow]:
        """Who did what, and when, the latest first: by queue, job or schedule (`target`), action, name."""
        return self.run(_audit(target, action, who, since, amount))

    async def aaudit(
        self,
        *,
        target: str | None = None,
        action: str | None = None,
        who: str | None = None,
        since: datetime | None = None,
        amount: int = 50,
    ) -> list[AuditRow]:
        return await self.arun(_audit(target, action, who, since, amount))

    # Retention.

    def partitions(self) -> list[PartitionRow]:
        """The days of finished jobs and events: how much they hold, and what becomes of them when."""
        return self.run(calls.retention.list_partitions())

    async def apartitions(self) -> list[PartitionRow]:
        return await self.arun(calls.retention.list_partitions())

    def due_exports(self) -> list[DueExport]:
        """The days that wait for `hf.export(…)` before they go, where the setting `disposal` is `export`."""
        return self.run(calls.retention.due_exports())

    async def adue_exports(self) -> list[DueExport]:
        return await self.arun(calls.retention.due_exports())

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

    # Waiting and following.

    def gather(
        self,
        jobs: Iterable[JobHandle[Any]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Wait for the end of all of these; their results, in the same order.

        If one has none, what `job.result()` would raise is raised at once, or stands in its place with
        `return_exceptions`.
        """
        waits, seconds = _Waits(self, jobs), _seconds(timeout)
        if waits.missing and seconds is not None and seconds < AT_ONCE:  # who cannot wait asks once
            for end in self.run(calls.ends(waits.missing)):
                waits.look(end, return_exceptions)
        waits.begin()
        try:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                for future in concurrent.futures.as_completed(waits.futures, seconds):
                    waits.look(future.result(), return_exceptions)
            return waits.results(return_exceptions, seconds)
        finally:
            waits.drop()

    async def agather(
        self,
        jobs: Iterable[JobHandle[Any]],
        *,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 - the twin of gather
        return_exceptions: bool = False,
    ) -> list[Any]:
        waits, seconds = _Waits(self, jobs), _seconds(timeout)
        if waits.missing and seconds is not None and seconds < AT_ONCE:
            for end in await self.arun(calls.ends(waits.missing)):
                waits.look(end, return_exceptions)
        waits.begin()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    for future in asyncio.as_completed(map(asyncio.wrap_future, waits.futures)):
                        waits.look(await future, return_exceptions)
            return waits.results(return_exceptions, seconds)
        finally:
            waits.drop()

    def events(
        self,
        *,
        job_id: UUID | str | None = None,
        queue: str | None = None,
        after: str | None = None,
        follow: bool = True,
        poll: float = 0.5,
    ) -> Iterator[Event]:
        """The events of a job, of a queue, or of all: those that were, in order, then those that come.

        Each has the `cursor` to go on `after` it, also in another process: none is missed and none comes
        twice, whenever its transaction commits. `after="now"` leaves out those that were, and `follow=False`
        those that come. Those of one job end with the job.
        """
        feed = _Feed(job_id, queue, after, poll)
        if after == "now":
            feed.after = self.run(feed.now())
        while True:
            ahead: str | None = None
            if feed.quiet:
                ahead = self.run(feed.now())
            page = self.run(feed.read())
            yield from feed.take(page, ahead)
            if page:
                continue
            if feed.over or (not follow and feed.job is None):
                return
            ends = self.run(calls.ends([str(feed.job)])) if feed.job is not None else []
            if feed.is_over(ends) and follow:
                feed.over = True  # and once more, for what came before its end
            elif not follow:
                return
            else:
                time.sleep(feed.poll)

    async def aevents(
        self,
        *,
        job_id: UUID | str | None = None,
        queue: str | None = None,
        after: str | None = None,
        follow: bool = True,
        poll: float = 0.5,
    ) -> AsyncIterator[Event]:
        feed = _Feed(job_id, queue, after, poll)
        if after == "now":
            feed.after = await self.arun(feed.now())
        while True:
            ahead: str | None = None
            if feed.quiet:
                now = await self.arun(feed.now())
                ahead = now
            page = await self.arun(feed.read())
            for event in feed.take(page, ahead):
                yield event
            if page:
                continue
            if feed.over or (not follow and feed.job is None):
                return
            ends = await self.arun(calls.ends([str(feed.job)])) if feed.job is not None else []
            if feed.is_over(ends) and follow:
                feed.over = True
            elif not follow:
                return
            else:
                await asyncio.sleep(feed.poll)

    @property
    def waiting(self) -> Waiting:
        """Who waits in this process for the end of jobs."""
        with self._lock:
            if self._waiting is None:
                self._waiting = Waiting(self.database)
            return self._waiting

    # Calling off.

    def cancel(self, ids: Iterable[UUID | str]) -> dict[UUID, str | None]:
        """Call many jobs off; for each what `job.cancel()` says, or `None` if there is no such job."""
        return self.run(calls.cancel_many(_identities(ids)))

    async def acancel(self, ids: Iterable[UUID | str]) -> dict[UUID, str | None]:
        return await self.arun(calls.cancel_many(_identities(ids)))

    def cancel_matching(
        self, *, queue: str | None = None, task: str | None = None, state: JobState | str | None = None
    ) -> Cancelled:
        """Call off all live jobs of a queue, a task or both, in batches; how many."""
        batches: list[Cancelled] = []
        last: UUID | None = None
        while last is not None or not batches:
            some, last = self.run(_cancel_some(queue, task, state, last))
            batches.append(some)
        return _total(batches)

    async def acancel_matching(
        self, *, queue: str | None = None, task: str | None = None, state: JobState | str | None = None
    ) -> Cancelled:
        batches: list[Cancelled] = []
        last: UUID | None = None
        while last is not None or not batches:
            some, last = await self.arun(_cancel_some(queue, task, state, last))
            batches.append(some)
        return _total(batches)

    # Dead letters.

    def dead(self, *, amount: int = 50, **which: Unpack[DeadKeywords]) -> list[JobSnapshot]:
        """Dead jobs, the latest first: by `queue`, `task`, part of the `error`, died `after` or `before`."""
        return self.run(calls.list_dead(_dead(which, amount=amount)))

    async def adead(self, *, amount: int = 50, **which: Unpack[DeadKeywords]) -> list[JobSnapshot]:
        return await self.arun(calls.list_dead(_dead(which, amount=amount)))

    def replay(
        self,
        *,
        everything: bool = False,
        amount: int | None = None,
        start_over: bool = False,
        **which: Unpack[DeadKeywords],
    ) -> int:
        """Put the dead jobs that match back on their queues, oldest first; how many.

        They go on after the steps that they have finished, unless they are to start over.
        """
        dead = _dead(which, amount=amount, everything=everything)
        return self.run(calls.replay_many(dead, start_over=_start_over(start_over)))

    async def areplay(
        self,
        *,
        everything: bool = False,
        amount: int | None = None,
        start_over: bool = False,
        **which: Unpack[DeadKeywords],
    ) -> int:
        dead = _dead(which, amount=amount, everything=everything)
        return await self.arun(calls.replay_many(dead, start_over=_start_over(start_over)))

    def purge(
        self, *, everything: bool = False, amount: int | None = None, **which: Unpack[DeadKeywords]
    ) -> int:
        """Remove the dead jobs that match for good, oldest first; how many."""
        return self.run(calls.purge_many(_dead(which, amount=amount, everything=everything)))

    async def apurge(
        self, *, everything: bool = False, amount: int | None = None, **which: Unpack[DeadKeywords]
    ) -> int:
        return await self.arun(calls.purge_many(_dead(which, amount=amount, everything=everything)))

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

    def metrics(self) -> str:
        """What stands in the database, as Prometheus reads it: jobs by queue and state, workers, gauges.

        What one worker process does is on its own port: `hf.worker(http=8080)`.
        """
        return exposition(families_of(Overview(*[self.run(question) for question in questions()])))

    async def ametrics(self) -> str:
        return exposition(families_of(Overview(*[await self.arun(question) for question in questions()])))

    # Running.

    def worker(self, **options: Any) -> "Worker":
        """A worker for the tasks declared here. Options: queues, concurrency, lease_time, poll_interval,
        grace, notify, name, http."""
        from holdfast.worker.worker import Worker  # noqa: PLC0415 - a process that only enqueues need not load it

        known = Worker.__init__.__kwdefaults__ or {}
        for option in options:
            if option not in known:
                raise UnknownOption.among(option, known, owner="a worker")
        self.verify()
        self._declare()
        return Worker(self.database, self.tasks, **options)

    def _declare(self) -> None:
        """Write down what the tasks say of themselves, where no operator has said otherwise."""
        for task in self.tasks:
            policy, attempts = task.settings.retry, task.settings.max_attempts
            if policy is not None or attempts is not None:
                self.run(calls.set_retry_policy(task.name, policy, max_attempts=attempts, declared=True))
        self.schedules.declare(self.tasks)

    def run(self, call: Call[T], *, conn: Any = None) -> T:
        """Carry a call: on the caller's own connection, else through the pool."""
        return self.database.run(call) if conn is None else run_on(conn, call)

    async def arun(self, call: Call[T], *, conn: Any = None) -> T:
        return await self.database.arun(call) if conn is None else await arun_on(conn, call)

    def close(self) -> None:
        """Close the connections, and leave the embedded server if there is one."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.close()
                self._waiting = None
            if self._database is not None:
                self._database.close()
                self._database = None
            if self._server is not None:
                self._server.stop()
                self._server = None

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)  # the embedded server takes a moment

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._database.dsn if self._database else self._given or os.environ.get("HOLDFAST_DSN")
        return f"<Holdfast {mask_dsn(where) if where else 'embedded'}>"


class _Waits:
    """The ends of some jobs, as they come."""

    def __init__(self, holdfast: Holdfast, jobs: Iterable[JobHandle[Any]]) -> None:
        if isinstance(jobs, JobHandle):
            raise limits.refused("jobs", jobs, "must be a list of jobs", hint="Write [job], or job.result().")
        jobs = list(jobs)
        for job in jobs:
            if not isinstance(job, JobHandle):
                raise limits.refused("jobs", job, "must be jobs", hint="hf.job(id) makes one of an id.")
        self._tasks = holdfast.tasks
        self._ids = [str(job.id) for job in jobs]
        self._ends: dict[str, End] = {}
        self._waiting = holdfast.waiting
        self._asked: list[str] = []
        self.futures: list[concurrent.futures.Future[End]] = []

    @property
    def missing(self) -> list[str]:
        return [job_id for job_id in self._ids if job_id not in self._ends]

    def begin(self) -> None:
        self._asked = self.missing
        self.futures = self._waiting.add(self._asked)

    def look(self, end: End, return_exceptions: bool) -> None:
        self._ends[end.id] = end
        if not return_exceptions and (error := _failure(end)) is not None:
            raise error

    def results(self, return_exceptions: bool, seconds: float | None) -> list[Any]:
        if self.missing and not return_exceptions:
            raise _late(self.missing, seconds)
        return [self._result(job_id, seconds) for job_id in self._ids]

    def _result(self, job_id: str, seconds: float | None) -> Any:
        end = self._ends.get(job_id)
        if end is None:
            return _late([job_id], seconds)
        if (error := _failure(end)) is not None:
            return error
        value = None if end.result is None else msgspec.json.decode(end.result)
        known = end.task is not None and end.task in self._tasks
        return self._tasks.get(end.task).decode_result(value) if known and end.task else value

    def drop(self) -> None:
        """Wait no more for those that have not ended."""
        for job_id, future in zip(self._asked, self.futures, strict=True):
            if not future.done():
                self._waiting.drop(job_id, future)


class _Feed:
    """Where somebody is in the events of a job, a queue or all."""

    def __init__(self, job_id: UUID | str | None, queue: str | None, after: str | None, poll: float) -> None:
        if job_id is not None and queue is not None:
            raise limits.refused("queue", queue, "give either job_id or queue")
        self.job = None if job_id is None else limits.identity("job_id", job_id)
        self.queue = None if queue is None else limits.name("queue", queue)
        self.after = None if after is None else limits.text("after", after)
        self.poll = limits.number("poll", poll, 0.01, 3600)
        self.over = False
        self._empty = 0

    def now(self) -> Call[str]:
        return calls.event_cursor(self.job)

    def read(self) -> Call[list[Event]]:
        return calls.read_events(job_id=self.job, queue=self.queue, after=self.after)

    @property
    def quiet(self) -> bool:
        """Whether there was nothing for so long that the cursor is worth moving by itself.

        Each look walks over what came since the cursor, also in other queues. One that was taken before a
        look that found nothing is as good.
        """
        return self.job is None and self._empty >= EMPTY_LOOKS

    def is_over(self, ends: list[End]) -> bool:
        """Whether its job has ended; raises `JobNotFound` if there is none."""
        for end in ends:
            if end.state is None and self.after is None:
                raise _unknown(UUID(end.id))
        return bool(ends)

    def take(self, page: list[Event], ahead: str | None) -> list[Event]:
        self._empty = 0 if page or ahead else self._empty + 1
        if page:
            self.after = page[-1].cursor
        elif ahead is not None:
            self.after = ahead
        return page


def _late(ids: list[str], seconds: float | None) -> TimeoutError:
    others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
    return TimeoutError(f"job {ids[0]}{others} has not ended within {seconds or 0:g} s")


def _failure(end: End) -> HoldfastError | None:
    """What to raise for a job that has no result."""
    job_id = UUID(end.id)
    match end.state:
        case "completed":
            return None
        case "dead":
            return JobFailed(f"job {job_id} is dead: {end.error}", id=job_id, error=end.error)
        case "cancelled":
            return JobCancelled(f"job {job_id} was cancelled", id=job_id, reason=end.error)
        case _:
            return _unknown(job_id)


def _seconds(timeout: timedelta | float | None) -> float | None:
    return None if timeout is None else limits.duration("timeout", timeout).total_seconds()


def _start_over(start_over: bool) -> bool:
    return limits.truth("start_over", start_over)


def _reschedule(job_id: UUID, run_at: datetime | None, delay: timedelta | float | None) -> Call[datetime]:
    if (run_at is None) == (delay is None):
        raise limits.refused("run_at", run_at, "give either run_at or delay")
    return calls.reschedule(
        job_id,
        None if run_at is None else limits.moment("run_at", run_at),
        None if delay is None else limits.duration("delay", delay),
    )


def _jobs(
    queue: str | None, task: str | None, state: JobState | str | None, amount: int
) -> Call[list[JobSnapshot]]:
    limits.integer("amount", amount, range(1, 100_001))
    return calls.list_jobs(queue=queue, task=task, state=_state(state), amount=amount)


def _statistics(by: By, queue: str | None) -> Call[list[Statistic]]:
    if by not in {"queue", "task"}:
        raise limits.refused("by", by, "must be 'queue' or 'task'")
    return calls.statistics.statistics(by, queue)


def _identities(ids: Iterable[UUID | str]) -> list[UUID]:
    if isinstance(ids, str | UUID):
        raise limits.refused("ids", ids, "must be a list of ids", hint="Write [id], or hf.job(id).cancel().")
    return [limits.identity("ids", job_id) for job_id in ids]


def _cancel_some(
    queue: str | None, task: str | None, state: JobState | str | None, after: UUID | None
) -> Call[tuple[Cancelled, UUID | None]]:
    return calls.cancel_matching(
        queue=queue, task=task, state=_state(state), amount=CANCEL_BATCH, after=after
    )


def _total(batches: list[Cancelled]) -> Cancelled:
    return Cancelled(*map(sum, zip(*batches, strict=True)))


def _dead(which: DeadKeywords, *, amount: int | None, everything: bool = True) -> Dead:
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
        amount=None if amount is None else limits.integer("amount", amount, range(1, 2**31)),
    )


def _set_retry_policy(task: str, policy: RetryPolicy) -> Call[None]:
    if not isinstance(policy, RetryPolicy):
        raise limits.refused("policy", policy, "must be a RetryPolicy")
    return calls.set_retry_policy(limits.name("task", task), policy)


def _state(state: JobState | str | None) -> JobState | None:
    if state is None:
        return None
    try:
        return JobState(state)
    except ValueError:
        raise limits.refused(
            "state", state, "is not a state", hint=suggest(str(state), [known.value for known in JobState])
        ) from None


def _audit(
    target: str | None, action: str | None, who: str | None, since: datetime | None, amount: int
) -> Call[list[AuditRow]]:
    return calls.settings.audit_log(
        amount=limits.integer("amount", amount, range(1, 100_001)),
        target=target,
        action=action,
        who=who,
        since=None if since is None else limits.moment("since", since),
    )


def _known(snapshot: JobSnapshot | None, job_id: UUID) -> JobSnapshot:
    if snapshot is None:
        raise _unknown(job_id)
    return snapshot


def _unknown(job_id: UUID) -> JobNotFound:
    return JobNotFound(
        f"there is no job {job_id}",
        hint="Check the id; jobs are kept for the retention time after they finish.",
        id=job_id,
    )

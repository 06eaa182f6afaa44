"""One queue system in one database."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Never, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from holdfast import calls, embedded, schema
from holdfast.access import Access
from holdfast.client.following import Following
from holdfast.client.job import Job
from holdfast.client.looking import Looking
from holdfast.client.operating import Operating
from holdfast.database import Database, aload_on, load_on, without_driver
from holdfast.schedules import Schedules
from holdfast.task import AroundEnqueue, Registry, Task, named_job
from holdfast.values import limits
from holdfast.values.errors import HoldfastError, UnknownOption
from holdfast.values.job import NewJob
from holdfast.values.options import CallKeywords, TaskKeywords
from holdfast.values.secret import mask_dsn
from holdfast.waiting import Waiting

if TYPE_CHECKING:
    from holdfast.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


class Holdfast(Looking, Operating, Following):
    """One queue system in one database.

    `dsn` is a libpq connection string, or a URL of SQLAlchemy's (postgresql+psycopg://…).
    Without it HOLDFAST_DSN is used, and without that a private PostgreSQL is started when it is first
    needed, and migrated by itself. `transaction_pooling` is for PgBouncer in transaction mode; it is found
    out if you leave it open.
    """

    around_enqueue: AroundEnqueue | None = None

    def __init__(
        self,
        dsn: str | None = None,
        *,
        transaction_pooling: bool | None = None,
        pool_size: int = 10,
        **unknown: Never,
    ) -> None:
        for option in unknown:
            known = ("dsn", "transaction_pooling", "pool_size")
            raise UnknownOption.among(option, known, owner="a Holdfast")
        self.tasks = Registry()
        self.schedules = Schedules(self)
        self.access = Access(self)
        if dsn is not None and not (isinstance(dsn, str) and dsn.strip()):
            # An unset variable must not send anybody to another database.
            raise limits.refused(
                "dsn", dsn, "must be a connection string", hint="Leave it out for the default."
            )
        self._given = dsn and without_driver(dsn)
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
                dsn = self._given or _dsn_of_environment() or self._start_embedded()
                self._database = Database(
                    dsn, transaction_pooling=self._transaction_pooling, pool_size=self._pool_size
                )
            return self._database

    def _start_embedded(self) -> str:
        if self._server is None:
            self._server = embedded.start_for_project()
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
                    options["timeout"],
                    f"task {task.name} is a plain function, and a thread cannot be stopped",
                    hint='Make it async, or say isolation="process".',
                )
            self.tasks.register(task)
            return task

        return declare if function is None else declare(function)

    # Enqueueing.

    def enqueue(self, task: str, payload: Any = msgspec.UNSET, **options: Unpack[CallKeywords]) -> Job[Any]:
        """Enqueue by name; the task need not be known here. Options are those of `task.options(…)`.

        If it is known, its queue, priority and delay apply where the options give none.
        """
        return self.enqueue_new(named_job(task, payload, self.tasks, **options), options.get("conn"))

    async def aenqueue(
        self, task: str, payload: Any = msgspec.UNSET, **options: Unpack[CallKeywords]
    ) -> Job[Any]:
        return await self.aenqueue_new(named_job(task, payload, self.tasks, **options), options.get("conn"))

    def enqueue_many(self, jobs: Iterable[NewJob], *, conn: Any = None) -> list[Job[Any]]:
        """Enqueue thousands, all of them or none.

        `hf.enqueue_many(welcome.call(user_id=i) for i in range(10_000))`
        """
        if self._database is None:
            _refuse_without_guard()
        if self.around_enqueue is None:
            loaded = self.database.load(jobs) if conn is None else load_on(conn, jobs)
        else:
            with self.around_enqueue(iter(jobs)) as sending:
                jobs = sending.jobs
                loaded = self.database.load(jobs) if conn is None else load_on(conn, jobs)
                sending.ids = loaded
        return [Job(self, job_id) for job_id in loaded]

    async def aenqueue_many(self, jobs: Iterable[NewJob], *, conn: Any = None) -> list[Job[Any]]:
        if self._database is None:
            _refuse_without_guard()
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
        if self._database is None:
            _refuse_without_guard()
        if self.around_enqueue is None:
            return Job(self, self.run(calls.enqueue(new_job), conn=conn))
        with self.around_enqueue((new_job,)) as sending:
            (new_job,) = sending.jobs
            job_id = self.run(calls.enqueue(new_job), conn=conn)
            sending.ids = (job_id,)
        return Job(self, job_id)

    async def aenqueue_new(self, new_job: NewJob, conn: Any = None) -> Job[Any]:
        if self._database is None:
            _refuse_without_guard()
        if self.around_enqueue is None:
            job_id = await self.arun(calls.enqueue(new_job), conn=conn)
            return Job(self, job_id)
        with self.around_enqueue((new_job,)) as sending:
            (new_job,) = sending.jobs
            job_id = await self.arun(calls.enqueue(new_job), conn=conn)
            sending.ids = (job_id,)
        return Job(self, job_id)

    def job(self, job_id: UUID | str) -> Job[Any]:
        """A handle on a job by its id; nothing is asked of the database yet."""
        return Job(self, limits.identity("id", job_id))

    # Running.

    def worker(self, **options: Any) -> "Worker":
        """A worker for the tasks declared here. Options: queues, concurrency, lease_time, poll_interval,
        grace, notify, name, http, max_isolated."""
        _refuse_without_guard()
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

    @property
    def waiting(self) -> Waiting:
        """Who waits in this process for the end of jobs."""
        with self._lock:
            if self._waiting is None:
                self._waiting = Waiting(self.database)
            return self._waiting

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
        where = self._database.dsn if self._database else self._given or _dsn_of_environment()
        return f"<Holdfast {mask_dsn(where) if where else 'embedded'}>"


def _refuse_without_guard() -> None:
    """Raise in a child process that imports the script of its parent, where that does its work once more."""
    loaded = sys.modules.get("multiprocessing.process")
    if loaded is not None and getattr(loaded.current_process(), "_inheriting", False):
        raise HoldfastError(
            "a child process imports this script, and must not enqueue jobs or run a worker again",
            hint='Put that code under if __name__ == "__main__":',
        )


def _dsn_of_environment() -> str:
    return without_driver(os.environ.get("HOLDFAST_DSN", ""))

"""The client: declare tasks, enqueue jobs, and operate queues.

    hf = Holdfast()          # uses its argument, HOLDFAST_DSN, or an embedded PostgreSQL

    @hf.task(queue="mail")
    async def welcome(user_id: int) -> None: ...

    welcome.enqueue(user_id=7)
    hf.worker().run()

Operations are grouped by noun, such as `hf.dead.list()`. Methods that talk to the database have async twins
with the prefix `a`.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID

import msgspec

from holdfast import embedded, schema
from holdfast.database import Database, OnConnection, without_driver
from holdfast.operations.audit import Audit
from holdfast.operations.base import Namespace, operation, twin
from holdfast.operations.dead import Dead
from holdfast.operations.enqueue import enqueue
from holdfast.operations.events import Events
from holdfast.operations.grants import Grants
from holdfast.operations.health import Health
from holdfast.operations.job import Job
from holdfast.operations.jobs import Jobs
from holdfast.operations.policies import Policies, declare_policy
from holdfast.operations.queues import Queues
from holdfast.operations.retention import Retention
from holdfast.operations.run_steps import Carrier, Load, Steps
from holdfast.operations.schedules import Schedules
from holdfast.operations.settings import Settings
from holdfast.operations.stats import Stats
from holdfast.operations.waiting import Waiting
from holdfast.operations.workers import Workers
from holdfast.task import Registry, Task, named_job
from holdfast.values import limits
from holdfast.values.errors import HoldfastError, UnknownMethod, UnknownOption
from holdfast.values.job import NewJob
from holdfast.values.options import CallKeywords, TaskKeywords, WorkerKeywords
from holdfast.values.secret import mask_dsn

if TYPE_CHECKING:
    from holdfast.values.call import Call
    from holdfast.worker.context import Context
    from holdfast.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
N = TypeVar("N", bound=Namespace)

# Methods of earlier releases, and the line to write instead. `Namespace.called` has it for `hf.jobs()`.
MOVED = {
    "access": "grants.grant(…), hf.grants.revoke(…) or hf.grants.list()",
    "cancel": "jobs.cancel_many(ids)",
    "cancel_matching": "jobs.cancel_matching(…)",
    "configure": "settings.configure(queue, …)",
    "doctor": "health.doctor()",
    "due_exports": "retention.due()",
    "enqueue_new": "enqueue(job)",
    "export": "retention.export(…)",
    "gather": "jobs.gather(jobs)",
    "metrics": "health.metrics()",
    "partitions": "retention.list()",
    "pause": "queues.pause(queue)",
    "purge": "dead.purge_many(…)",
    "replay": "dead.replay_many(…)",
    "reset_retry_policy": "policies.reset(task)",
    "resume": "queues.resume(queue)",
    "retry_policies": "policies.list()",
    "set_retry_policy": "policies.set(task, policy)",
    "statistics": "stats.recent(…)",
    "why": "jobs.why(id)",
}


class _NotContext:
    """A stand-in for every type but `Context`: a first parameter that accepts it is an ordinary one."""


class Declare(Protocol):
    """A decorator that declares a task. The worker fills in a first parameter of the type `Context`."""

    @overload
    def __call__(self, function: Callable[Concatenate[_NotContext, ...], R], /) -> Task[..., R]: ...
    @overload
    def __call__(self, function: "Callable[Concatenate[Context, P], R]", /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class _namespace(Generic[N]):  # noqa: N801 - used as a function
    """A namespace of the client, created at its first use."""

    def __init__(self, kind: type[N]) -> None:
        self.kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: "Holdfast", owner: type) -> N: ...
    def __get__(self, instance: "Holdfast | None", owner: type) -> Any:
        if instance is None:
            return self
        made = vars(instance)[self._name] = self.kind(instance)
        return made


class Holdfast:
    """One queue system in one database.

    `dsn` is a libpq connection string, or a URL of SQLAlchemy (postgresql+psycopg://…). Without it
    HOLDFAST_DSN is used. Without both, a private PostgreSQL is started and migrated when first needed.
    `transaction_pooling` is for PgBouncer in transaction mode, which is detected if you leave it out.
    """

    audit = _namespace(Audit)
    dead = _namespace(Dead)
    events = _namespace(Events)
    grants = _namespace(Grants)
    health = _namespace(Health)
    jobs = _namespace(Jobs)
    policies = _namespace(Policies)
    queues = _namespace(Queues)
    retention = _namespace(Retention)
    schedules = _namespace(Schedules)
    settings = _namespace(Settings)
    stats = _namespace(Stats)
    workers = _namespace(Workers)

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
        if dsn is not None and not (isinstance(dsn, str) and dsn.strip()):
            # An unset variable must not lead to another database.
            raise limits.refused(
                "dsn", dsn, "must be a connection string", hint="Leave it out for the default."
            )
        self.tasks = Registry()
        self.resources = Resources(
            dsn and without_driver(dsn),
            transaction_pooling=transaction_pooling,
            pool_size=limits.integer("pool_size", pool_size, range(1, 1001)),
        )
        self.resources.root = self
        self._bound: OnConnection | None = None

    # Connections.

    def on(self, conn: Any) -> Self:
        """Return this client on the caller's connection. Its operations join the transaction there.

        `hf.on(conn).enqueue("mail.welcome", {"user_id": 7})`. `conn` is a psycopg connection or cursor.
        """
        client = object.__new__(type(self))
        client.tasks, client.resources = self.tasks, self.resources
        client._bound = OnConnection(conn)
        return client

    @property
    def carrier(self) -> Carrier:
        """The object that sends calls: on the caller's connection, or through the pool."""
        return self._bound or self.resources.database

    @property
    def database(self) -> Database:
        """The database of this client. Without a DSN, this starts the embedded server."""
        return self.resources.database

    @property
    def dsn(self) -> str:
        """The DSN of the database. Without one, this starts the embedded server."""
        return self.database.dsn

    def migrate(self, *, roles: bool = False) -> list[str]:
        """Install or upgrade the schema, and return the names of the files that were applied.

        With `roles`, also create holdfast_producer, _worker, _viewer and _operator if the cluster lacks them,
        and grant them their rights in this database.
        """
        with self.database.connection() as connection:
            return schema.apply(connection, roles=limits.truth("roles", roles))

    def verify(self) -> None:
        """Raise `SchemaMissing`, `SchemaOutdated` or `SchemaTooNew` unless the schema fits this release."""
        with self.database.pooled_connection() as connection:
            schema.verify(connection)

    def close(self) -> None:
        """Close the connections, and release the embedded server if there is one.

        A later call connects again.
        """
        if self._bound is None:  # otherwise the connection is the caller's
            self.resources.close()

    async def aclose(self) -> None:
        """The async twin of `close`."""
        await asyncio.to_thread(self.close)  # stopping the embedded server takes a moment

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Tasks.

    @overload
    def task(self, function: Callable[Concatenate[_NotContext, ...], R], /) -> Task[..., R]: ...
    @overload
    def task(self, function: "Callable[Concatenate[Context, P], R]", /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, *, name: str | None = None, **options: Unpack[TaskKeywords]) -> Declare: ...
    def task(
        self, function: Callable[..., Any] | None = None, *, name: str | None = None, **options: Any
    ) -> Any:
        """Declare a function as a task, with or without options: `@hf.task` or `@hf.task(queue="mail")`."""

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            task: Task[..., Any] = Task(function, name=name, enqueuer=self, **options)
            if task.settings.timeout is not None and not task.is_async and task.settings.isolation is None:
                raise limits.refused(
                    "timeout",
                    options["timeout"],
                    f"task {task.name} is a plain function, and a thread cannot be stopped",
                    hint='Make it async, or add isolation="process".',
                )
            self.tasks.register(task)
            return task

        return declare if function is None else declare(function)

    # Enqueueing.

    @operation
    def enqueue(
        self, task: str | NewJob, payload: Any = msgspec.UNSET, **options: Unpack[CallKeywords]
    ) -> "Call[Job[Any]] | Steps[Job[Any]]":
        """Enqueue a task by name with any JSON as its payload, or the result of `task.call(…)`.

        The task need not be declared here. If it is, its queue, priority and delay apply unless the options
        set others. The options are those of `task.options(…)`.
        """
        if isinstance(task, NewJob):
            new_job = task
            if payload is not msgspec.UNSET:
                raise limits.refused("payload", payload, "is part of the call already", hint="Leave it out.")
            for option, value in options.items():
                raise limits.refused(
                    option, value, "cannot be given with a call", hint="Write task.options(…).call(…)."
                )
        else:
            new_job = named_job(task, payload, self.tasks, **options)
        if self.resources.opened is None:
            _refuse_without_guard()
        if self.tasks.around_enqueue is None:
            return enqueue(new_job, lambda rows: Job(self.resources.root, rows[0][0]))
        return self._enqueue_around(new_job)

    aenqueue = twin(enqueue)

    def _enqueue_around(self, new_job: NewJob) -> Steps[Job[Any]]:
        assert self.tasks.around_enqueue is not None  # noqa: S101
        with self.tasks.around_enqueue((new_job,)) as sending:
            (new_job,) = sending.jobs
            job_id = yield enqueue(new_job, lambda rows: str(rows[0][0]))
            sending.ids = (job_id,)
        return Job(self.resources.root, job_id)

    @operation
    def enqueue_many(self, jobs: Iterable[NewJob]) -> Steps[list[Job[Any]]]:
        """Enqueue thousands of jobs at once, all or none.

        `hf.enqueue_many(welcome.call(user_id=i) for i in range(10_000))`
        """
        if self.resources.opened is None:
            _refuse_without_guard()
        if self.tasks.around_enqueue is None:
            ids = yield Load(jobs)
        else:
            with self.tasks.around_enqueue(iter(jobs)) as sending:
                ids = sending.ids = yield Load(sending.jobs)
        holdfast = self.resources.root
        return [Job(holdfast, job_id) for job_id in ids]

    aenqueue_many = twin(enqueue_many)

    def job(self, job_id: UUID | str) -> Job[Any]:
        """Return a handle on a job by its id, without asking the database."""
        return Job(self, limits.identity("id", job_id))

    # Running.

    def worker(self, **options: Unpack[WorkerKeywords]) -> "Worker":
        """Return a worker for the tasks declared here. Its options are in `WorkerKeywords`."""
        _refuse_without_guard()
        from holdfast.worker.worker import Worker  # noqa: PLC0415 - only workers load it

        UnknownOption.check(options, WorkerKeywords.__annotations__, owner="a worker")
        self.verify()
        self._declare()
        return Worker(self.database, self.tasks, **options)

    def _declare(self) -> None:
        """Store the policies and schedules of the tasks. They never replace those of an operator."""
        for task in self.tasks:
            policy, attempts = task.settings.retry, task.settings.max_attempts
            if policy is not None or attempts is not None:
                self.carrier.run(declare_policy(task.name, policy, attempts))
        self.schedules.declare(self.tasks)

    def __repr__(self) -> str:
        where = self.resources.known_dsn
        return f"<Holdfast {mask_dsn(where) if where else 'embedded'}>"

    if not TYPE_CHECKING:  # a type checker knows all attributes

        def __getattr__(self, name: str) -> Any:
            """Raise an error for a method of an earlier release that names its successor."""
            if name in MOVED:
                raise _moved(name, f"hf.{MOVED[name]}")
            noun, dot, method = _replacement(name[1:]).partition(".")
            if name.startswith("a") and dot:
                raise _moved(name, f"await hf.{noun}.a{method}")
            raise AttributeError(f"'Holdfast' object has no attribute {name!r}", name=name, obj=self)


class Resources:
    """The connections and threads of a client, opened at first use and shared with the clients of `on`."""

    # The client that goes through the pool: handles on new jobs outlive the caller's connection.
    root: "Holdfast"

    def __init__(self, dsn: str | None, *, transaction_pooling: bool | None, pool_size: int) -> None:
        self._given = dsn
        self._transaction_pooling = transaction_pooling
        self._pool_size = pool_size
        self._lock = threading.RLock()
        self.opened: Database | None = None
        self._server: embedded.Server | None = None
        self._waiting: Waiting | None = None

    @property
    def known_dsn(self) -> str | None:
        return self.opened.dsn if self.opened else self._given or _dsn_of_environment()

    @property
    def database(self) -> Database:
        if self.opened is not None:
            return self.opened
        with self._lock:
            if self.opened is None:
                dsn = self._given or _dsn_of_environment() or self._start_embedded()
                self.opened = Database(
                    dsn, transaction_pooling=self._transaction_pooling, pool_size=self._pool_size
                )
            return self.opened

    @property
    def waiting(self) -> Waiting:
        """The thread of this process that waits for the ends of jobs."""
        with self._lock:
            if self._waiting is None:
                self._waiting = Waiting(self.database)
            return self._waiting

    def _start_embedded(self) -> str:
        if self._server is None:
            self._server = embedded.start_for_project()
        with Database(self._server.dsn).connection() as connection:
            schema.apply(connection)
        return self._server.dsn

    def close(self) -> None:
        with self._lock:
            if self._waiting is not None:
                self._waiting.close()
                self._waiting = None
            if self.opened is not None:
                self.opened.close()
                self.opened = None
            if self._server is not None:
                self._server.stop()
                self._server = None


def _replacement(name: str) -> str:
    """Return what to write instead of a method of an earlier release; nothing for any other name."""
    namespace = vars(Holdfast).get(name)
    if isinstance(namespace, _namespace):
        return f"{name}.{namespace.kind.called}"
    return MOVED.get(name, "")


def _moved(name: str, line: str) -> UnknownMethod:
    return UnknownMethod(f"a Holdfast has no method {name!r} any more", hint=f"Write {line}.", method=name)


def _refuse_without_guard() -> None:
    """Raise in a child process that imports the script of its parent: it would repeat the parent's work."""
    loaded = sys.modules.get("multiprocessing.process")
    if loaded is not None and getattr(loaded.current_process(), "_inheriting", False):
        raise HoldfastError(
            "a child process imports this script, and must not enqueue jobs or run a worker again",
            hint='Put that code under if __name__ == "__main__":',
        )


def _dsn_of_environment() -> str:
    return without_driver(os.environ.get("HOLDFAST_DSN", ""))

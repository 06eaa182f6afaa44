"""Functions that can be enqueued: name ↔ function, arguments ↔ JSON, call ↔ job.

A `Task` still behaves like its function: calling it runs it at once. `enqueue` takes the same arguments and
makes a job. `call` makes the job without enqueueing it, and `options` sets options of the call.
"""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_type_hints,
    overload,
)

import msgspec

from holdfast.values import limits
from holdfast.values.arguments import Arguments, alternatives
from holdfast.values.encoding import Unstorable, from_hook, to_json
from holdfast.values.errors import (
    BadName,
    BadPayload,
    BadResult,
    HoldfastError,
    UnknownMethod,
    UnknownTask,
    nearest,
    suggest,
)
from holdfast.values.job import Cancel, Done, GiveUp, JobId, NewJob, Outcome, Retry, Snooze
from holdfast.values.options import (
    ELSEWHERE as OPTIONS_ELSEWHERE,
    CallKeywords,
    CallOptions,
    TaskKeywords,
    TaskOptions,
)

if TYPE_CHECKING:
    from holdfast.operations.claiming import Claimed, Report
    from holdfast.operations.job import Job
    from holdfast.worker.context import Context

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
Result = TypeVar("Result")

# The same limit as for payloads. PostgreSQL's own limit, 1 GiB, would break the connection.
RESULT_LIMIT = 64 * 1024 * 1024

# Methods of other queues, and the line to write instead.
_ENQUEUE, _AENQUEUE = "{task}.enqueue({call})", "await {task}.aenqueue({call})"
_LATER, _AT = "{task}.options(delay=60).enqueue({call})", "{task}.options(run_at=…).enqueue({call})"
_OPTIONS = '{task}.options(queue="…").enqueue({call})'
ELSEWHERE = {
    **dict.fromkeys(["delay", "send", "defer", "perform_async", "enqueue_job", "apply_async"], _ENQUEUE),
    **dict.fromkeys(["kiq", "defer_async", "adelay", "asend", "adefer"], _AENQUEUE),
    **dict.fromkeys(["enqueue_in", "schedule", "perform_in", "delay_in"], _LATER),
    **dict.fromkeys(["enqueue_at", "perform_at"], _AT),
    **dict.fromkeys(["send_with_options", "configure", "kicker"], _OPTIONS),
    **dict.fromkeys(["s", "si", "signature", "message"], "{task}.call({call}), for hf.enqueue_many([…])"),
}

# Words that may be given as arguments by mistake, and the option that is meant.
_CALL_WORDS = {word: ours for word, ours in OPTIONS_ELSEWHERE.items() if ours in CallKeywords.__annotations__}
_CALL_WORDS |= {option: option for option in CallKeywords.__annotations__}

Ending: TypeAlias = Done | Retry | Snooze | Cancel | GiveUp
"""The outcomes that a handler may return instead of a result."""

_OUTCOMES = frozenset(get_args(Outcome))


class Enqueuer(Protocol):
    """An object that sends new jobs to the database: a client, with or without the caller's connection."""

    # Properties, because a type checker does not see an operation as a method.
    @property
    def enqueue(self) -> Callable[[NewJob], Any]: ...
    @property
    def aenqueue(self) -> Callable[[NewJob], Coroutine[Any, Any, Any]]: ...
    def on(self, conn: Any, /) -> "Enqueuer": ...


class _NoEnqueuer:
    """The enqueuer of a task that was declared without a client."""

    def __init__(self, task: str) -> None:
        self._task = task

    def enqueue(self, _job: NewJob) -> Never:
        raise HoldfastError(f"task {self._task} belongs to no Holdfast", hint="Declare it with @hf.task().")

    async def aenqueue(self, job: NewJob) -> Never:
        self.enqueue(job)

    def on(self, _conn: Any, /) -> Self:
        return self


class Task(Generic[P, R_co]):
    """A named function, made by `@hf.task(…)`.

    `R_co` is the return type of the function itself: a coroutine if it is async. Enqueueing unwraps it.
    """

    name: str
    settings: TaskOptions
    overrides: CallOptions
    function: Callable[..., R_co]
    is_async: bool
    new_job: Callable[..., NewJob]

    def __init__(
        self,
        function: Callable[..., R_co],
        *,
        name: str | None = None,
        enqueuer: Enqueuer | None = None,
        **options: Unpack[TaskKeywords],
    ) -> None:
        _check_function(function)
        functools.update_wrapper(self, function)
        self.function = function
        self.name = limits.name("task", name) if name is not None else _derived_name(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.settings = TaskOptions.of(f"task {self.name}", options)
        # Both are read for each job, so they are resolved once here.
        self.recorded = self.settings.timeout is not None or self.settings.at_most_once
        self.isolated = self.settings.isolation is not None
        self.overrides = CallOptions()
        self.arguments = Arguments(self.name, function, options=_CALL_WORDS)
        self._enqueuer = enqueuer or _NoEnqueuer(self.name)
        self._connection: Any = None
        self.new_job = self.overrides.jobs(self.name, self.settings)

    @overload
    def __call__(self, context: "Context", /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function at once, in this process."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    if not TYPE_CHECKING:  # a type checker knows all attributes

        def __getattr__(self, name: str) -> Any:
            """Raise an error for a method of another queue that names ours."""
            if name in ELSEWHERE and "function" in self.__dict__:
                said = ", ".join(f"{parameter}=…" for parameter in self.arguments.signature.required)
                line = ELSEWHERE[name].format(task=_plain_name(self.function), call=said)
                raise UnknownMethod(
                    f"task {self.name} has no method {name!r}", hint=f"Write {line}.", method=name
                )
            raise AttributeError(f"'Task' object has no attribute {name!r}")

    @overload
    def enqueue(
        self: "Task[P, Coroutine[Any, Any, Result | Ending]]", /, *args: P.args, **kwargs: P.kwargs
    ) -> "Job[Result]": ...
    @overload
    def enqueue(self: "Task[P, Result | Ending]", /, *args: P.args, **kwargs: P.kwargs) -> "Job[Result]": ...
    def enqueue(self, /, *args: Any, **kwargs: Any) -> Any:
        """Put this call on its queue. Leave out the `Context`: the worker fills it in.

        Raises `BadArguments` or `BadPayload` before anything is sent.
        """
        return self._enqueuer.enqueue(self.new_job(payload=self.arguments.encode(args, kwargs)))

    @overload
    async def aenqueue(
        self: "Task[P, Coroutine[Any, Any, Result | Ending]]", /, *args: P.args, **kwargs: P.kwargs
    ) -> "Job[Result]": ...
    @overload
    async def aenqueue(
        self: "Task[P, Result | Ending]", /, *args: P.args, **kwargs: P.kwargs
    ) -> "Job[Result]": ...
    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> Any:
        """The async twin of `enqueue`."""
        return await self._enqueuer.aenqueue(self.new_job(payload=self.arguments.encode(args, kwargs)))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return this call as a job without enqueueing it, for `hf.enqueue_many`."""
        if self._connection is not None:
            raise limits.refused(
                "conn",
                self._connection,
                "a call that is not enqueued yet has no connection",
                hint="Give it when you enqueue: hf.on(conn).enqueue_many(…).",
            )
        return self.new_job(payload=self.arguments.encode(args, kwargs))

    def options(self, **overrides: Unpack[CallKeywords]) -> "Task[P, R_co]":
        """Return the same task with these options for its calls: `task.options(delay=60).enqueue(…)`.

        Later options override earlier ones; `None` leaves an option as it was.
        """
        task = copy.copy(self)
        task.overrides = CallOptions.of(f"a call of {self.name}", overrides).over(self.overrides)
        task.new_job = task.overrides.jobs(self.name, self.settings)
        return task

    def on(self, conn: Any) -> "Task[P, R_co]":
        """Return the same task on the caller's connection. Its jobs are enqueued in the transaction there."""
        task = copy.copy(self)
        task._enqueuer, task._connection = self._enqueuer.on(conn), conn  # noqa: SLF001 - the same class
        return task

    @functools.cached_property
    def context(self) -> str | None:
        """The name of the parameter that the worker fills in with its `Context`."""
        return self.arguments.context

    def decode(self, payload: bytes | str) -> dict[str, Any]:
        """Return the keyword arguments for the function; raises `BadArguments`."""
        return self.arguments.decode(payload)

    def encode_result(self, value: Any) -> str | None:
        """Return a handler's result as JSON text, or `None` if it returned nothing; raises `BadResult`."""
        return None if value is None else result_json(self.name, value)

    def decode_result(self, value: Any) -> Any:
        """Convert a stored result (parsed JSON) to the function's return type.

        The annotation is not enforced: a result that does not fit it is returned unchanged.
        """
        try:
            return msgspec.convert(value, self._returns, str_keys=True, dec_hook=from_hook)
        except (msgspec.ValidationError, TypeError):
            return value

    @functools.cached_property
    def _returns(self) -> Any:
        try:
            hint = get_type_hints(inspect.unwrap(self.function), include_extras=True).get("return", Any)
        except (NameError, TypeError):
            return Any
        results = tuple(kind for kind in alternatives(hint) if kind not in _OUTCOMES)
        return Union[results] if results else Any  # noqa: UP007 - its members are only known at run time


def result_json(task: str, value: Any) -> str:
    """Return a result as JSON text; raises `BadResult`."""
    try:
        text = to_json(value).decode()
    except Unstorable as trouble:
        path = "result" + trouble.path
        raise BadResult(
            f"{task}: the handler's result cannot be stored: {path}: {trouble.reason}",
            hint="Return plain values, or store the rest elsewhere and return its location.",
            task=task,
            path=path,
        ) from trouble
    if len(text) > RESULT_LIMIT:
        raise BadResult(
            f"{task}: the handler's result has {len(text):,} characters of JSON",
            hint=f"At most {RESULT_LIMIT:,} can be stored; store it elsewhere and return its location.",
            task=task,
        )
    return text


class Sending:
    """Jobs that are being enqueued, and later their ids."""

    __slots__ = ("ids", "jobs")

    def __init__(self, jobs: Iterable[NewJob]) -> None:
        self.jobs = jobs
        self.ids: Sequence[JobId] = ()


# Context managers around an enqueue and a run, for tracing. The first may add headers to the jobs, and the
# second receives the outcome. Neither may raise. A single job comes as a tuple of one.
AroundEnqueue = Callable[[Iterable[NewJob]], AbstractContextManager[Sending]]
AroundRun = Callable[["Claimed"], AbstractContextManager[Callable[["Report"], None]]]


class Registry:
    """The tasks known in this process, by name."""

    around_enqueue: AroundEnqueue | None = None

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self.around: AroundRun | None = None

    def register(self, task: Task[..., Any], *, name: str | None = None) -> None:
        """Add a task, under another `name` if its jobs use that one."""
        known = self._tasks.setdefault(name or task.name, task)
        if known is not task:
            raise BadName(
                f"task {task.name!r} is already declared in {_place(known.function)}",
                hint="Give one of the two another name=….",
                field="task",
                value=task.name,
            )

    def get(self, name: str) -> Task[..., Any]:
        """Return the task of this name. Raises `UnknownTask`, which suggests a similar name."""
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(
                f"no task {name!r} is declared here",
                hint=f"{suggest(name, self._tasks)} Is the module that declares it imported?",
                name=name,
                suggestion=nearest(name, self._tasks),
            ) from None

    def settings(self, name: str) -> TaskOptions:
        """Return the options of a task, or the defaults if it is not known here."""
        known = self._tasks.get(name)
        return TaskOptions() if known is None else known.settings

    def names(self) -> list[str]:
        return sorted(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)


def named_job(
    task: str,
    payload: Any = msgspec.UNSET,
    tasks: Registry | None = None,
    /,
    **options: Unpack[CallKeywords],
) -> NewJob:
    """Return a job of a task by name, which need not be among `tasks`. The payload may be any JSON.

    A task among them supplies the queue, priority and delay that the call does not give.
    """
    if isinstance(task, Task):
        raise limits.refused("task", task, "must be the name of a task", hint="Write task.enqueue(…).")
    limits.name("task", task)
    call = CallOptions.of(f"a call of {task}", options)
    try:
        text = "{}" if payload is msgspec.UNSET else to_json(payload).decode()
    except Unstorable as trouble:
        path = "payload" + trouble.path
        raise BadPayload(f"{task}: {path}: {trouble.reason}", task=task, path=path) from trouble
    known = TaskOptions() if tasks is None else tasks.settings(task)
    declared = known.declared_attempts if call.max_attempts is None else None
    places = TaskOptions(queue=known.queue, priority=known.priority, delay=known.delay)
    return call.jobs(task, places)(payload=text, declared_attempts=declared)


def _check_function(function: Callable[..., Any]) -> None:
    if not callable(function):
        raise limits.refused("function", function, "must be a function", hint='A name is name="…".')
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise limits.refused(
            "function",
            function,
            "is a generator, which has no single result",
            hint="Return instead of yield.",
        )


def _plain_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "task")


def _derived_name(function: Callable[..., Any]) -> str:
    qualname = getattr(function, "__qualname__", type(function).__qualname__).replace("<locals>.", "")
    name = f"{_module(function)}.{qualname}".lower()
    try:
        return limits.name("task", name)
    except BadName as error:
        raise BadName(
            f"no task name can be made of {name!r}", hint="Give one with name=….", field="task", value=name
        ) from error


def _module(function: Callable[..., Any]) -> str:
    """Return the module of a function, under the name by which a worker imports it.

    A script that declares and enqueues its own tasks is `__main__` only to itself, and `__mp_main__` to its
    child processes.
    """
    module: str = function.__module__
    if module not in {"__main__", "__mp_main__"}:
        return module
    main = vars(sys.modules["__main__"])
    if module == "__mp_main__":  # not yet among the modules while a child imports it
        main = getattr(function, "__globals__", main)
    if spec := main.get("__spec__"):
        return str(spec.name).removesuffix(".__main__")
    file = main.get("__file__")
    # A script piped in has a name like "<stdin>".
    return Path(file).stem if file and not file.startswith("<") else module


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)

"""How an operation is written once and offered twice: sync, and async with the prefix `a`.

    class Dead(Namespace):
        @operation
        def replay(self, job: UUID | str, *, start_over: bool = False) -> Call[JobState]:
            return …
        areplay = twin(replay)

    hf.dead.replay(id)           ─► build the call ─► carrier.run(call)
    await hf.dead.areplay(id)    ─► build the call ─► await carrier.arun(call)

An operation that needs several calls is a generator: it yields each step and receives the answer.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

from holdfast.values.call import Call
from holdfast.values.errors import UnknownMethod, UnknownOption
from holdfast.values.job import JobId, NewJob

if TYPE_CHECKING:
    from holdfast.client import Holdfast

N = TypeVar("N", bound="Carried")
P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Load:
    """A step that enqueues many jobs; the answer is their ids."""

    jobs: Iterable[NewJob]


@dataclass(frozen=True, slots=True)
class Blocking:
    """A step that has no async form: the twin runs it in a thread."""

    work: Callable[[], Any]


Step: TypeAlias = Call[Any] | Load | Blocking
Steps: TypeAlias = Generator[Step, Any, T]


class Carrier(Protocol):
    """Takes calls to the database: through a pool, or on the caller's connection."""

    def run(self, call: Call[T]) -> T: ...
    async def arun(self, call: Call[T]) -> T: ...
    def load(self, jobs: Iterable[NewJob]) -> Sequence[JobId]: ...
    async def aload(self, jobs: Iterable[NewJob]) -> Sequence[JobId]: ...


class Carried(Protocol):
    """An object whose methods can be operations."""

    @property
    def carrier(self) -> Carrier: ...


class operation(Generic[N, P, T]):  # noqa: N801 - a decorator
    """Derive a sync method from one that builds a call, or yields several."""

    def __init__(self, build: Callable[Concatenate[N, P], Call[T] | Steps[T]]) -> None:
        functools.update_wrapper(self, build)
        self.build = build
        self._method = _method(build)

    def __set_name__(self, owner: type[N], name: str) -> None:
        self._method.__name__, self._method.__qualname__ = name, f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type[N]) -> Self: ...
    @overload
    def __get__(self, instance: N, owner: type[N]) -> Callable[P, T]: ...
    def __get__(self, instance: N | None, owner: type[N]) -> Any:
        return self if instance is None else MethodType(self._method, instance)

    def __call__(self, instance: N, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._method(instance, *args, **kwargs)


class twin(Generic[N, P, T]):  # noqa: N801 - used as a function
    """Derive the async method of an operation: `areplay = twin(replay)`."""

    def __init__(self, original: operation[N, P, T]) -> None:
        self.original = original
        self._method = _async_method(original.build)
        self.__doc__ = self._method.__doc__

    def __set_name__(self, owner: type[N], name: str) -> None:
        self._method.__name__, self._method.__qualname__ = name, f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type[N]) -> Self: ...
    @overload
    def __get__(self, instance: N, owner: type[N]) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: N | None, owner: type[N]) -> Any:
        return self if instance is None else MethodType(self._method, instance)

    def __call__(self, instance: N, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._method(instance, *args, **kwargs)


def _method(build: Callable[Concatenate[N, P], Call[T] | Steps[T]]) -> Callable[Concatenate[N, P], T]:
    @functools.wraps(build)
    def method(self: N, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if "conn" in kwargs:
            raise _connection_given(build)
        try:
            built = build(self, *args, **kwargs)
        except TypeError:
            _refuse_unknown(build, kwargs)
            raise
        return self.carrier.run(built) if isinstance(built, Call) else run_steps(built, self.carrier)

    return method


def _async_method(
    build: Callable[Concatenate[N, P], Call[T] | Steps[T]],
) -> Callable[Concatenate[N, P], Coroutine[Any, Any, T]]:
    @functools.wraps(build)
    async def method(self: N, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if "conn" in kwargs:
            raise _connection_given(build)
        try:
            built = build(self, *args, **kwargs)
        except TypeError:
            _refuse_unknown(build, kwargs)
            raise
        if isinstance(built, Call):
            return await self.carrier.arun(built)
        return await arun_steps(built, self.carrier)

    method.__doc__ = f"The async twin of `{getattr(build, '__name__', '')}`."
    return method


def run_steps(steps: Steps[T], carrier: Carrier) -> T:
    """Carry out one step after the other; return what the generator returns."""
    try:
        step = next(steps)
        while True:
            try:
                answer = _run_step(step, carrier)
            except BaseException as error:  # noqa: BLE001 - raised in the generator, which may handle it
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def arun_steps(steps: Steps[T], carrier: Carrier) -> T:
    """The async twin of `run_steps`."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await _arun_step(step, carrier)
            except BaseException as error:  # noqa: BLE001
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _run_step(step: Step, carrier: Carrier) -> Any:
    match step:
        case Load():
            return carrier.load(step.jobs)
        case Blocking():
            return step.work()
        case _:
            return carrier.run(step)


async def _arun_step(step: Step, carrier: Carrier) -> Any:
    match step:
        case Load():
            return await carrier.aload(step.jobs)
        case Blocking():
            return await asyncio.to_thread(step.work)
        case _:
            return await carrier.arun(step)


def _connection_given(build: Callable[..., Any]) -> UnknownOption:
    return UnknownOption(
        f"{build.__name__}() has no option 'conn'",
        hint="Give the connection once: hf.on(conn), then call the method of that.",
        option="conn",
        suggestion="on",
    )


def _refuse_unknown(build: Callable[..., Any], options: Iterable[str]) -> None:
    """Raise `UnknownOption` if the operation has no parameter of one of these names."""
    known = list(inspect.signature(build).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
        return
    names = [parameter.name for parameter in known]
    for option in options:
        if option not in names:
            raise UnknownOption.among(option, names, owner=f"{build.__name__}()")


class Namespace:
    """The operations of one noun, such as `hf.dead`."""

    # The method that does what calling the namespace did before it was one.
    called: ClassVar[str] = "list()"

    def __init__(self, holdfast: "Holdfast") -> None:
        self._holdfast = holdfast

    @property
    def carrier(self) -> Carrier:
        return self._holdfast.carrier

    if not TYPE_CHECKING:  # a type checker already knows that it cannot be called

        def __call__(self, *_args: object, **_options: object) -> Never:
            noun = type(self).__name__.lower()
            raise UnknownMethod(
                f"hf.{noun} is no function any more", hint=f"Write hf.{noun}.{self.called}.", method=noun
            )

"""Operations are written once and offered twice: sync, and async with the prefix `a`.

    class Dead(Namespace):
        @operation
        def replay(self, job: UUID | str, *, start_over: bool = False) -> Call[JobState]:
            return …
        areplay = twin(replay)

    hf.dead.replay(id)           ─► build the call ─► carrier.run(call)
    await hf.dead.areplay(id)    ─► build the call ─► await carrier.arun(call)

An operation that needs several calls is a generator: it yields each step and receives the answer. A `stream`
also yields pages, whose values go to the caller one by one. `run_steps.py` carries out the steps.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from holdfast.operations.run_steps import (
    Carrier,
    HasCarrier,
    Steps,
    Stream,
    arun_steps,
    astream_steps,
    run_steps,
    stream_steps,
)
from holdfast.values.call import Call
from holdfast.values.errors import UnknownMethod, UnknownOption

if TYPE_CHECKING:
    from holdfast.client import Holdfast

N = TypeVar("N", bound=HasCarrier)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Method(Generic[N, P, R]):
    """A method that was derived from a function, and knows its own name."""

    def __init__(self, method: Callable[Concatenate[N, P], R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type[N], name: str) -> None:
        self._method.__name__, self._method.__qualname__ = name, f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type[N]) -> Self: ...
    @overload
    def __get__(self, instance: N, owner: type[N]) -> Callable[P, R]: ...
    def __get__(self, instance: N | None, owner: type[N]) -> Any:
        return self if instance is None else MethodType(self._method, instance)

    def __call__(self, instance: N, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._method(instance, *args, **kwargs)


class operation(Method[N, P, T], Generic[N, P, T]):  # noqa: N801 - a decorator
    """Derive a sync method from one that builds a call, or yields several."""

    def __init__(self, build: Callable[Concatenate[N, P], Call[T] | Steps[T]]) -> None:
        @functools.wraps(build)
        def method(self: N, /, *args: P.args, **kwargs: P.kwargs) -> T:
            built = _built(build, self, args, kwargs)
            return self.carrier.run(built) if isinstance(built, Call) else run_steps(built, self.carrier)

        super().__init__(method)
        functools.update_wrapper(self, build)
        self.build = build


class stream(Method[N, P, Iterator[T]], Generic[N, P, T]):  # noqa: N801 - a decorator
    """Derive a sync iterator from a generator of steps and pages."""

    def __init__(self, build: Callable[Concatenate[N, P], Stream[T]]) -> None:
        @functools.wraps(build)
        def method(self: N, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return stream_steps(_built(build, self, args, kwargs), self.carrier)

        super().__init__(method)
        functools.update_wrapper(self, build)
        self.build = build


class Twin(Method[N, P, R], Generic[N, P, R]):
    """The async method of an operation or a stream."""

    def __init__(
        self, original: operation[N, P, Any] | stream[N, P, Any], method: Callable[Concatenate[N, P], R]
    ) -> None:
        method.__doc__ = f"The async twin of `{original.build.__name__}`."
        super().__init__(method)
        self.original = original


@overload
def twin(original: operation[N, P, T]) -> Twin[N, P, Coroutine[Any, Any, T]]: ...
@overload
def twin(original: stream[N, P, T]) -> Twin[N, P, AsyncIterator[T]]: ...
def twin(original: operation[N, P, T] | stream[N, P, T]) -> Any:
    """Derive the async method: `areplay = twin(replay)`."""
    match original:
        case operation(build=build):
            return Twin(original, _awaiting(build))
        case stream(build=build):
            return Twin(original, _async_iterating(build))


def _awaiting(
    build: Callable[Concatenate[N, P], Call[T] | Steps[T]],
) -> Callable[Concatenate[N, P], Coroutine[Any, Any, T]]:
    @functools.wraps(build)
    async def method(self: N, /, *args: P.args, **kwargs: P.kwargs) -> T:
        built = _built(build, self, args, kwargs)
        if isinstance(built, Call):
            return await self.carrier.arun(built)
        return await arun_steps(built, self.carrier)

    return method


def _async_iterating(
    build: Callable[Concatenate[N, P], Stream[T]],
) -> Callable[Concatenate[N, P], AsyncIterator[T]]:
    @functools.wraps(build)
    def method(self: N, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return astream_steps(_built(build, self, args, kwargs), self.carrier)

    return method


def _built(
    build: Callable[..., T], instance: HasCarrier, args: Sequence[Any], options: Mapping[str, Any]
) -> T:
    """Build the call or the steps; refuse options that the operation does not have."""
    if "conn" in options:
        raise _connection_given(build)
    try:
        return build(instance, *args, **options)
    except TypeError:
        _refuse_unknown(build, options)
        raise


def _connection_given(build: Callable[..., Any]) -> UnknownOption:
    return UnknownOption(
        f"{build.__name__}() has no option 'conn'",
        hint="Write hf.on(conn), and call the method on its result.",
        option="conn",
        suggestion="on",
    )


def _refuse_unknown(build: Callable[..., Any], options: Iterable[str]) -> None:
    """Raise `UnknownOption` if the operation has no parameter of one of these names."""
    known = list(inspect.signature(build).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
        return
    UnknownOption.check(options, [parameter.name for parameter in known], owner=f"{build.__name__}()")


class Namespace:
    """The operations of one noun, such as `hf.dead`."""

    # The method that replaces calling the namespace itself, which older releases allowed.
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
                f"hf.{noun} is no longer a function", hint=f"Write hf.{noun}.{self.called}.", method=noun
            )

"""Runs operations that need several calls. Such an operation is a generator that yields steps:

    def gathering(…) -> Steps[list[Any]]:
        ends = yield ends_of(ids)    # a call: its answer is sent back
        yield sleep_for(0.1)         # an action
        return …

The same generator runs sync and async. Only the runners in this file exist twice. The steps that a job makes
with `ctx.step` are something else.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from holdfast.values.call import Call
from holdfast.values.job import JobId, NewJob

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Load:
    """A step that enqueues many jobs; the answer is their ids."""

    jobs: Iterable[NewJob]


@dataclass(frozen=True, slots=True)
class Action:
    """A step that is not a call. Without `arun`, the async twin calls `run` in a thread."""

    run: Callable[[], Any]
    arun: Callable[[], Awaitable[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """A page of a stream, yielded between steps. Its values go to the caller."""

    values: Sequence[T_co]


Step: TypeAlias = Call[Any] | Load | Action
Steps: TypeAlias = Generator[Step, Any, T]
Stream: TypeAlias = Generator[Step | Page[T], Any, None]


class Carrier(Protocol):
    """An object that sends calls to the database: through a pool, or on the caller's connection."""

    def run(self, call: Call[T]) -> T: ...
    async def arun(self, call: Call[T]) -> T: ...
    def load(self, jobs: Iterable[NewJob]) -> Sequence[JobId]: ...
    async def aload(self, jobs: Iterable[NewJob]) -> Sequence[JobId]: ...


class HasCarrier(Protocol):
    """An object with a carrier, such as `hf.dead` or a job. Its methods can be operations."""

    @property
    def carrier(self) -> Carrier: ...


def sleep_for(seconds: float) -> Action:
    """Return a step that sleeps for this many seconds."""
    return Action(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))


def run_steps(steps: Steps[T], carrier: Carrier) -> T:
    """Run the steps in order, and return the generator's return value.

    An error of a step is raised in the generator, which may handle it.
    """
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


def stream_steps(steps: Stream[T], carrier: Carrier) -> Iterator[T]:
    """Run the steps in order, and yield the values of each page. An error of a step ends the stream."""
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(step, Page):
            yield from step.values
        else:
            answer = _run_step(step, carrier)


async def astream_steps(steps: Stream[T], carrier: Carrier) -> AsyncIterator[T]:
    """The async twin of `stream_steps`."""
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(step, Page):
            for value in step.values:
                yield value
        else:
            answer = await _arun_step(step, carrier)


def _run_step(step: Step, carrier: Carrier) -> Any:
    match step:
        case Load():
            return carrier.load(step.jobs)
        case Action():
            return step.run()
        case _:
            return carrier.run(step)


async def _arun_step(step: Step, carrier: Carrier) -> Any:
    match step:
        case Load():
            return await carrier.aload(step.jobs)
        case Action(run, arun):
            return await (asyncio.to_thread(run) if arun is None else arun())
        case _:
            return await carrier.arun(step)

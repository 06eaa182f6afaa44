"""Steps of a test against a database and workers: written once, run sync or async.

A step is a call, whose answer is sent back, or a run of a worker.
"""

import asyncio
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from holdfast.client import Holdfast
from holdfast.testing.stage import Stage
from holdfast.values.call import Call
from holdfast.values.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.worker.worker import Worker

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shift:
    """A worker with these options, which runs until it finds nothing more to do."""

    options: Mapping[str, Any] = field(default_factory=dict)
    stage: Stage | None = None

    def worker(self, holdfast: Holdfast) -> "Worker":
        worker = holdfast.worker(**{"notify": False, **self.options})
        if self.stage is not None:
            from holdfast.testing.staged_runtime import StagedRuntime  # noqa: PLC0415 - a worker is loaded only when one runs

            worker.make_runtime = partial(StagedRuntime, self.stage)
        return worker


Steps: TypeAlias = Generator[Call[Any] | Shift, Any, T]


def carry(holdfast: Holdfast, steps: Steps[T], conn: Any = None) -> T:
    carrier = holdfast.carrier if conn is None else holdfast.on(conn).carrier
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        match step:
            case Shift():
                answer = None
                step.worker(holdfast).run(drain=True)
            case _:
                answer = carrier.run(step)


async def acarry(holdfast: Holdfast, steps: Steps[T], conn: Any = None) -> T:
    carrier = holdfast.carrier if conn is None else holdfast.on(conn).carrier
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        match step:
            case Shift():
                answer = None
                worker = await asyncio.to_thread(step.worker, holdfast)
                await worker.arun(drain=True)
            case _:
                answer = await carrier.arun(step)


def refuse_in_a_loop(what: str, instead: str) -> None:
    """Refuse to run in an event loop: a worker needs its own, and a thread can have only one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise HoldfastError(f"{what} runs a worker, which it cannot in a coroutine", hint=f"Write {instead}.")

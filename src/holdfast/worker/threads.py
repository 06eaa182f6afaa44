"""Threads for handlers that are plain functions: as many as there are such handlers at work."""

import asyncio
import contextlib
import contextvars
import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Work = Callable[[], None]


class Threads:
    """They are daemons, unlike those of `concurrent.futures`: a handler that cannot be stopped must not keep
    the process from ending.

    One that was given up on goes on in its thread, and the next handler gets another.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._busy: set[asyncio.Future[Any]] = set()
        self._closed = False
        self._numbers = itertools.count(1)

    @property
    def busy(self) -> int:
        return len(self._busy)

    async def run(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def work() -> None:
            value, error = None, None
            try:
                value = context.run(function, **arguments)
            except BaseException as raised:  # noqa: BLE001 - handed over to whoever waits
                error = raised
            self._busy.discard(done)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(_set_result, done, value, error)

        self._busy.add(done)
        (self._idle.pop() if self._idle else self._start()).put(work)
        value, error = await done
        # As a value until here: a Future refuses a StopIteration, and whoever awaits it would wait for ever.
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let the idle ones go, and the others as soon as they are done."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _start(self) -> SimpleQueue[_Work | None]:
        queue: SimpleQueue[_Work | None] = SimpleQueue()

        def main() -> None:
            while (work := queue.get()) is not None:
                work()
                del work
                if self._closed:
                    return
                self._idle.append(queue)

        threading.Thread(target=main, name=f"holdfast-{next(self._numbers)}", daemon=True).start()
        return queue


def _set_result(done: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if not done.done():
        done.set_result((value, error))

"""Threads for handlers that are plain functions, one for each running handler."""

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
    """A pool of daemon threads, unlike those of `concurrent.futures`.

    A handler that cannot be stopped must not keep the process from ending. An abandoned handler continues in
    its thread, and the next handler gets another thread.
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
            except BaseException as raised:  # noqa: BLE001 - raised again where the result is awaited
                error = raised
            self._busy.discard(done)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nothing awaits the result
                loop.call_soon_threadsafe(_set_result, done, value, error)

        self._busy.add(done)
        (self._idle.pop() if self._idle else self._start()).put(work)
        value, error = await done
        # Passed as a value: a Future refuses a StopIteration, and the await would never end.
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """End the idle threads now, and the others when their handlers have returned."""
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

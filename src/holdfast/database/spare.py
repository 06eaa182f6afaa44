"""A session that another one stands in for while the server has no connection left."""

import random
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from holdfast.database.session import Session, Settings
from holdfast.values.call import Call
from holdfast.values.errors import DatabaseUnavailable, TooManyConnections

T = TypeVar("T")

# After a refusal, the spare session is used for this long before the next try. The workers that were refused
# together do not try again together.
PATIENCE = (2.0, 5.0)
# A connection that was not used for this long is closed.
UNUSED_SECONDS = 10.0


class StandIn(Protocol):
    """Runs a call on another session. With settings it is a transaction that has them."""

    def __call__(
        self, call: Call[T], settings: Settings | None, *, deadline: float | None = None
    ) -> Coroutine[Any, Any, T]: ...


class SparedSession:
    """A session of a worker, and what to do when the server refuses its connection."""

    def __init__(self, own: Session, stand_in: StandIn) -> None:
        self.own = own
        self._stand_in = stand_in
        self._try_at = 0.0

    async def run(
        self, call: Call[T], *, deadline: float | None = None, settings: Settings | None = None
    ) -> T:
        """Run a call. With `settings` it is a transaction that waits for the disk."""
        if time.monotonic() >= self._try_at:
            try:
                return await self.own.run(call, deadline=deadline, settings=settings)
            except TooManyConnections:  # so it certainly did nothing
                self._wait()
        own = self.own.settings
        if settings is not None:
            own = tuple(pair for pair in own if pair[0] != "synchronous_commit")
        return await self._stand_in(call, (*own, *(settings or ())), deadline=deadline)

    def _wait(self) -> None:
        self._try_at = time.monotonic() + random.uniform(*PATIENCE)  # noqa: S311 - no secret

    async def open(self) -> None:
        """Connect early, while other work runs. If the server refuses, the first call tries again."""
        if time.monotonic() < self._try_at:
            return
        try:
            await self.own.open()
        except TooManyConnections:
            self._wait()
        except DatabaseUnavailable:
            pass

    async def close(self) -> None:
        await self.own.close()

    async def close_unused(self, seconds: float) -> None:
        await self.own.close_unused(seconds)

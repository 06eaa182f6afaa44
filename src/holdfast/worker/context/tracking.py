"""`ctx.track(items)`: progress by counting items."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.values import limits

if TYPE_CHECKING:
    from holdfast.worker.context.context import Context

T = TypeVar("T")


class Track(Generic[T]):
    """An iterable, for `for` or `async for`, that reports progress after each item.

    If the job was cancelled, it ends the attempt before the next item.
    """

    def __init__(
        self,
        context: "Context",
        items: Iterable[T] | AsyncIterable[T],
        *,
        total: int | None,
        stage: str | None,
        message: str | None,
    ) -> None:
        if not isinstance(items, Iterable | AsyncIterable):
            raise limits.refused("items", items, "must be an iterable")
        if total is not None:
            limits.integer("total", total, range(2**63))
        elif isinstance(items, Sized):
            total = len(items)
        self._context = context
        self._items = items
        self._total = total
        self._message = message
        self._percent = 0
        context.progress(0 if total else None, stage=stage, message=message)

    def __iter__(self) -> Iterator[T]:
        if not isinstance(self._items, Iterable):
            raise limits.refused("items", self._items, "is async", hint="Write async for … in ctx.track(…).")
        for number, item in enumerate(self._items, 1):
            self._context.raise_if_cancelled()
            yield item
            self._set_note(number)

    async def __aiter__(self) -> AsyncIterator[T]:
        number = 0
        if isinstance(self._items, AsyncIterable):
            async for item in self._items:
                yield item
                self._set_note(number := number + 1)
        else:
            for item in self:
                yield item

    def _set_note(self, number: int) -> None:
        if self._total is None:
            counted = f"{number:,} done"
            self._context.progress(message=f"{self._message}: {counted}" if self._message else counted)
            return
        percent = min(100 * number // max(self._total, 1), 100)
        if percent != self._percent:
            self._percent = percent
            self._context.progress(percent)

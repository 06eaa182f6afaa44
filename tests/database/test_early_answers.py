"""An answer that comes while the end of a large call is still being sent is not waited for again."""

import asyncio
import threading

import pytest

from holdfast import Holdfast, PayloadTooLarge
from holdfast.database.libpq import Wire

LARGE = "x" * 8_000_000  # much more than a socket takes at once; the server refuses it


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Have libpq read the answer with the last flush, as it does if the server is quick."""
    flushed: list[None] = []
    flush = Wire.flush

    def flush_and_read(wire: Wire) -> None:
        flush(wire)
        flushed.append(None)
        if not wire.unsent:
            wire.poll.poll(10_000)
            wire._pgconn.consume_input()

    monkeypatch.setattr(Wire, "flush", flush_and_read)
    return flushed


def test_a_large_enqueue_ends_when_its_answer_came_early(hf: Holdfast, flushes: list[None]) -> None:
    hf.enqueue("noop")
    answers: list[Exception] = []

    def enqueue() -> None:
        try:
            hf.enqueue("noop", LARGE)
        except PayloadTooLarge as error:
            answers.append(error)

    enqueueing = threading.Thread(target=enqueue, daemon=True)
    enqueueing.start()
    enqueueing.join(10)
    assert len(answers) == 1
    assert flushes


def test_a_large_enqueue_on_a_loop_ends_when_its_answer_came_early(hf: Holdfast, flushes: list[None]) -> None:
    async def main() -> None:
        await hf.aenqueue("noop")
        with pytest.raises(PayloadTooLarge):
            async with asyncio.timeout(10):
                await hf.aenqueue("noop", LARGE)
        await hf.aclose()

    asyncio.run(main())
    assert flushes

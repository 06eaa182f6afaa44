"""An answer that comes while the end of a large call is still being sent is not waited for again."""

import asyncio
import threading

import pytest

from holdfast import Holdfast
from holdfast.database.libpq import Wire

LARGE = "x" * 250_000  # more than a socket takes at once


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Have libpq read the answer with the last flush, as it does if the server is quick."""
    flushed = []
    flush = Wire.flush

    def flush_and_read(wire: Wire) -> None:
        flush(wire)
        flushed.append(None)
        if not wire.unsent:
            wire.poll.poll(10_000)
            wire._pgconn.consume_input()

    monkeypatch.setattr(Wire, "flush", flush_and_read)
    return flushed


def test_a_large_enqueue_ends_when_its_answer_came_early(hf: Holdfast, flushes):
    hf.enqueue("noop")
    enqueueing = threading.Thread(target=hf.enqueue, args=("noop", LARGE), daemon=True)
    enqueueing.start()
    enqueueing.join(10)
    assert not enqueueing.is_alive()
    assert flushes
    assert len(hf.jobs.list()) == 2


def test_a_large_enqueue_on_a_loop_ends_when_its_answer_came_early(hf: Holdfast, flushes):
    async def main() -> None:
        await hf.aenqueue("noop")
        async with asyncio.timeout(10):
            await hf.aenqueue("noop", LARGE)
        await hf.aclose()

    asyncio.run(main())
    assert flushes
    assert len(hf.jobs.list()) == 2

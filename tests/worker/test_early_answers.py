"""An answer that comes while the end of a large call is still being sent is not waited for again."""

import asyncio
import threading

import pytest

from holdfast import Holdfast
from holdfast.database.libpq import Wire

LARGE = "x" * 250_000  # more than a socket takes at once


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Have libpq read the answer with the last push, as it does if the server is quick."""
    pushed = []
    push = Wire.push

    def push_and_read(wire: Wire) -> None:
        push(wire)
        pushed.append(None)
        if not wire.unsent:
            wire.poll.poll(10_000)
            wire._pgconn.consume_input()

    monkeypatch.setattr(Wire, "push", push_and_read)
    return pushed


def test_a_large_enqueue_ends_when_its_answer_came_early(hf: Holdfast, pushes):
    hf.enqueue("noop")
    enqueueing = threading.Thread(target=hf.enqueue, args=("noop", LARGE), daemon=True)
    enqueueing.start()
    enqueueing.join(10)
    assert not enqueueing.is_alive()
    assert pushes
    assert len(hf.jobs()) == 2


def test_a_large_enqueue_on_a_loop_ends_when_its_answer_came_early(hf: Holdfast, pushes):
    async def main() -> None:
        await hf.aenqueue("noop")
        async with asyncio.timeout(10):
            await hf.aenqueue("noop", LARGE)
        await hf.aclose()

    asyncio.run(main())
    assert pushes
    assert len(hf.jobs()) == 2

"""The duties of a worker, as the worker times them."""

import asyncio

import pytest

from holdfast import Holdfast
from holdfast.worker import duties
from holdfast.worker.duties import FIRST_PROMOTED, Duties


@pytest.mark.parametrize(("due", "hastens"), [(FIRST_PROMOTED + 1, False), (1, True)])
def test_what_it_made_pending_itself_does_not_hasten_the_next_promotion(
    hf: Holdfast, clock, monkeypatch, due, hastens
):
    monkeypatch.setattr(duties, "MOMENT", 0)

    @hf.task(name="note")
    async def note() -> None: ...

    async def main() -> bool:
        session = hf.database.session()
        its = Duties(session, lease_time=30, due=lambda: None, alert=lambda: False)
        try:
            await its.promote()
            assert its.is_behind is not hastens
            its.heard()
            timers = asyncio.Event()
            asyncio.get_running_loop().call_later(0, timers.set)  # it comes after those that are due
            await timers.wait()
            if not hastens:  # what came while the last one was under way is looked at, all the same
                assert await its.promote() == duties.MOMENT
                assert await its.promote() == duties.PROMOTE_SECONDS
            return its.promote_now.is_set()
        finally:
            await session.close()

    hf.enqueue_many(note.options(delay=60).call() for _ in range(due))
    clock.advance(minutes=2)
    assert asyncio.run(main()) is hastens

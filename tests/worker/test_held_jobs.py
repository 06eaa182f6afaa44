"""What a worker has in hand, where no other test sees it."""

import asyncio
import math
import time

from holdfast.operations.claiming import Claimed, Report
from holdfast.worker.held import HeldJobs


def job(name: str, lease: str = "lease", *, priority: int = 100, suspect: bool = False) -> Claimed:
    return Claimed(lease, name, "task", "{}", 1, 3, "default", priority, suspect, 0, None)


def taken(held: HeldJobs, *jobs: Claimed) -> list[Claimed]:
    held.in_flight.add(jobs[0].lease)
    return held.take(jobs[0].lease, list(jobs))


async def settle_down() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_nothing_is_started_on_a_lease_that_may_have_run_out() -> None:
    async def main() -> None:
        held = HeldJobs()
        held.lease_valid_until = time.monotonic() - 1
        taken(held, job("a"))
        slot = asyncio.create_task(held.next())
        await settle_down()
        assert not slot.done()
        held.lease_valid_until = math.inf
        held.wake_slots()
        assert (await slot).id == "a"

    asyncio.run(main())


def test_only_as_many_slots_wake_as_there_are_jobs() -> None:
    async def main() -> None:
        held = HeldJobs()
        slots = [asyncio.create_task(held.next()) for _ in range(5)]
        await settle_down()
        taken(held, job("a"), job("b"))
        await settle_down()
        assert [slot.done() for slot in slots] == [True, True, False, False, False]
        assert held.close() == []
        assert [await slot for slot in slots[2:]] == [None, None, None]

    asyncio.run(main())


def test_a_slot_that_was_cancelled_is_not_called_instead_of_another() -> None:
    async def main() -> None:
        held = HeldJobs()
        first, second = (asyncio.create_task(held.next()) for _ in range(2))
        await settle_down()
        first.cancel()
        await settle_down()
        taken(held, job("a"))
        assert (await second).id == "a"

    asyncio.run(main())


def test_the_answer_to_a_claim_from_before_the_loss_is_not_taken() -> None:
    async def main() -> None:
        held = HeldJobs()
        held.in_flight.add("lease")
        held.drop_all()
        assert held.take("lease", [job("a")]) == []
        assert held.is_empty()
        assert not held.buffer

    asyncio.run(main())


def test_a_suspect_goes_first() -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a"), job("b"))
        taken(held, job("urgent", "other"), job("s", "other", suspect=True))
        assert [(await held.next()).id for _ in range(4)] == ["s", "a", "b", "urgent"]

    asyncio.run(main())


def test_a_more_urgent_job_overtakes_what_waits_in_the_buffer() -> None:
    async def main() -> None:
        held = HeldJobs()
        buffer = held.buffer
        taken(held, job("a"), job("b"), job("c", priority=50), job("d", priority=50))
        taken(held, job("e", priority=150), job("f"), job("g", priority=50), job("h", priority=30))
        taken(held, job("i", priority=30))
        assert "".join([job.id for job in buffer]) == "eabfcdghi"
        taken(held, job("j", priority=50), job("s", priority=30, suspect=True))
        taken(held, job("k", priority=200))
        assert "".join([(await held.next()).id for _ in range(12)]) == "skeabfcdgjhi"

    asyncio.run(main())


def test_a_report_settles_only_its_own_lease() -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a", "new"))
        assert held.remove_reported([Report("a", "old", "completed")]) == [None]
        assert not held.is_empty()
        [settled] = held.remove_reported([Report("a", "new", "completed")])
        assert settled.id == "a"
        assert held.is_empty()

    asyncio.run(main())

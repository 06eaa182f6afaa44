"""The jobs that a worker holds, and the signals by which its parts wake each other."""

import asyncio
import math
import time
from uuid import UUID, uuid4

import pytest

from holdfast.operations.claiming import Claimed, Report
from holdfast.values.errors import WorkerLost
from holdfast.worker import held as held_module
from holdfast.worker.held import HeldJobs, Running
from tests.waiting import Told


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


# Signals: what a part does to the jobs, and which part that wakes.


@pytest.mark.parametrize(("low", "wakes"), [(1, False), (2, True), (3, True)])
def test_a_free_slot_wakes_the_claimer_only_if_few_jobs_wait(low: int, wakes: bool) -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a"), job("b"))
        held.low = low
        held.freed()
        assert held.claim_now.is_set() is wakes
        assert held.pace.jobs == 1, "it counts for the pace, either way"
        assert not held.hinted, "a free slot does not mean that there is work"

    asyncio.run(main())


def test_a_hint_wakes_the_claimer_and_is_remembered() -> None:
    async def main() -> None:
        held = HeldJobs()
        held.hint()
        assert held.claim_now.is_set()
        assert held.hinted

    asyncio.run(main())


@pytest.mark.parametrize("suspect", [False, True])
def test_the_end_of_a_suspect_lets_the_claimer_look_for_the_next(suspect: bool) -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a", suspect=suspect))
        held.settle([Report("a", "lease", "completed")], [], 0.1)
        assert (held.hinted, held.claim_now.is_set()) == (suspect, suspect)

    asyncio.run(main())


def test_a_suspect_that_is_held_under_another_lease_has_not_ended() -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a", "new", suspect=True))
        held.settle([Report("a", "old", "completed")], [], 0.1)
        assert not held.hinted

    asyncio.run(main())


@pytest.mark.parametrize(
    ("outcome", "again"),
    [("completed", False), ("cancelled", False), ("released", False), ("failed", True), ("snoozed", True)],
)
def test_a_job_that_may_run_again_soon_wakes_the_promotion(outcome: str, again: bool) -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a"), job("b"))
        held.settle([Report("a", "lease", outcome), Report("b", "lease", "completed")], [], 0.1)
        assert held.retry_soon.is_set() is again
        assert (held.reported, held.retry_reported) == (True, again), "a drain asks for it"

    asyncio.run(main())


def test_all_is_written_until_something_is_reported() -> None:
    async def main() -> None:
        held = HeldJobs()
        assert held.all_written.is_set()
        assert not held.report_now.is_set()
        held.report(Report("a", "lease", "completed"))
        assert not held.all_written.is_set()
        assert held.report_now.is_set()

    asyncio.run(main())


def test_jobs_in_the_buffer_or_running_are_not_unwritten() -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a"), job("b"), job("c"))
        assert held.unwritten == 0
        first = await held.next()
        me = asyncio.current_task()
        assert first is not None
        assert me is not None
        running = Running(first, me, 0.0)
        held.running.add(running)
        assert held.unwritten == 0
        held.running.discard(running)
        assert held.unwritten == 1
        held.settle([Report("a", "lease", "completed")], [], 0.1)
        assert held.unwritten == 0

    asyncio.run(main())


@pytest.mark.parametrize("before", [0, held_module.ADVANCE_JOBS - 2])
def test_the_heads_advance_after_very_many_claims(before: int) -> None:
    async def main() -> None:
        held = HeldJobs()
        held.claimed = before
        taken(held, job("a"))
        assert not held.advance_now.is_set()
        taken(held, job("b"))
        assert held.advance_now.is_set() is (before > 0)

    asyncio.run(main())


def test_a_worker_that_has_taken_jobs_is_not_idle() -> None:
    async def main() -> None:
        held = HeldJobs()
        held.idle.set()
        held.in_flight.add("lease")
        held.take("lease", [])
        assert held.idle.is_set(), "a claim that found nothing changes nothing"
        taken(held, job("a"))
        assert not held.idle.is_set()

    asyncio.run(main())


def test_the_last_job_to_go_lets_a_drain_look() -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a"), job("b"))
        held.remove_reported([Report("a", "lease", "completed")])
        assert not held.changed.is_set()
        held.remove_reported([Report("b", "lease", "completed")])
        assert held.changed.is_set()

    asyncio.run(main())


THE_WORKER, EARLIER = uuid4(), uuid4()


@pytest.mark.parametrize(("worker", "lost"), [(THE_WORKER, True), (EARLIER, False), (None, False)])
def test_only_the_loss_of_the_present_registration_counts(
    told: Told, worker: UUID | None, lost: bool
) -> None:
    async def main() -> None:
        held = HeldJobs()
        held.worker = str(THE_WORKER)
        held.declare_lost(WorkerLost("lost", worker=worker))
        assert held.lost.is_set() is lost
        held.declare_lost(WorkerLost("lost", worker=worker))  # the claimer and the keeper both notice it

    asyncio.run(main())
    assert len(told.named("worker.lost")) == int(lost)


def test_a_loss_drops_the_jobs_and_lets_a_drain_look() -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a"))
        held.in_flight.add("other")
        held.drop_all()
        assert held.is_empty()
        assert not held.buffer
        assert held.changed.is_set()

    asyncio.run(main())


def test_jobs_that_were_dropped_are_not_the_end_of_a_drain() -> None:
    async def main() -> None:
        held = HeldJobs()
        taken(held, job("a"))
        held.drop_all()
        assert held.is_empty()
        assert held.reported, "so that it looks again"

    asyncio.run(main())

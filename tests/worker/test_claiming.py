"""A worker takes what it knows and can run: no more, no less, in few round trips."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, JobState
from holdfast.operations import claiming
from holdfast.worker import claimer, demand, pace
from holdfast.worker.held import HeldJobs
from tests.fixtures import Ask, AsyncTask, Counts, Drain, StartWorker, Until
from tests.waiting import Told


@pytest.fixture
def slow(hf: Holdfast, gate: threading.Event) -> AsyncTask[int]:
    @hf.task(name="slow")
    async def slow(ctx: Context) -> int:
        while not gate.is_set():  # noqa: ASYNC110 - the gate is in another thread
            await asyncio.sleep(0.01)
        return ctx.attempt

    return slow


@pytest.fixture
def ran() -> list[str]:
    """What the jobs of `note` were told, in the order in which they ran."""
    return []


@pytest.fixture
def note(hf: Holdfast, ran: list[str]) -> AsyncTask[None]:
    @hf.task(name="note")
    async def note(what: str) -> None:
        ran.append(what)

    return note


@pytest.fixture
def held(ask: Ask) -> Callable[[], int]:
    """How many jobs workers hold."""
    return lambda: ask("select count(*) from holdfast.job where state = 'claimed'")[0][0]


def test_a_worker_leaves_alone_what_it_does_not_know(hf: Holdfast, drain: Drain, counts: Counts) -> None:
    @hf.task(name="known")
    async def known() -> None: ...

    unknown = hf.enqueue("unknown", priority=200)
    known.enqueue()
    drain()
    assert counts() == {"completed": 1, "pending": 1}
    assert unknown.refresh().attempt == 0


def test_a_worker_leaves_other_queues_alone(hf: Holdfast, drain: Drain, counts: Counts) -> None:
    @hf.task(name="known")
    async def known() -> None: ...

    for queue in ("a", "b", "c"):
        known.options(queue=queue).enqueue()
    drain(queues=["a", "b"])
    assert counts() == {"completed": 2, "pending": 1}


def test_more_urgent_jobs_run_first(hf: Holdfast, drain: Drain) -> None:
    ran: list[int] = []

    @hf.task(name="note")
    async def note(priority: int) -> None:
        ran.append(priority)

    for priority in (30, 100, 150, 100, 30, 150):
        note.options(priority=priority).enqueue(priority)
    drain(concurrency=1)
    assert ran == [150, 150, 100, 100, 30, 30]


@pytest.mark.parametrize("busy_since", ["just now", "a while"])
def test_an_urgent_job_overtakes_what_a_busy_worker_has_fetched(
    hf: Holdfast,
    brisk: None,
    work: StartWorker,
    slow: AsyncTask[int],
    note: AsyncTask[None],
    ran: list[str],
    gate: threading.Event,
    until: Until,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    busy_since: str,
) -> None:

    hf.enqueue_many(note.call("at first") for _ in range(200))
    slow.enqueue()
    hf.enqueue_many(note.call("others") for _ in range(400))
    work(concurrency=1, poll_interval=60)
    until(lambda: len(ran) == 200 and ask("select from holdfast.worker where asleep and above = 100"))
    last = note.options(priority=100).enqueue("as urgent as these")
    urgent = note.options(priority=101).enqueue("urgent")
    until(lambda: urgent.refresh().state is JobState.CLAIMED)
    assert last.refresh().state is JobState.PENDING
    gate.set()
    until(lambda: len(ran) == 602)
    assert ran[200:] == ["urgent", *["others"] * 400, "as urgent as these"]


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each claim has asked for."""
    asked: list[int] = []
    claim = claiming.claim

    def noted(**options: Any) -> Any:
        asked.append(options["amount"])
        return claim(**options)

    monkeypatch.setattr(claiming, "claim", noted)
    return asked


@pytest.mark.parametrize("urgent", [101, 100])
def test_while_urgent_jobs_come_others_are_claimed_in_small_batches(
    hf: Holdfast,
    work: StartWorker,
    note: AsyncTask[None],
    ran: list[str],
    until: Until,
    ask: Ask,
    claims: list[int],
    monkeypatch: pytest.MonkeyPatch,
    urgent: int,
) -> None:
    monkeypatch.setattr(demand, "PREFETCH_SECONDS", 3600)
    monkeypatch.setattr(demand, "URGENT_SECONDS", 3600)

    work(poll_interval=60)
    until(lambda: ask("select from holdfast.worker where asleep and above is null"))
    claims.clear()
    hf.enqueue_many(
        [note.options(priority=urgent).call("urgent"), *(note.call("others") for _ in range(2000))]
    )
    until(lambda: len(ran) == 2001)
    assert (max(claims) <= demand.URGENT_BATCH) == (urgent > 100)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long to wait, as each step of a claimer has said."""
    pauses: list[float] = []
    step = claimer.Claimer.step

    async def noted(self: claimer.Claimer) -> float:
        pauses.append(await step(self))
        return pauses[-1]

    monkeypatch.setattr(claimer.Claimer, "step", noted)
    return pauses


def test_a_worker_without_a_free_slot_leaves_urgent_jobs_to_others(
    hf: Holdfast,
    work: StartWorker,
    slow: AsyncTask[int],
    gate: threading.Event,
    until: Until,
    ask: Ask,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demand, "URGENT_SECONDS", 3600)

    work(concurrency=2, poll_interval=60)
    until(lambda: ask("select from holdfast.worker where asleep and above is null"))
    hf.enqueue_many([slow.options(priority=200).call(), slow.call()])
    until(lambda: len(hf.jobs.list(state="running")) == 2)
    until(lambda: ask("select from holdfast.worker where asleep and above = 100"))
    before = len(pauses)
    urgent = slow.options(priority=200).enqueue()
    until(lambda: len(pauses) > before)
    assert urgent.refresh().state is JobState.PENDING
    gate.set()
    until(lambda: urgent.refresh().state is JobState.COMPLETED)


def test_urgent_jobs_are_fetched_before_the_next_batch_of_others(
    hf: Holdfast,
    work: StartWorker,
    note: AsyncTask[None],
    ran: list[str],
    until: Until,
    ask: Ask,
    told: Told,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demand, "PREFETCH_SECONDS", 3600)
    monkeypatch.setattr(demand, "URGENT_SECONDS", 3600)
    monkeypatch.setattr(demand, "URGENT_PAUSE", 1800)
    monkeypatch.setattr(demand, "SURPLUS_SECONDS", 1800)

    work(poll_interval=60)
    until(lambda: ask("select from holdfast.worker where asleep and above is null"))
    hf.enqueue_many([note.options(priority=101).call("urgent"), *(note.call("others") for _ in range(2000))])
    until(lambda: pauses[-1] > 1000 and ask("select from holdfast.worker where asleep and above = 100"))
    before = len(told.named("jobs.claimed"))
    note.options(priority=101).enqueue("urgent")
    until(lambda: ran.count("urgent") == 2)

    def claimed() -> list[int]:
        """How many jobs each claim has brought; a claim for further urgent ones may bring none."""
        return [len(event["jobs"]) for event in told.named("jobs.claimed")[before:] if event["jobs"]]

    until(lambda: len(claimed()) > 1)
    assert claimed()[:2] == [1, demand.URGENT_BATCH]


def test_no_more_urgent_jobs_are_fetched_than_can_be_begun(
    hf: Holdfast,
    brisk: None,
    work: StartWorker,
    slow: AsyncTask[int],
    note: AsyncTask[None],
    ran: list[str],
    gate: threading.Event,
    until: Until,
    ask: Ask,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    hf.enqueue_many(note.call("at first") for _ in range(200))
    slow.enqueue()
    hf.enqueue_many(note.call("others") for _ in range(400))
    work(concurrency=2, poll_interval=60)
    slow.options(priority=200).enqueue()
    until(lambda: len(hf.jobs.list(state="running")) == 2)
    until(lambda: ask("select from holdfast.worker where asleep and above = 100"))
    hf.enqueue_many(note.options(priority=150).call("urgent") for _ in range(50))
    fetched = "select from holdfast.jobs where state = 'claimed' and priority = 150"
    until(lambda: ask(fetched) and pauses[-1])  # it looks no further
    assert len(ask(fetched)) <= 2
    gate.set()
    until(lambda: ran.count("urgent") == 50)


def test_urgent_jobs_that_found_no_room_are_fetched_when_a_slot_comes_free(
    hf: Holdfast,
    brisk: None,
    work: StartWorker,
    slow: AsyncTask[int],
    note: AsyncTask[None],
    ran: list[str],
    gate: threading.Event,
    until: Until,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = threading.Event()

    @hf.task(name="other")
    async def other() -> None:
        while not later.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.01)

    hf.enqueue_many(note.call("at first") for _ in range(200))
    slow.enqueue()
    hf.enqueue_many(other.call() for _ in range(400))
    work(concurrency=2, poll_interval=60)
    until(lambda: len(hf.jobs.list(state="running")) == 2)
    until(lambda: ask("select from holdfast.worker where asleep and above = 100"))
    hf.enqueue_many(note.options(priority=150).call("urgent") for _ in range(50))
    until(lambda: ask("select from holdfast.jobs where state = 'claimed' and priority = 150"))
    gate.set()  # one slot comes free, runs the two that are at hand, and goes on with another
    until(lambda: len(ask("select from holdfast.jobs where state <> 'pending' and priority = 150")) > 2)
    later.set()
    until(lambda: ran.count("urgent") == 50)


def test_no_more_than_concurrency_run_at_once(hf: Holdfast, drain: Drain) -> None:
    now, most = 0, 0

    @hf.task(name="count")
    async def count() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    hf.enqueue_many(count.call() for _ in range(300))
    drain(concurrency=7)
    assert most == 7


def test_slow_jobs_are_not_hoarded(
    hf: Holdfast,
    work: StartWorker,
    slow: AsyncTask[int],
    held: Callable[[], int],
    until: Until,
) -> None:
    hf.enqueue_many(slow.call() for _ in range(100))
    work(concurrency=2)
    until(lambda: len(hf.jobs.list(state="running")) == 2)  # seen at work after half a second
    assert held() == 2


def test_what_waits_behind_slow_jobs_is_given_back_for_others(
    hf: Holdfast,
    work: StartWorker,
    slow: AsyncTask[int],
    gate: threading.Event,
    held: Callable[[], int],
    until: Until,
    ask: Ask,
) -> None:
    @hf.task(name="quick")
    async def quick() -> None: ...

    hf.enqueue_many(quick.call() for _ in range(4000))
    hf.enqueue_many(slow.call() for _ in range(300))
    work(concurrency=2, poll_interval=60)
    until(lambda: ask("select count(*) from holdfast.finished") == [(4000,)])
    until(lambda: held() == 2)
    # Going by the quick ones, it had taken too many.
    pending = (
        "select count(*), max(attempt), count(last_lease) > 20 from holdfast.job where state = 'pending'"
    )
    assert ask(pending) == [(298, 0, True)]
    gate.set()
    until(lambda: ask("select count(*), max(attempt) from holdfast.finished") == [(4300, 1)])


def test_the_heads_follow_a_worker_that_claims_very_many(
    hf: Holdfast, drain: Drain, carried: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    @hf.task(name="noop")
    async def noop() -> None: ...

    hf.enqueue_many(noop.call() for _ in range(10_000))
    drain()
    assert carried["advance"] >= 2, "the one at its start, and at least one more"


def test_a_thousand_jobs_take_few_round_trips(hf: Holdfast, drain: Drain, carried: Counter[str]) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    hf.enqueue_many(noop.call() for _ in range(1000))
    drain()
    assert carried["claim"] < 60
    assert carried["finish"] < 60


def test_the_pace_begins_again_only_after_a_claim_that_found_nothing(
    hf: Holdfast, note: AsyncTask[None], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with one slot often holds no job when it claims the next one, and still must know its pace."""
    begins: list[None] = []
    monkeypatch.setattr(pace.Pace, "begin", lambda _pace: begins.append(None))

    async def main() -> None:
        session, jobs = hf.database.session(), HeldJobs()
        jobs.worker = str(ask("select holdfast.register()")[0][0])
        its = claimer.Claimer(session, jobs, demand.State(1, 60, listens=False), queues=None, tasks=["note"])

        async def claim() -> tuple[int, int]:
            """Claim, and return how many jobs came, and how often the pace has begun again."""
            assert await its.step() == 0
            came = len(jobs.jobs)
            jobs.drop_all()
            return came, len(begins)

        try:
            hf.enqueue_many(note.call("at first") for _ in range(2))
            assert [await claim() for _ in range(3)] == [(1, 1), (1, 1), (0, 1)]
            note.enqueue("later")
            jobs.hint()
            assert await claim() == (1, 2)
        finally:
            await session.close()

    asyncio.run(main())


def test_a_lone_job_is_reported_at_once(hf: Holdfast, work: StartWorker, until: Until) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    work(poll_interval=60)
    job = noop.enqueue()
    done = until(lambda: (seen := job.refresh()).state is JobState.COMPLETED and seen)
    assert (done.finished_at - done.claimed_at).total_seconds() < 3


def test_jobs_that_enqueue_jobs_are_drained_to_the_end(hf: Holdfast, drain: Drain, counts: Counts) -> None:
    @hf.task(name="countdown")
    async def countdown(left: int) -> None:
        if left:
            await countdown.aenqueue(left - 1)
            await countdown.aenqueue(0)

    countdown.enqueue(20)
    drain()
    assert counts() == {"completed": 41}


def test_unwritten_outcomes_stop_the_claims_not_the_number_of_slots(
    hf: Holdfast,
    work: StartWorker,
    slow: AsyncTask[int],
    held: Callable[[], int],
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.worker.demand.MOST_UNWRITTEN", 10)
    hf.enqueue_many(slow.call() for _ in range(40))
    work(concurrency=30)
    until(lambda: held() == 30)


def test_a_wrong_clock_has_no_effect(
    hf: Holdfast, work: StartWorker, until: Until, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    true_time = time.time
    for days in (-1, 1):
        monkeypatch.setattr(time, "time", lambda days=days: true_time() + days * 86_400)
        worker = work(lease_time=5)
        jobs = [noop.enqueue(), noop.options(delay=0.3).enqueue()]
        until(lambda jobs=jobs: all(job.refresh().state is JobState.COMPLETED for job in jobs))
        assert all(0 <= job.refresh().duration.total_seconds() < 3 for job in jobs)
        assert ask("select count(*) from holdfast.worker where lost_at is not null") == [(0,)]
        worker.end()

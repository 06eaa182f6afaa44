"""Several workers: a job wakes a few of them, a wake-up is not lost, and the duties are shared."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, JobState
from holdfast.database import Session
from holdfast.values.call import Call
from holdfast.worker import runtime
from tests.fixtures import Ask, AsyncTask, Counts, StartWorker, Until
from tests.waiting import Told, Work

PERIOD = timedelta(seconds=2)


@pytest.fixture(autouse=True)
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification brings a job."""
    monkeypatch.setattr(runtime, "CHECK_SECONDS", 3600)


@pytest.fixture
def no_second_chance(ask: Ask) -> None:
    """The duties wake no worker for jobs that were left lying."""
    ask("create or replace function holdfast.wake_missed() returns void language sql as ''")


@pytest.fixture
def slow(hf: Holdfast, gate: threading.Event) -> AsyncTask[None]:
    @hf.task(name="slow")
    async def slow() -> None:
        while not gate.is_set():  # noqa: ASYNC110 - the gate is in another thread
            await asyncio.sleep(0.01)

    return slow


@pytest.fixture
def noop(hf: Holdfast) -> AsyncTask[None]:
    @hf.task(name="noop")
    async def noop() -> None: ...

    return noop


@pytest.fixture
def at_rest(carried: Counter[str], until: Until) -> Callable[[], None]:
    """Wait until no worker claims: for a while after it fell asleep it looks for late transactions."""

    def is_at_rest() -> bool:
        before = carried.copy()
        until(lambda: carried["do_duties"] >= before["do_duties"] + 5)
        return carried["claim"] == before["claim"]

    return lambda: until(is_at_rest)


@pytest.fixture
def fleet(
    hf: Holdfast, work: StartWorker, ask: Ask, at_rest: Callable[[], None], until: Until
) -> Callable[..., list[Work]]:
    """`fleet(8)`: as many idle workers."""

    def fleet(amount: int, **options: Any) -> list[Work]:
        workers = [work(hf, **options) for _ in range(amount)]
        until(lambda: ask("select count(*) from holdfast.worker where asleep") == [(amount,)])
        at_rest()
        return workers

    return fleet


# Who is woken.


def test_one_job_wakes_two_of_many_workers(
    fleet: Callable[[int], list[Work]], noop: AsyncTask[None], told: Told, until: Until
) -> None:
    fleet(8)
    before = len(told.named("jobs.claimed"))
    for number in range(1, 6):
        job = noop.enqueue()
        until(lambda job=job: job.refresh().state is JobState.COMPLETED)
        told.wait_for("jobs.claimed", before + 2 * number)
    assert len(told.named("jobs.claimed")) == before + 10


def test_many_jobs_wake_all_workers(
    hf: Holdfast, fleet: Callable[[int], list[Work]], noop: AsyncTask[None], told: Told, until: Until
) -> None:
    fleet(8)
    before = len(told.named("jobs.claimed"))
    hf.enqueue_many(noop.call() for _ in range(1000))
    until(lambda: len({event["worker"] for event in told.named("jobs.claimed")[before:]}) == 8)


def test_a_job_for_later_makes_no_worker_claim(
    fleet: Callable[[int], list[Work]],
    noop: AsyncTask[None],
    carried: Counter[str],
    until: Until,
) -> None:
    fleet(2)
    before = carried.copy()
    noop.options(delay=3600).enqueue()
    until(lambda: carried["promote"] >= before["promote"] + 2)
    assert carried["claim"] == before["claim"]


def test_an_urgent_job_is_brought_to_the_idle_worker_and_not_to_busy_ones(
    hf: Holdfast,
    no_second_chance: None,
    fleet: Callable[..., list[Work]],
    slow: AsyncTask[None],
    noop: AsyncTask[None],
    at_rest: Callable[[], None],
    ask: Ask,
    until: Until,
) -> None:
    fleet(8, concurrency=1)
    for number in range(1, 8):
        slow.enqueue()
        until(
            lambda number=number: (
                ask("select count(*) from holdfast.worker where asleep and above = 100") == [(number,)]
            )
        )
    for _ in range(5):
        until(lambda: ask("select from holdfast.worker where asleep and above is null"))
        at_rest()
        urgent = noop.options(priority=200).enqueue()
        until(lambda urgent=urgent: urgent.refresh().state is JobState.COMPLETED)


# A full worker that is woken.


@pytest.fixture
def woken_while(
    monkeypatch: pytest.MonkeyPatch,
    ask: Ask,
) -> Callable[..., None]:
    """`woken_while("claim", "slow")`: the worker that takes a job is woken by another job of this task.

    That happens just after its claim was carried out, or just before its registration is. From then on the
    other workers can be woken too.
    """

    def woken_while(moment: str, task: str) -> None:
        run, notified = Session.run, runtime.Runtime._notified
        done: list[str] = []
        heard: list[Any] = []

        def hear(self: runtime.Runtime, payloads: set[bytes]) -> None:
            notified(self, payloads)
            heard.append(payloads)

        async def wake() -> None:
            heard.clear()
            ask("select holdfast.enqueue(%s)", task)
            while not heard:  # noqa: ASYNC110 - it comes to this loop
                await asyncio.sleep(0)
            ask("update holdfast.worker set asleep = true")

        async def interrupted(session: Session, call: Call[Any], **options: Any) -> Any:
            name = call.function.name
            if moment == name == "sleep" and call.values[-1] is not None and not done:
                done.append(name)
                await wake()
            answer = await run(session, call, **options)
            if moment == name == "claim" and answer and not done:
                done.append(name)
                await wake()
            return answer

        monkeypatch.setattr(Session, "run", interrupted)
        monkeypatch.setattr(runtime.Runtime, "_notified", hear)

    return woken_while


@pytest.mark.parametrize("moment", ["claim", "sleep"])
def test_a_full_worker_that_is_woken_passes_it_on(
    no_second_chance: None,
    fleet: Callable[..., list[Work]],
    slow: AsyncTask[None],
    woken_while: Callable[..., None],
    until: Until,
    ask: Ask,
    counts: Counts,
    moment: str,
) -> None:
    woken_while(moment, slow.name)
    fleet(2, concurrency=1)
    ask("update holdfast.worker set asleep = id = (select min(id::text)::uuid from holdfast.worker)")
    slow.enqueue()
    until(lambda: "pending" not in counts() and sum(counts().values()) == 2, say=counts)


# The duties.


@pytest.fixture
def looks(ask: Ask) -> Callable[[], list[Any]]:
    """When the last three runs of `recover` took place, the newest first."""

    def looks() -> list[Any]:
        found = ask("select looks from holdfast.duty where name = 'recover'")
        return list(found[0][0]) if found else []

    return looks


def test_several_workers_run_the_duties_as_often_as_one(
    work: StartWorker, looks: Callable[[], list[Any]], carried: Counter[str], until: Until, ask: Ask
) -> None:
    for _ in range(4):
        work()
    [(begun,)] = ask("select holdfast.clock()")
    newest, middle, oldest = until(
        lambda: (seen := looks()) and min(seen) > begun and len(seen) == 3 and seen
    )
    for pause in (newest - middle, middle - oldest):
        assert PERIOD * 0.85 < pause < PERIOD * 2
    assert carried["do_duties"] > 3, "the others have called it too"
    assert carried["recover"] == carried["fold_stats"] == 0


def test_the_duties_go_on_when_workers_have_left(
    work: StartWorker, looks: Callable[[], list[Any]], until: Until, ask: Ask
) -> None:
    workers = [work() for _ in range(3)]
    until(looks)
    for worker in workers[:-1]:
        worker.end()
        [(left_at,)] = ask("select holdfast.clock()")
        until(lambda left_at=left_at: looks()[0] > left_at)

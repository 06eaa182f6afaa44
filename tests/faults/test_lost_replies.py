"""The database did it, but its answer was lost: nothing stays held, nothing happens twice."""

from collections.abc import Iterator

import pytest

from holdfast import Context, DatabaseUnavailable, Holdfast, JobState
from tests.faults.proxy import Proxy
from tests.fixtures import Ask, Counts, StartWorker, Until
from tests.waiting import Told

NEEDLE = "a needle in the answer"


@pytest.fixture
def far(proxy: Proxy) -> Iterator[Holdfast]:
    """A Holdfast whose connections all lead through the proxy."""
    with Holdfast(proxy.dsn) as far:
        yield far


@pytest.fixture
def ran(far: Holdfast) -> list[tuple[int, int]]:
    """The attempts of which a handler was begun."""
    ran: list[tuple[int, int]] = []

    @far.task(name="note")
    async def note(number: int, mark: str, ctx: Context) -> str:
        ran.append((number, ctx.attempt))
        return mark

    @far.task(name="fail")
    async def fail(ctx: Context) -> None:
        ran.append((0, ctx.attempt))
        raise ValueError("no")

    return ran


def has_the_needle(purpose: str, answer: bytes) -> bool:
    return purpose == "claimer" and NEEDLE.encode() in answer


def is_of_a_finish(purpose: str, answer: bytes) -> bool:
    """Nothing was refused, so there is no row; what the connection is set up with has one."""
    return purpose == "finisher" and b"SELECT 0\0" in answer


def test_a_claim_whose_answer_was_lost_is_asked_for_again(
    far: Holdfast,
    ran: list[tuple[int, int]],
    proxy: Proxy,
    work: StartWorker,
    told: Told,
    until: Until,
    counts: Counts,
    ask: Ask,
) -> None:
    work(far)
    proxy.swallow(has_the_needle)
    far.enqueue_many(far.tasks.get("note").call(number, NEEDLE) for number in range(15))
    until(lambda: counts() == {"completed": 15}, say=counts)
    assert proxy.swallowed == 1
    assert len(told.named("claim.failed")) == 1
    assert sorted(ran) == [(number, 1) for number in range(15)]
    assert ask("select distinct attempt from holdfast.finished") == [(1,)]


def test_a_claim_that_cannot_even_be_asked_for_is_given_back(
    far: Holdfast,
    ran: list[tuple[int, int]],
    proxy: Proxy,
    work: StartWorker,
    told: Told,
    until: Until,
    counts: Counts,
) -> None:
    work(far, lease_time=2, poll_interval=60)
    proxy.swallow(has_the_needle, times=2)
    far.enqueue_many(far.tasks.get("note").call(number, NEEDLE) for number in range(15))
    assert told.wait_for("worker.disowned")["jobs"] == 15
    until(lambda: counts() == {"completed": 15}, say=counts)
    assert proxy.swallowed == 2
    assert sorted(ran) == [(number, 1) for number in range(15)]


def test_a_finish_whose_answer_was_lost_is_reported_once(
    far: Holdfast,
    ran: list[tuple[int, int]],
    proxy: Proxy,
    work: StartWorker,
    told: Told,
    until: Until,
    counts: Counts,
    ask: Ask,
) -> None:
    work(far)
    proxy.swallow(is_of_a_finish)
    far.enqueue_many(far.tasks.get("note").call(number, "done") for number in range(15))
    until(lambda: counts() == {"completed": 15}, say=counts)
    until(lambda: told.named("finisher.failed"))
    assert proxy.swallowed == 1
    assert sorted(ran) == [(number, 1) for number in range(15)]
    assert ask("select count(*) from holdfast.finished") == [(15,)]
    # And the worker lets go of them: it goes on, and is told nothing of refusals.
    last = far.tasks.get("note").enqueue(99, "done")
    until(lambda: last.refresh().state is JobState.COMPLETED)
    assert told.named("report.refused") == []


def test_a_failure_whose_answer_was_lost_is_counted_once(
    far: Holdfast,
    ran: list[tuple[int, int]],
    proxy: Proxy,
    work: StartWorker,
    told: Told,
    until: Until,
    ask: Ask,
) -> None:
    work(far)
    proxy.swallow(is_of_a_finish)
    job = far.tasks.get("fail").enqueue()
    told.wait_for("finisher.failed")
    until(lambda: job.refresh().state is JobState.SCHEDULED)
    another = far.tasks.get("note").enqueue(1, "done")
    until(lambda: another.refresh().state is JobState.COMPLETED)
    assert (job.refresh().state, job.refresh().attempt) == (JobState.SCHEDULED, 1)
    assert ask("select count(*) from holdfast.attempt_error") == [(1,)]
    assert told.named("report.refused") == []


def test_connections_that_are_cut_again_and_again_lose_nothing(
    far: Holdfast,
    ran: list[tuple[int, int]],
    proxy: Proxy,
    work: StartWorker,
    until: Until,
    counts: Counts,
    ask: Ask,
) -> None:
    work(far, concurrency=5)
    for batch in range(10):
        far.enqueue_many(far.tasks.get("note").call(batch * 100 + number, "done") for number in range(100))
        for purpose in ("claimer", "finisher", "duties", "keeper"):
            proxy.cut(purpose)
    until(lambda: counts() == {"completed": 1000}, say=counts)
    assert ask("select count(*) from holdfast.worker where lost_at is not null") == [(0,)]
    assert len({number for number, _ in ran}) == 1000


def test_an_enqueue_whose_answer_was_lost_is_told_and_not_repeated(
    far: Holdfast, proxy: Proxy, ask: Ask
) -> None:
    far.enqueue("before")
    proxy.swallow(lambda purpose, _: not purpose)
    with pytest.raises(DatabaseUnavailable):
        far.enqueue("lost")
    far.enqueue("after")
    assert proxy.swallowed == 1
    assert ask("select array_agg(task order by seq) from holdfast.job") == [(["before", "lost", "after"],)]

"""While handlers run: starts and progress are written, the lease is kept, a blocked loop is told about."""

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from holdfast import Context, Holdfast, JobState
from holdfast.database import Session
from holdfast.operations import claiming
from holdfast.values.call import Call
from holdfast.values.errors import DatabaseUnavailable
from tests.fixtures import Ask, Counts, StartWorker, Until
from tests.waiting import Told


async def passing(gate: threading.Event) -> None:
    while not gate.is_set():  # noqa: ASYNC110 - the gate is in another thread
        await asyncio.sleep(0.01)


def test_a_job_that_takes_a_while_is_seen_to_run(
    hf: Holdfast, work: StartWorker, gate: threading.Event, until: Until
) -> None:
    @hf.task(name="slow")
    async def slow() -> None:
        await passing(gate)

    job = slow.enqueue()
    work()
    seen = until(lambda: (seen := job.refresh()).state is JobState.RUNNING and seen)
    assert seen.claimed_at <= seen.started_at
    gate.set()
    done = until(lambda: (seen := job.refresh()).state is JobState.COMPLETED and seen)
    assert done.started_at == seen.started_at


@pytest.mark.parametrize("is_async", [True, False])
def test_progress_is_seen_while_the_job_runs(
    hf: Holdfast, work: StartWorker, gate: threading.Event, until: Until, is_async: bool
) -> None:
    def tell(ctx: Context) -> None:
        ctx.progress(10, stage="read\0ing", message="a \ud800 message")
        ctx.progress(40)

    @hf.task(name="async.job")
    async def async_job(ctx: Context) -> None:
        tell(ctx)
        await passing(gate)
        ctx.progress(90, stage="writing")

    @hf.task(name="plain.job")
    def plain_job(ctx: Context) -> None:
        tell(ctx)
        gate.wait()

    job = (async_job if is_async else plain_job).enqueue()
    work()
    seen = until(lambda: (seen := job.refresh()).progress and seen)
    assert (seen.progress, seen.stage, seen.message) == (40, "read\\0ing", "a \\ud800 message")
    gate.set()
    until(lambda: job.refresh().progress == 100)


def test_a_blocked_loop_keeps_its_lease_and_is_told_with_its_stack(
    hf: Holdfast, work: StartWorker, gate: threading.Event, told: Told, until: Until
) -> None:
    @hf.task(name="blocking")
    async def blocking_handler() -> None:
        gate.wait()

    job = blocking_handler.enqueue()
    work(lease_time=1)
    other = Holdfast(hf.dsn)
    work(other, lease_time=1)
    event = told.wait_for("loop.blocked")
    assert "blocking_handler" in event["stack"]
    until(lambda: job.refresh().state is JobState.RUNNING)
    beats = hf.workers.list()
    until(
        lambda: all(
            new.heartbeat_at > old.heartbeat_at for new, old in zip(hf.workers.list(), beats, strict=True)
        )
    )
    gate.set()
    done = until(lambda: (seen := job.refresh()).state is JobState.COMPLETED and seen)
    assert done.attempt == 1
    assert told.named("worker.lost") == []
    assert len(told.named("loop.blocked")) == 1
    other.close()


def test_a_handler_whose_job_was_taken_away_is_cut_off(
    hf: Holdfast, work: StartWorker, told: Told, until: Until, ask: Ask
) -> None:
    ended: list[int] = []

    @hf.task(name="slow")
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(asyncio.current_task().cancelling())

    job = slow.enqueue()
    worker = work(lease_time=2)
    until(lambda: job.refresh().state is JobState.RUNNING)
    first = ask("select lease from holdfast.live")
    # A heartbeat at this very moment is newer than any timeout: then ask again.
    until(lambda: ask("select holdfast.recover(timeout => '0')") != [(0,)])
    told.wait_for("worker.lost")
    until(lambda: ended)
    told.wait_for("worker.started", 2)
    # It is a suspect now, and its new attempt runs under another lease.
    until(lambda: job.refresh().state is JobState.RUNNING)
    assert ask("select lease from holdfast.live") != first
    assert told.named("slot.broken") == []
    worker.end()


def test_a_job_that_runs_twice_here_is_reported_once(
    hf: Holdfast, work: StartWorker, gate: threading.Event, told: Told, until: Until, ask: Ask
) -> None:
    """The first run ignores that it was cut off, while the second is already under way."""
    runs: list[int] = []

    @hf.task(name="stubborn")
    async def stubborn(ctx: Context) -> int:
        runs.append(ctx.attempt)
        number = len(runs)
        while not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                assert ctx.cancelled
        return number

    job = stubborn.enqueue()
    work(lease_time=2, concurrency=3)
    until(lambda: job.refresh().state is JobState.RUNNING)
    # A heartbeat at this very moment is newer than any timeout: then ask again.
    until(lambda: ask("select holdfast.recover(timeout => '0')") != [(0,)])
    until(lambda: runs == [1, 1])
    until(lambda: job.refresh().state is JobState.RUNNING)
    gate.set()
    done = until(lambda: (seen := job.refresh()).state is JobState.COMPLETED and seen)
    assert (done.result, done.attempt) == (2, 1)
    assert told.named("report.refused") == []
    assert len(told.named("worker.started")) == 2


def test_a_job_that_somebody_has_locked_holds_up_no_other(
    hf: Holdfast, work: StartWorker, gate: threading.Event, until: Until, told: Told, holdfast_dsn: str
) -> None:
    """An operator has called it off, and not yet committed."""

    @hf.task(name="slow")
    async def slow(n: int) -> None:
        await passing(gate)

    locked, other = (slow.enqueue(n=n) for n in range(2))
    with psycopg.connect(holdfast_dsn) as operator:
        work()
        until(lambda: locked.refresh().state is JobState.CLAIMED)
        operator.execute("select holdfast.cancel(%s)", [locked.id])
        until(lambda: other.refresh().state is JobState.RUNNING)
        assert other.cancel() == "requested"
        until(lambda: other.refresh().state is JobState.CANCELLED)
        assert locked.refresh().state is JobState.CLAIMED
    until(lambda: locked.refresh().state is JobState.CANCELLED)


def test_a_claim_that_comes_true_after_it_was_asked_for_is_given_back(
    hf: Holdfast,
    work: StartWorker,
    told: Told,
    until: Until,
    ask: Ask,
    counts: Counts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection was cut, the claim is not yet committed when we ask for it, and then it is."""
    run = Session.run
    cut: list[dict[str, Any]] = []

    @hf.task(name="note")
    async def note() -> None: ...

    async def run_late(session: Session, call: Call[Any], **options: Any) -> Any:
        if call.function.name == "claim" and not cut and ask("select from holdfast.job"):
            cut.append(claims[-1])
            raise DatabaseUnavailable("the connection was cut")
        answer = await run(session, call, **options)
        if call.function.name == "claimed":
            assert answer == []
            late = {name: cut[0][name] for name in ("worker", "lease")}
            found = ask("select id from holdfast.claim(worker => %s, lease => %s)", *late.values())
            assert len(found) == 10
        return answer

    claims: list[dict[str, Any]] = []
    claim = claiming.claim

    def noted(**options: Any) -> Call[Any]:
        claims.append(options)
        return claim(**options)

    monkeypatch.setattr(claiming, "claim", noted)
    monkeypatch.setattr(Session, "run", run_late)
    hf.enqueue_many(note.call() for _ in range(10))
    work(lease_time=2)
    assert told.wait_for("worker.disowned")["jobs"] == 10
    until(lambda: counts() == {"completed": 10}, say=counts)

"""A job runs end to end."""

from uuid import UUID

from holdfast import Context, Holdfast, JobState
from holdfast.testing import Clock
from tests.fixtures import Drain


def test_a_job_is_enqueued_run_and_finished(hf: Holdfast, drain: Drain) -> None:
    @hf.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(2, b=3)
    assert job.refresh().state is JobState.PENDING
    drain()
    done = job.refresh()
    assert done.state is JobState.COMPLETED
    assert done.result == 5
    assert done.progress == 100
    assert done.attempt == 1
    assert done.claimed_at
    assert done.started_at
    assert done.finished_at
    assert done.created_at <= done.claimed_at <= done.started_at <= done.finished_at
    assert done.duration == done.finished_at - done.started_at


def test_a_plain_function_runs_in_a_thread_and_knows_its_job(hf: Holdfast, drain: Drain) -> None:
    seen: list[tuple[UUID, str, int]] = []

    @hf.task(name="look", queue="other")
    def look(ctx: Context) -> None:
        seen.append((ctx.job_id, ctx.queue, ctx.attempt))

    job = look.enqueue()
    drain()
    assert seen == [(job.id, "other", 1)]


def test_a_failed_job_waits_for_its_backoff_and_is_tried_again(
    hf: Holdfast, drain: Drain, clock: Clock
) -> None:
    attempts: list[int] = []

    @hf.task(name="flaky")
    async def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return "at last"

    job = flaky.enqueue()
    drain()
    assert job.refresh().state is JobState.SCHEDULED
    assert attempts == [1]
    clock.advance(minutes=2)
    drain()
    assert attempts == [1, 2]
    clock.advance(minutes=3)
    drain()
    done = job.refresh()
    assert (done.state, done.result, done.attempt) == (JobState.COMPLETED, "at last", 3)
    assert [error.error for error in job.errors()] == ["ValueError: not yet"] * 2

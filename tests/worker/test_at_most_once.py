"""Tasks whose start is on record before they run: with a timeout, or such as may never run twice."""

import threading
from typing import Any
from uuid import uuid4

import pytest

from holdfast import BadValue, Context, Holdfast, JobState, Retry, RetryPolicy
from holdfast.operations import attempts
from holdfast.values.call import Call
from tests.fixtures import Ask, StartWorker, Until
from tests.waiting import Told


def test_a_failure_is_the_end(hf: Holdfast) -> None:
    @hf.task(name="pay", at_most_once=True)
    async def pay() -> None:
        raise ConnectionError("no answer")

    @hf.task(name="again", at_most_once=True)
    async def again() -> Retry:
        return Retry(after=1)

    jobs = [pay.enqueue(), again.enqueue()]
    hf.policies.set("pay", RetryPolicy(max_attempts=9))  # not even an operator can make it run twice
    jobs.append(hf.enqueue("pay"))
    hf.worker().run(drain=True)
    assert [(job.refresh().state, job.refresh().attempt) for job in jobs] == [(JobState.DEAD, 1)] * 3


def test_its_start_is_on_record_before_it_runs(hf: Holdfast, ask: Ask) -> None:
    seen: list[tuple[Any, ...]] = []

    @hf.task(name="pay", at_most_once=True)
    def pay(ctx: Context) -> None:
        seen.extend(ask("select job_id, once, deadline_at is null from holdfast.running"))

    job = pay.enqueue()
    hf.worker().run(drain=True)
    assert seen == [(job.id, True, True)]


def test_a_lost_worker_is_the_end(
    hf: Holdfast, work: StartWorker, until: Until, ask: Ask, gate: threading.Event
) -> None:
    runs: list[int] = []

    @hf.task(name="pay", at_most_once=True)
    def pay() -> None:
        runs.append(1)
        gate.wait()

    @hf.task(name="other", max_attempts=2)
    def other() -> None:
        runs.append(0)

    job = pay.enqueue()
    work(concurrency=1)
    until(lambda: runs)
    until(lambda: ask("select holdfast.recover(timeout => '0')") != [(0,)])
    end = job.refresh()
    assert (end.state, end.attempt) == (JobState.DEAD, 1)
    assert "lost" in (end.last_error or "")
    gate.set()
    assert runs == [1]


def test_a_job_that_never_started_is_handed_out_again(hf: Holdfast, ask: Ask) -> None:
    @hf.task(name="pay", at_most_once=True)
    async def pay() -> str:
        return "paid"

    job = pay.enqueue()
    ask("select holdfast.claim()")  # by somebody who dies before it begins
    ask("update holdfast.worker set heartbeat_at = heartbeat_at - interval '1 day'")
    assert ask("select holdfast.recover(timeout => '1 hour')") == [(1,)]
    hf.worker().run(drain=True)
    assert (job.refresh().state, job.refresh().result) == (JobState.COMPLETED, "paid")


def test_a_job_that_was_taken_away_before_it_began_does_not_begin(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """Its start is refused, because another has it by then."""
    ran: list[int] = []

    @hf.task(name="pay", at_most_once=True)
    async def pay() -> None:
        ran.append(1)

    start_one = attempts.start_one

    def under_another_lease(job_id: str, _lease: str, **options: Any) -> Call[Any]:
        return start_one(job_id, str(uuid4()), **options)

    monkeypatch.setattr(attempts, "start_one", under_another_lease)
    job = pay.enqueue()
    worker = hf.worker()
    done = threading.Thread(target=worker.run)
    done.start()
    told.wait_for("job.not_started")
    worker.stop()
    done.join()
    assert ran == []
    assert job.refresh().state is JobState.PENDING


@pytest.mark.parametrize("also", [{"max_attempts": 3}, {"retry": RetryPolicy()}, {"retry_on": KeyError}])
def test_at_most_once_and_retries_do_not_go_together(hf: Holdfast, also: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="at most once"):
        hf.task(name="a", at_most_once=True, **also)(lambda: None)
    with pytest.raises(BadValue, match="at_most_once"):
        hf.task(name="a", at_most_once="yes")(lambda: None)  # type: ignore[call-overload]


def test_a_timeout_has_a_deadline_in_the_database(hf: Holdfast, ask: Ask) -> None:
    seen: list[tuple[Any, ...]] = []

    @hf.task(name="slow", timeout=60)
    async def slow() -> None:
        seen.extend(ask("select deadline_at - started_at from holdfast.running"))

    slow.enqueue()
    hf.worker().run(drain=True)
    assert [round(row[0].total_seconds()) for row in seen] == [60]


def test_a_handler_that_blocks_the_loop_loses_its_job_after_the_timeout(
    hf: Holdfast, work: StartWorker, until: Until, ask: Ask, gate: threading.Event, told: Told
) -> None:
    @hf.task(name="hang", timeout=1, max_attempts=1)
    async def hang() -> None:
        gate.wait()  # the loop cannot cancel it

    job = hang.enqueue()
    work(lease_time=3600)
    until(lambda: job.refresh().state is JobState.RUNNING)
    ask("update holdfast.running set deadline_at = now() - interval '6 seconds'")
    # More than once, for another look may be under way; the worker itself may have been quicker.
    until(lambda: ask("select holdfast.recover()") and job.refresh().state is JobState.DEAD)
    assert job.refresh().last_error.startswith("timed out")
    gate.set()
    told.wait_for("report.refused")
    assert job.refresh().state is JobState.DEAD


def test_a_thread_learns_that_its_job_was_taken_away(
    hf: Holdfast, work: StartWorker, until: Until, ask: Ask
) -> None:
    ended: list[int] = []

    @hf.task(name="loop")
    def loop(ctx: Context) -> None:
        while not ctx.cancelled:
            threading.Event().wait(0.01)
        ended.append(1)

    job = loop.enqueue()
    work(lease_time=3)
    until(lambda: job.refresh().state is JobState.RUNNING)
    ask("update holdfast.job set lease = gen_random_uuid() where id = %s", job.id)
    until(lambda: ended)

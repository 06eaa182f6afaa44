"""What handlers publish is on record within a second, before their job ends, once; and can be followed."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import BadName, BadValue, Context, Holdfast, Job, JobNotFound, JobSnapshot, JobState, Retry
from tests.fixtures import StartWorker, Until
from tests.waiting import Told


def run(hf: Holdfast, *jobs: Job[Any]) -> list[JobSnapshot]:
    """Until each of them has ended: a retry may be due only after a worker has nothing left to do."""
    hf.worker().run(drain=True)
    while not all(job.refresh().state.final for job in jobs):
        hf.worker().run(drain=True)
    return [job.refresh() for job in jobs]


def names(job: Job[Any]) -> list[str]:
    return [event.name for event in job.events(follow=False)]


def test_events_are_on_record_before_the_job_ends(hf: Holdfast) -> None:
    @hf.task(name="render")
    async def render(ctx: Context) -> None:
        for page in range(3):
            ctx.event("page_rendered", {"page": page})

    job = render.enqueue()
    (end,) = run(hf, job)
    events = list(job.events())
    assert [event.name for event in events] == ["page_rendered"] * 3 + ["job.completed"]
    assert [event.data for event in events[:3]] == [{"page": 0}, {"page": 1}, {"page": 2}]
    assert end.events == 4


def test_events_are_on_record_while_the_handler_runs(
    hf: Holdfast, work: StartWorker, until: Until, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    @hf.task(name="render")
    def render(ctx: Context) -> None:
        ctx.event("begun")
        while not gate.exists() and not ctx.cancelled:
            pass

    job = render.enqueue()
    work()
    until(lambda: names(job) == ["begun"])
    gate.touch()
    until(lambda: job.refresh().state is JobState.COMPLETED)
    assert names(job) == ["begun", "job.completed"]


def test_a_failed_attempt_has_its_events_and_how_far_it_came(hf: Holdfast) -> None:
    @hf.task(name="render")
    async def render(ctx: Context) -> Retry | None:
        ctx.event("begun")
        ctx.progress(40, stage="layout")
        return Retry(after=0, error="no ink") if ctx.attempt == 1 else None

    job = render.enqueue()
    run(hf, job)
    begun, failed, again, completed = job.events()
    assert [event.attempt for event in (begun, failed, again, completed)] == [1, 1, 2, 2]
    assert failed.data.items() >= {"error": "no ink", "progress": 40, "stage": "layout"}.items()


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_events_of_a_handler_that_ends_its_job_itself_are_on_record_before(hf: Holdfast, level: str) -> None:
    @hf.task(name="pay")
    async def pay(ctx: Context, ok: bool) -> None:
        async with ctx.atransaction() as conn:
            await conn.execute(f"set transaction isolation level {level}")
            await conn.execute("select 1")
            ctx.event("paid")
            if not ok:
                raise ValueError("no")

    done, broken = pay.enqueue(ok=True), pay.options(max_attempts=1).enqueue(ok=False)
    run(hf, done, broken)
    # From an older snapshot its own event would collide with what the keeper writes.
    assert names(done) == ["paid", *(["job.completed"] if level == "read committed" else [])]
    assert names(broken) == ["paid", "job.dead"], "it happened, whatever became of the transaction"


def test_an_event_that_cannot_be_is_refused(hf: Holdfast) -> None:
    cases = [
        ("No", None, BadName),
        ("job.done", None, BadValue),
        ("large", "x" * 20_000, BadValue),
        ("odd", object(), BadValue),
        ("nul", "\0", BadValue),
    ]
    refused: list[str] = []

    @hf.task(name="render", max_attempts=1)
    async def render(ctx: Context) -> None:
        for name, data, error in cases:
            with pytest.raises(error):
                ctx.event(name, data)
            refused.append(name)

    job = render.enqueue()
    (end,) = run(hf, job)
    assert (end.state, len(refused), names(job)) == (JobState.COMPLETED, len(cases), [])


def test_an_event_that_only_the_database_finds_too_large_holds_up_no_other(
    hf: Holdfast, told: Told, work: StartWorker, until: Until, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    @hf.task(name="odd")
    def odd(ctx: Context) -> None:
        ctx.event("large", [1e300] * 2000)  # 12 kB as JSON, 600 kB as PostgreSQL writes it
        while not gate.exists() and not ctx.cancelled:
            pass

    @hf.task(name="even")
    def even(ctx: Context) -> None:
        ctx.event("small")
        while not gate.exists() and not ctx.cancelled:
            pass

    jobs = [odd.enqueue(), even.enqueue()]
    work()
    until(lambda: names(jobs[1]) == ["small"])
    told.wait_for("notes.broken")
    gate.touch()
    until(lambda: all(job.refresh().state is JobState.COMPLETED for job in jobs))
    assert names(jobs[1]) == ["small", "job.completed"]


def test_events_from_many_threads_are_each_on_record_once(hf: Holdfast) -> None:
    @hf.task(name="chorus")
    def chorus(ctx: Context) -> None:
        def sing(voice: int) -> None:
            for note in range(200):
                ctx.event("sung", {"voice": voice, "note": note})

        threads = [threading.Thread(target=sing, args=(voice,)) for voice in range(8)]
        for thread in threads:
            thread.start()
        ctx.step("pause", lambda: None)
        for thread in threads:
            thread.join()

    job = chorus.enqueue()
    run(hf, job)
    sung = [(event.data["voice"], event.data["note"]) for event in job.events() if event.name == "sung"]
    assert sorted(sung) == [(voice, note) for voice in range(8) for note in range(200)]


def test_a_handler_that_says_too_much_is_not_stopped(
    hf: Holdfast, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.context.notes.EVENT_LIMIT", 3)

    @hf.task(name="chatter")
    async def chatter(ctx: Context) -> None:
        for _ in range(10):
            ctx.event("said")

    job = chatter.enqueue()
    (end,) = run(hf, job)
    assert end.state is JobState.COMPLETED
    assert names(job) == ["said"] * 3 + ["job.completed"]
    assert len(told.named("events.refused")) == 1


def test_a_job_is_followed_until_it_ends_and_from_any_cursor(
    hf: Holdfast, work: StartWorker, until: Until
) -> None:
    go = threading.Event()

    @hf.task(name="render")
    def render(ctx: Context) -> None:
        ctx.event("first")
        go.wait(20)
        ctx.event("second")

    job = render.enqueue()
    work()
    seen = []
    for event in job.events(poll=0.05):
        seen.append(event)
        go.set()
    assert [event.name for event in seen] == ["first", "second", "job.completed"]
    assert [event.name for event in job.events(after=seen[0].cursor)] == ["second", "job.completed"]
    assert list(job.events(after="now")) == []


def test_a_queue_is_followed_async(hf: Holdfast, work: StartWorker) -> None:
    @hf.task(name="render", queue="prints")
    async def render(ctx: Context, n: int) -> None:
        ctx.event("rendered", {"n": n})

    async def follow(after: str | None, amount: int) -> list[tuple[int, str]]:
        seen = []
        async for event in hf.events.aread(queue="prints", after=after, poll=0.05):
            if event.name == "rendered":
                seen.append((event.data["n"], event.cursor))
            if len(seen) == amount:
                break
        return seen

    work()
    for n in range(3):
        render.enqueue(n=n)
    seen = asyncio.run(follow(None, 3))
    assert {n for n, _ in seen} == {0, 1, 2}
    again = asyncio.run(follow(seen[0][1], 2))
    assert [n for n, _ in again] == [n for n, _ in seen[1:]]


def test_events_of_what_is_not_there_are_refused(hf: Holdfast) -> None:
    with pytest.raises(BadValue) as error:
        next(hf.events.read(job_id="x"))
    assert error.value.field == "job_id"
    for follow in (True, False):
        with pytest.raises(JobNotFound):
            next(hf.events.read(job_id=uuid4(), follow=follow))
    with pytest.raises(BadValue, match="either"):
        next(hf.events.read(job_id="0190a5d0-ac96-774b-bcce-b302099a8057", queue="x"))
    with pytest.raises(BadValue) as error:
        next(hf.events.read(after="x"))
    assert error.value.field == "after"


# Progress.


def test_track_says_how_far_it_is(hf: Holdfast, until: Until, work: StartWorker) -> None:
    go = threading.Event()

    @hf.task(name="load")
    def load(ctx: Context) -> int:
        total = 0
        for n in ctx.track(range(4), stage="rows"):
            total += n
            if n == 2:
                go.wait(20)
        return total

    job = load.enqueue()
    work()
    until(lambda: job.refresh().progress == 50)
    assert job.refresh().stage == "rows"
    assert job.refresh().time_left is not None
    go.set()
    assert job.result(timeout=20) == 6


def test_track_goes_through_what_is_async_or_has_no_length(hf: Holdfast) -> None:
    async def pages() -> AsyncIterator[int]:
        for page in range(3):
            yield page

    said: list[Any] = []

    @hf.task(name="load")
    async def load(ctx: Context) -> list[int]:
        seen = [page async for page in ctx.track(pages(), message="pages")]
        said.append(ctx.notes.note.message)
        seen += [n async for n in ctx.track([3, 4])]
        seen += list(ctx.track(iter([5]), total=1))
        said.append(ctx.notes.note.percent)
        return seen

    (end,) = run(hf, load.enqueue())
    assert end.result == [0, 1, 2, 3, 4, 5]
    assert said == ["pages: 3 done", 100]


def test_track_ends_a_thread_that_was_called_off(hf: Holdfast, work: StartWorker, until: Until) -> None:
    seen: list[bool] = []

    @hf.task(name="load")
    def load(ctx: Context) -> None:
        for _ in ctx.track(iter(int, 1)):
            seen[:] = [True]

    job = load.enqueue()
    work()
    until(lambda: seen)
    until(lambda: job.cancel() == "requested")
    until(lambda: job.refresh().state is JobState.CANCELLED)


def test_a_job_has_started_when_its_handler_has_and_not_when_it_was_noted(hf: Holdfast) -> None:
    @hf.task(name="render", max_attempts=1)
    async def render(ctx: Context, ok: bool) -> None:
        await asyncio.sleep(0.2)
        ctx.progress(50)
        ctx.event("half")
        if not ok:
            raise ValueError("no")

    for end in run(hf, render.enqueue(ok=True), render.enqueue(ok=False)):
        assert end.duration.total_seconds() >= 0.2


def test_watch_shows_each_change_until_the_end(hf: Holdfast, work: StartWorker) -> None:
    steps = [threading.Event() for _ in range(2)]

    @hf.task(name="render")
    def render(ctx: Context) -> str:
        ctx.progress(10, stage="first")
        steps[0].wait(20)
        ctx.progress(60, stage="second")
        steps[1].wait(20)
        return "done"

    job = render.enqueue()
    work()
    seen = []
    for snapshot in job.watch(poll=0.05):
        seen.append((snapshot.state.value, snapshot.stage))
        if snapshot.stage == "first":
            steps[0].set()
        if snapshot.stage == "second":
            steps[1].set()
    assert ("running", "first") in seen
    assert ("running", "second") in seen
    assert seen[-1] == ("completed", None)

    async def again() -> list[str]:
        return [snapshot.state.value async for snapshot in job.awatch()]

    assert asyncio.run(again()) == ["completed"]

"""Steps run once whatever attempts it takes, and loops go on from their checkpoint."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import BadValue, Context, Holdfast, Job, JobSnapshot, JobState, Retry, Secret
from tests.fixtures import Ask, StartWorker, Until
from tests.worker import isolated


def run(hf: Holdfast, *jobs: Job[Any]) -> list[JobSnapshot]:
    """Until each of them has ended: a retry may be due only after a worker has nothing left to do."""
    hf.worker().run(drain=True)
    while not all(job.refresh().state.final for job in jobs):
        hf.worker().run(drain=True)
    return [job.refresh() for job in jobs]


def test_a_retry_goes_on_after_the_steps_that_are_done(hf: Holdfast) -> None:
    ran: list[str] = []

    def do(name: str) -> dict[str, str]:
        ran.append(name)
        return {"did": name}

    @hf.task(name="climb")
    def climb(ctx: Context) -> Retry | list[str]:
        done = [ctx.step(name, do, name)["did"] for name in ("one", "two")]
        if ctx.attempt == 1:
            return Retry(after=0)
        return [*done, ctx.step("three", do, name="three")["did"]]

    job = climb.enqueue()
    (end,) = run(hf, job)
    assert end.result == ["one", "two", "three"]
    assert ran == ["one", "two", "three"]
    assert [(step.name, step.result, step.attempt) for step in job.steps()] == [
        ("one", {"did": "one"}, 1),
        ("two", {"did": "two"}, 1),
        ("three", {"did": "three"}, 2),
    ]
    assert [step.name for step in asyncio.run(job.asteps())] == ["one", "two", "three"]


def test_an_async_handler_has_async_steps(hf: Holdfast) -> None:
    ran: list[str] = []

    async def fetch(n: int) -> int:
        ran.append("fetch")
        await asyncio.sleep(0)
        return n

    @hf.task(name="climb")
    async def climb(ctx: Context) -> Retry | int:
        found = await ctx.astep("fetch", fetch, 20)
        more = await ctx.astep("plain", lambda: 1)
        if ctx.attempt == 1:
            return Retry(after=0)
        return found + more

    job = climb.enqueue()
    (end,) = run(hf, job)
    assert (end.result, ran) == (21, ["fetch"])


def test_a_step_returns_the_same_from_memory_as_at_first(hf: Holdfast) -> None:
    seen: list[Any] = []

    @hf.task(name="climb")
    def climb(ctx: Context) -> Retry | None:
        seen.append(ctx.step("tuple", lambda: (1, {2: "x"})))
        return Retry(after=0) if ctx.attempt == 1 else None

    run(hf, climb.enqueue())
    assert seen == [[1, {"2": "x"}]] * 2, "what JSON makes of it, both times"


def test_a_step_that_raises_may_be_tried_again_at_once(hf: Holdfast) -> None:
    tries: list[bool] = []

    def flaky() -> str:
        tries.append(True)
        if len(tries) < 3:
            raise ConnectionError("no line")
        return "through"

    @hf.task(name="climb", max_attempts=1)
    def climb(ctx: Context) -> str:
        while True:
            try:
                return ctx.step("call", flaky)
            except ConnectionError:
                continue

    (end,) = run(hf, climb.enqueue())
    assert (end.result, len(tries)) == ("through", 3)


def test_a_step_that_raises_is_not_done(hf: Holdfast) -> None:
    def slip(attempt: int) -> str:
        if attempt == 1:
            raise ValueError("slipped")
        return "held"

    @hf.task(name="climb")
    def climb(ctx: Context) -> Retry | str:
        try:
            return ctx.step("slip", slip, ctx.attempt)
        except ValueError:
            return Retry(after=0)

    job = climb.enqueue()
    (end,) = run(hf, job)
    assert (end.result, end.attempt) == ("held", 2)


def test_a_step_that_cannot_be_is_refused(hf: Holdfast) -> None:
    cases: list[tuple[Any, Callable[[], object], str]] = [
        ("", int, "name"),
        ("s" * 101, int, "name"),
        (7, int, "name"),
        ("large", lambda: "x" * 300_000, "result"),
        ("odd", object, "result"),
        ("async", lambda: asyncio.sleep(0), "function"),
        ("nul\0", int, "name"),
        ("secret", lambda: Secret("x"), "result"),
    ]
    refused: list[str | None] = []

    @hf.task(name="climb", max_attempts=1)
    def climb(ctx: Context) -> None:
        for name, function, _ in cases:
            with pytest.raises(BadValue) as error:
                ctx.step(name, function)
            refused.append(error.value.field)

    (end,) = run(hf, climb.enqueue())
    assert (end.state, refused) == (JobState.COMPLETED, [field for _, _, field in cases])


def test_two_steps_of_one_name_are_a_mistake(hf: Holdfast) -> None:
    @hf.task(name="climb", max_attempts=1)
    def climb(ctx: Context) -> None:
        for page in range(2):
            ctx.step("page", lambda page=page: page)

    job = climb.enqueue()
    (end,) = run(hf, job)
    assert end.state is JobState.DEAD
    assert "this attempt already had a step of this name" in (end.last_error or "")


def test_a_key_of_a_step_is_the_same_in_every_attempt(hf: Holdfast) -> None:
    keys: list[str] = []

    @hf.task(name="climb")
    def climb(ctx: Context) -> Retry | None:
        keys.append(ctx.step_key("pay"))
        return Retry(after=0) if ctx.attempt == 1 else None

    job = climb.enqueue()
    run(hf, job)
    assert keys == [f"{job.id}/pay"] * 2


def test_a_loop_goes_on_from_its_checkpoint(hf: Holdfast) -> None:
    rows: list[int] = []

    @hf.task(name="load")
    def load(ctx: Context) -> Retry | dict[str, int]:
        for row in range(ctx.state.get("row", 0), 10):
            rows.append(row)
            ctx.checkpoint({"row": row + 1})
            if row == 4 and ctx.attempt == 1:
                return Retry(after=0)
        return ctx.state

    job = load.enqueue()
    (end,) = run(hf, job)
    assert rows == list(range(10)), "the last checkpoint is written before the attempt ends"
    assert end.result == {"row": 10}
    assert job.checkpoint() == asyncio.run(job.acheckpoint()) == {"row": 5}


def test_a_checkpoint_is_written_while_the_handler_runs(
    hf: Holdfast, work: StartWorker, until: Until, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    @hf.task(name="load")
    async def load(ctx: Context) -> None:
        ctx.checkpoint({"row": 7})
        while not gate.exists():  # noqa: ASYNC110 - touched by another thread
            await asyncio.sleep(0.01)

    job = load.enqueue()
    work()
    until(lambda: job.checkpoint() == {"row": 7})
    gate.touch()


def test_a_checkpoint_that_cannot_be_is_refused(hf: Holdfast) -> None:
    states: list[Any] = [[1], None, {"x": "y" * 20_000}, {"x": object()}]
    refused: list[str | None] = []

    @hf.task(name="load", max_attempts=1)
    def load(ctx: Context) -> None:
        for state in states:
            with pytest.raises(BadValue) as error:
                ctx.checkpoint(state)
            refused.append(error.value.field)

    run(hf, load.enqueue())
    assert refused == ["state"] * len(states)


def test_steps_and_checkpoints_work_in_a_process_of_their_own(hf: Holdfast, ask: Ask) -> None:
    for task in isolated.hf.tasks:
        hf.tasks.register(task)
    job = hf.enqueue("climb")
    hf.worker().run(drain=True)
    job.run_now()
    (end,) = run(hf, job)
    assert end.result == ["by 1", "2"]
    assert [event.name for event in job.events()] == [
        "begun",
        "job.step",
        "job.failed",
        "begun",
        "job.completed",
    ]


def test_a_dead_job_is_replayed_after_its_steps_or_from_the_start(hf: Holdfast) -> None:
    ran: list[int] = []

    @hf.task(name="climb", max_attempts=1)
    def climb(ctx: Context) -> None:
        ctx.step("once", ran.append, len(ran))
        raise ValueError("no")

    job = climb.enqueue()
    run(hf, job)
    job.replay()
    run(hf, job)
    assert ran == [0]
    assert asyncio.run(job.areplay(start_over=True)) is JobState.PENDING
    run(hf, job)
    assert ran == [0, 1]
    assert hf.dead.replay_many(everything=True, start_over=True) == 1
    run(hf, job)
    assert ran == [0, 1, 2]


def test_a_thread_whose_job_was_called_off_begins_no_further_step(
    hf: Holdfast, work: StartWorker, until: Until, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    ran: list[str] = []

    @hf.task(name="climb")
    def climb(ctx: Context) -> None:
        ctx.step("first", ran.append, "first")
        while not ctx.cancelled:
            gate.exists()
        ctx.step("second", ran.append, "second")

    job = climb.enqueue()
    work()
    until(lambda: ran)
    until(lambda: job.cancel() == "requested")
    until(lambda: job.refresh().state is JobState.CANCELLED)
    assert ran == ["first"]

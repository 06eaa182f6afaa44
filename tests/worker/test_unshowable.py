"""One stored value that Python cannot read spoils no list: a note stands in its place."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast import BadResult, Context, Holdfast, JobState
from tests.fixtures import Ask, Drain

TOO_DEEP = "[" * 1000 + "]" * 1000
TOO_LONG = '{"n": 1e30000}'
NOTE = "(cannot be shown: "


@pytest.fixture
def spoil(ask: Ask) -> Callable[..., None]:
    """`spoil(job_id, "payload", text)`: store what no function of ours would take, as 0.1 did."""

    def spoil(table: str, key: str, job_id: UUID, column: str, text: str) -> None:
        ask(f"update holdfast.{table} set {column} = %s where {key} = %s", text, job_id)

    return spoil


@pytest.mark.parametrize("text", [TOO_DEEP, TOO_LONG], ids=["deep", "digits"])
def test_a_list_of_jobs_shows_a_note_in_place_of_what_cannot_be_read(
    hf: Holdfast, spoil: Callable[..., None], text: str
) -> None:
    fine, odd, beside = hf.enqueue("a", {"x": 1}), hf.enqueue("b"), hf.enqueue("c", headers={"t": "1"})
    spoil("live", "id", odd.id, "payload", text)
    spoil("live", "id", beside.id, "headers", f'{{"deep": {text}}}')
    listed = {job.id: job for job in hf.jobs.list()}
    assert listed[fine.id].payload == {"x": 1}
    assert listed[odd.id].payload.startswith(NOTE)
    assert listed[beside.id].headers.startswith(NOTE)
    assert listed[beside.id].payload == {}
    assert odd.refresh().payload.startswith(NOTE)


@pytest.mark.parametrize("text", [TOO_DEEP, TOO_LONG], ids=["deep", "digits"])
def test_so_does_all_else_that_shows_a_value(
    hf: Holdfast, spoil: Callable[..., None], drain: Drain, text: str
) -> None:
    @hf.task(name="talk", max_attempts=1)
    def talk(ctx: Context, end: str = "") -> int:
        ctx.step("s", lambda: 1)
        ctx.checkpoint({"n": 1})
        ctx.event("said", {"n": 1})
        if end:
            raise ValueError(end)
        return 1

    hf.schedules.add("s", "talk", every=3600)
    job, dead = talk.enqueue(), talk.enqueue(end="no")
    drain()
    spoil("finished", "id", job.id, "result", text)
    spoil("dead_letter", "id", dead.id, "payload", text)
    spoil("step", "job_id", job.id, "result", text)
    spoil("checkpoint", "job_id", dead.id, "state", text)
    spoil("event", "job_id", job.id, "data", text)
    spoil("schedule", "name", "s", "payload", text)
    assert job.refresh().result.startswith(NOTE)
    assert [step.result[: len(NOTE)] for step in job.steps()] == [NOTE]
    assert dead.checkpoint().startswith(NOTE)
    assert {event.data[: len(NOTE)] for event in job.events(follow=False)} == {NOTE}
    assert [schedule.payload[: len(NOTE)] for schedule in hf.schedules.list()] == [NOTE]
    assert [letter.payload[: len(NOTE)] for letter in hf.dead.list()] == [NOTE]
    with pytest.raises(BadResult, match="cannot be read"):
        job.result(timeout=5)


@pytest.mark.parametrize("text", [TOO_DEEP, TOO_LONG], ids=["deep", "digits"])
def test_a_job_with_such_a_payload_fails_and_its_neighbours_run(
    hf: Holdfast, spoil: Callable[..., None], drain: Drain, text: str
) -> None:
    @hf.task(name="plain", max_attempts=1)
    def plain(value: Any = None) -> int:
        return 1

    odd, fine = plain.enqueue(1), plain.enqueue(2)
    spoil("live", "id", odd.id, "payload", f'{{"value": {text}}}')
    drain()
    assert odd.refresh().state is JobState.DEAD
    assert fine.refresh().state is JobState.COMPLETED

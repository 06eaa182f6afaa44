"""A drain ends when nothing is due, and not before."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest

from holdfast import Context, Holdfast, Retry, Snooze
from holdfast.database import Session
from holdfast.database.session import ListeningSession
from holdfast.testing import Clock
from holdfast.values.call import Call
from holdfast.values.errors import DatabaseUnavailable
from holdfast.worker import duties
from holdfast.worker.duties import Duties
from holdfast.worker.held import HeldJobs
from holdfast.worker.loop import every
from tests.fixtures import Ask, AsyncTask, Counts
from tests.waiting import Told

Again = AsyncTask[Retry | None]


def without_promotion(seconds: float, step: Any, *, name: str, **options: Any) -> Coroutine[Any, Any, Any]:
    return asyncio.sleep(3600) if name == "promote" else every(seconds, step, name=name, **options)


def test_a_drain_runs_all_that_is_due_however_late_the_duties_are(
    hf: Holdfast, clock: Clock, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.task(name="note")
    async def note() -> None: ...

    hf.enqueue_many(note.options(delay=60).call() for _ in range(250))
    clock.advance(minutes=2)
    monkeypatch.setattr("holdfast.worker.runtime.every", without_promotion)
    hf.worker().run(drain=True)
    assert counts() == {"completed": 250}


def test_a_drain_runs_what_is_to_be_tried_again_at_once(
    hf: Holdfast, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    @hf.task(name="again")
    async def again(ctx: Context) -> Retry | None:
        attempts.append(ctx.attempt)
        return Retry(after=0) if ctx.attempt < 3 else None

    again.enqueue()
    monkeypatch.setattr("holdfast.worker.runtime.every", without_promotion)
    hf.worker().run(drain=True)
    assert counts() == {"completed": 1}
    assert attempts == [1, 2, 3]


def test_a_drain_does_not_wait_for_a_job_that_puts_itself_off_each_time(
    hf: Holdfast, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.task(name="again")
    async def again(ctx: Context) -> Snooze | None:
        return Snooze(0.09) if ctx.attempt < 100 else None

    again.enqueue()
    monkeypatch.setattr("holdfast.worker.runtime.every", without_promotion)
    hf.worker().run(drain=True)
    assert counts() == {"scheduled": 1}


def test_a_look_that_began_before_the_last_job_ended_says_nothing(
    hf: Holdfast, told: Told, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, run = asyncio.Event(), Session.run

    @hf.task(name="second")
    async def second() -> None: ...

    @hf.task(name="first")
    async def first() -> None:
        await gate.wait()
        await second.aenqueue()

    async def slow_answers(session: Session, call: Call[Any], **options: Any) -> Any:
        answer = await run(session, call, **options)
        if call.function.name == "claim" and not answer:
            gate.set()
            while not told.named("jobs.finished"):  # noqa: ASYNC110 - told without an event
                await asyncio.sleep(0.001)
        return answer

    monkeypatch.setattr(Session, "run", slow_answers)
    first.enqueue()
    hf.worker(notify=False, poll_interval=60).run(drain=True)
    assert counts() == {"completed": 2}


def test_a_look_that_began_before_a_promotion_says_nothing(
    hf: Holdfast, again: Again, told: Told, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoting, looked, hinted = asyncio.Event(), asyncio.Event(), asyncio.Event()
    hint, run = HeldJobs.hint, ListeningSession.run

    def noted(held: HeldJobs) -> None:
        hint(held)
        if looked.is_set():
            hinted.set()

    async def slow_answers(session: ListeningSession, call: Call[Any], **options: Any) -> Any:
        name, meanwhile = call.function.name, promoting.is_set()
        if name == "promote" and told.named("jobs.finished"):
            promoting.set()
            await looked.wait()
        answer = await run(session, call, **options)
        if name == "claim" and meanwhile:
            looked.set()
            await hinted.wait()
        return answer

    monkeypatch.setattr(HeldJobs, "hint", noted)
    monkeypatch.setattr(ListeningSession, "run", slow_answers)
    monkeypatch.setattr("holdfast.worker.runtime.every", without_promotion)
    again.enqueue()
    with psycopg.connect(hf.dsn) as conn:
        again.on(conn).enqueue()  # while it is open, a worker asks for such before it looks
        hf.worker().run(drain=True)
        conn.rollback()
    assert counts() == {"completed": 1}


@pytest.fixture
def again(hf: Holdfast) -> Again:
    @hf.task(name="again")
    async def again(ctx: Context) -> Retry | None:
        return Retry(after=0) if ctx.attempt == 1 else None

    return again


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """`failing(error)`: the second promotion fails, the first of what has come back."""
    monkeypatch.setattr("holdfast.worker.runtime.every", without_promotion)
    monkeypatch.setattr(duties, "PATIENCE", 0)

    def failing(error: Exception) -> None:
        promote, errors = Duties.promote, [error, None]

        async def failing(self: Duties) -> float:
            if errors and (error := errors.pop()):
                raise error
            return await promote(self)

        monkeypatch.setattr(Duties, "promote", failing)

    return failing


def test_a_drain_waits_for_a_database_that_was_away(
    hf: Holdfast, again: Again, failing: Callable[[Exception], None], counts: Counts
) -> None:
    failing(DatabaseUnavailable("gone"))
    again.enqueue()
    hf.worker().run(drain=True)
    assert counts() == {"completed": 1}


def test_what_ends_a_drain_unexpectedly_is_raised(
    hf: Holdfast, again: Again, failing: Callable[[Exception], None]
) -> None:
    failing(RuntimeError("no such thing"))
    again.enqueue()
    with pytest.raises(ExceptionGroup) as caught:
        hf.worker().run(drain=True)
    assert caught.group_contains(RuntimeError, match="no such thing")


@pytest.mark.parametrize(("schedules", "missed"), [(1, 2500), (1500, 1)])
def test_a_drain_runs_every_time_that_a_schedule_has_missed(
    hf: Holdfast, ask: Ask, clock: Clock, counts: Counts, schedules: int, missed: int
) -> None:
    """One call of the duty fires at most a thousand times."""

    @hf.task(name="beat")
    async def beat() -> None: ...

    ask(
        "select holdfast.add_schedule('beat.' || n, 'beat', every => '60 s', missed => 'all') "
        "from generate_series(1, %s) n",
        schedules,
    )
    clock.advance(minutes=missed)
    hf.worker().run(drain=True)
    assert counts() == {"completed": schedules * missed}

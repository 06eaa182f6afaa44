"""Schedules from Python: declared beside the task or added by name, sync and async."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from holdfast import (
    BadName,
    BadValue,
    Context,
    Holdfast,
    IllegalTransition,
    Schedule,
    UnknownOption,
    subscribe,
)
from holdfast.testing import Clock
from tests.fixtures import Drain

Ticks = list[tuple[str | None, datetime | None]]


@pytest.fixture
def ticks(hf: Holdfast) -> list[tuple[str | None, datetime | None]]:
    """What the jobs of `beat` saw: their schedule, and their tick."""
    seen: list[tuple[str | None, datetime | None]] = []

    @hf.task(name="beat")
    async def beat(ctx: Context, note: str = "") -> None:
        seen.append((ctx.schedule, ctx.tick))

    return seen


def test_a_schedule_beside_the_task_runs_it(hf: Holdfast, clock: Clock, drain: Drain) -> None:
    seen: list[datetime | None] = []

    @hf.task(name="report", queue="reports", schedule="0 9 * * mon-fri", zone="Europe/Berlin")
    async def report(ctx: Context) -> None:
        seen.append(ctx.tick)

    hf.worker()
    (row,) = hf.schedules.list()
    assert (row.name, row.task, row.queue, row.declared) == ("report", "report", "reports", True)
    assert (row.cron, row.zone) == ("0 9 * * mon-fri", "Europe/Berlin")
    assert row.next_at is not None
    clock.advance(row.next_at - clock_now(hf) + timedelta(seconds=1))
    drain()
    assert seen == [row.next_at]


def test_a_schedule_by_name_goes_where_the_task_that_is_declared_here_says(hf: Holdfast) -> None:
    hf.task(name="m.w", queue="mail", priority=30)(lambda: None)
    hf.schedules.add("a", "m.w", every=30)
    hf.schedules.add("b", "m.w", every=30, queue="slow", priority=7)
    hf.schedules.add("c", "not.here", every=30)
    asyncio.run(hf.schedules.aadd("d", "m.w", every=30))
    hf.schedules.change("b", "m.w", every=60)
    assert [(row.queue, row.priority) for row in hf.schedules.list()] == [
        ("mail", 30),
        ("slow", 7),
        ("default", 100),
        ("mail", 30),
    ]


def test_every_so_often_beside_the_task(hf: Holdfast) -> None:
    @hf.task(name="beat", schedule=Schedule(every=30, missed="skip", overlap=False, jitter=5))
    async def beat() -> None: ...

    hf.worker()
    (row,) = hf.schedules.list()
    assert (row.every, row.missed, row.overlap, row.jitter, row.words) == (
        timedelta(seconds=30),
        "skip",
        False,
        timedelta(seconds=5),
        "every 30 seconds",
    )


def test_a_deploy_changes_what_code_declares_and_leaves_a_pause(hf: Holdfast, holdfast_dsn: str) -> None:
    hf.task(name="beat", schedule="0 9 * * *")(lambda: None)
    hf.worker()
    hf.schedules.pause("beat")
    with Holdfast(holdfast_dsn) as next_release:
        next_release.task(name="beat", schedule="0 10 * * *")(lambda: None)
        next_release.worker()
    (row,) = hf.schedules.list()
    assert row.cron == "0 10 * * *"
    assert row.paused_at is not None


def test_a_deploy_leaves_what_an_operator_changed(hf: Holdfast) -> None:
    hf.task(name="beat", schedule="0 9 * * *")(lambda: None)
    hf.worker()
    hf.schedules.change("beat", cron="0 11 * * *")
    told: list[tuple[str, dict[str, Any]]] = []
    unsubscribe = subscribe(lambda name, fields: told.append((name, dict(fields))))
    try:
        hf.worker()
    finally:
        unsubscribe()
    assert hf.schedules.list()[0].cron == "0 11 * * *"
    assert [fields["name"] for name, fields in told if name == "schedule.kept"] == ["beat"]


def test_a_task_that_needs_arguments_cannot_be_declared_so(hf: Holdfast) -> None:
    @hf.task(name="mail", schedule="@daily")
    async def mail(user_id: int) -> None: ...

    with pytest.raises(BadValue, match=r"of task mail: the task needs arguments.*user_id") as refused:
        hf.worker()
    assert "hf.schedules.add" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"schedule": 30}, "schedule"),
        ({"zone": "Europe/Berlin"}, "zone"),
        ({"schedule": Schedule(every=30), "zone": "Europe/Berlin"}, "zone"),
    ],
)
def test_nonsense_beside_the_task_is_refused_at_once(
    hf: Holdfast, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadValue) as refused:
        hf.task(name="beat", **options)(lambda: None)
    assert refused.value.field == field


def test_an_expression_is_judged_when_a_worker_starts(hf: Holdfast) -> None:
    hf.task(name="beat", schedule="0 25 * * *")(lambda: None)
    with pytest.raises(BadValue, match="of task beat: cron hour '25'"):
        hf.worker()


def test_a_call_a_task_and_a_name_can_be_scheduled(hf: Holdfast, ticks: Ticks) -> None:
    beat = hf.tasks.get("beat")
    hf.schedules.add("a", beat.options(priority=7).call(note="x"), every=60)
    hf.schedules.add("b", beat, every=timedelta(minutes=1), queue="other", max_attempts=9)
    hf.schedules.add("c", "elsewhere", {"n": 1}, cron="@daily", zone="Asia/Kolkata", priority=3)
    a, b, c = hf.schedules.list()
    assert (a.task, a.payload, a.priority) == ("beat", {"note": "x"}, 7)
    assert (b.task, b.payload, b.queue, b.max_attempts) == ("beat", {}, "other", 9)
    assert (c.task, c.payload, c.zone, c.priority) == ("elsewhere", {"n": 1}, "Asia/Kolkata", 3)


def test_each_tick_is_run_once_and_known_to_the_job(
    hf: Holdfast, clock: Clock, drain: Drain, ticks: Ticks
) -> None:
    first = hf.schedules.add("pulse", "beat", every=60, missed="all")
    assert hf.schedules.upcoming("pulse", 2) == [first, first + timedelta(minutes=1)]
    clock.advance(minutes=3, seconds=1)
    drain()
    drain()
    assert ticks == [("pulse", first + timedelta(minutes=n)) for n in range(3)]


def test_one_more_besides_its_times(hf: Holdfast, drain: Drain, ticks: Ticks) -> None:
    hf.schedules.add("pulse", "beat", every=60)
    hf.schedules.pause("pulse")
    job = hf.schedules.run("pulse")
    drain()
    assert job.refresh().state == "completed"
    assert ticks == [("pulse", None)]


def test_adding_again_is_what_a_program_does_that_starts_again(hf: Holdfast) -> None:
    first = hf.schedules.add("pulse", "beat", every=60)
    assert hf.schedules.add("pulse", "beat", every=60) == first
    with pytest.raises(BadValue, match="there is a schedule of this name"):
        hf.schedules.add("pulse", "beat", every=60, declared=False)


def test_what_is_given_is_changed_and_the_rest_is_left(hf: Holdfast) -> None:
    hf.schedules.add("pulse", "beat", {"n": 1}, every=60, queue="mail", jitter=5)
    hf.schedules.change("pulse", "other")
    assert hf.schedules.list()[0].payload == {"n": 1}
    hf.schedules.change("pulse", payload={"n": 2}, cron="@hourly", zone="Europe/Berlin")
    (row,) = hf.schedules.list()
    assert (row.task, row.payload, row.cron, row.every) == ("other", {"n": 2}, "@hourly", None)
    assert (row.zone, row.queue, row.jitter) == ("Europe/Berlin", "mail", timedelta(seconds=5))


def test_pause_resume_and_remove_say_whether_there_was_anything_to_do(hf: Holdfast) -> None:
    hf.schedules.add("pulse", "beat", every=60)
    assert [hf.schedules.pause("pulse"), hf.schedules.pause("pulse")] == [True, False]
    assert [hf.schedules.resume("pulse"), hf.schedules.resume("pulse")] == [True, False]
    assert [hf.schedules.remove("pulse"), hf.schedules.remove("pulse")] == [True, False]


def test_all_of_it_in_a_coroutine(hf: Holdfast) -> None:
    async def work() -> None:
        first = await hf.schedules.aadd("pulse", "beat", every=60)
        assert await hf.schedules.aupcoming("pulse", 1) == [first]
        await hf.schedules.achange("pulse", cron="@hourly")
        assert await hf.schedules.apause("pulse")
        assert await hf.schedules.aresume("pulse")
        assert (await (await hf.schedules.arun("pulse")).arefresh()).task == "beat"
        assert [row.cron for row in await hf.schedules.alist()] == ["@hourly"]
        assert await hf.schedules.aremove("pulse")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "cron"),
        ({"cron": "@daily", "every": 60}, "cron"),
        ({"cron": 5}, "cron"),
        ({"cron": "@dayly"}, "cron"),
        ({"every": 0.5}, "every"),
        ({"every": 1.5}, "every"),
        ({"every": timedelta(days=367)}, "every"),
        ({"every": 60, "zone": "Berlin"}, "zone"),
        ({"every": 60, "missed": "never"}, "missed"),
        ({"every": 60, "overlap": "no"}, "overlap"),
        ({"every": 60, "jitter": 86401}, "jitter"),
        ({"every": 60, "priority": 99_999}, "priority"),
    ],
)
def test_nonsense_is_refused_with_its_field(hf: Holdfast, options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadValue) as refused:
        hf.schedules.add("pulse", "beat", **options)
    assert refused.value.field == field
    assert hf.schedules.list() == []


def test_an_unknown_option_is_refused_with_the_nearest(hf: Holdfast) -> None:
    with pytest.raises(UnknownOption) as refused:
        hf.schedules.add("pulse", "beat", evry=60)  # type: ignore[call-arg]
    assert refused.value.suggestion == "every"


def test_what_belongs_to_a_single_job_is_refused(hf: Holdfast, ticks: Ticks) -> None:
    call = hf.tasks.get("beat").options(delay=5).call()
    with pytest.raises(BadValue, match="a schedule says when"):
        hf.schedules.add("pulse", call, every=60)
    with pytest.raises(BadValue, match="must be a call"):
        hf.schedules.add("pulse", print, every=60)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="is for a task by name"):
        hf.schedules.add("pulse", hf.tasks.get("beat"), {"n": 1}, every=60)
    with pytest.raises(BadName):
        hf.schedules.add("no spaces", "beat", every=60)


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "upcoming"])
def test_a_schedule_that_there_is_not_is_refused(hf: Holdfast, verb: str) -> None:
    with pytest.raises(BadValue, match="there is no schedule of this name"):
        getattr(hf.schedules, verb)("pulse")


def test_a_delayed_job_can_be_given_another_time(
    hf: Holdfast, clock: Clock, drain: Drain, ticks: Ticks
) -> None:
    job = hf.tasks.get("beat").options(delay=3600).enqueue()
    due = job.reschedule(delay=timedelta(hours=5))
    assert job.refresh().run_at == due
    job.reschedule(run_at=clock_now(hf) + timedelta(minutes=5))
    clock.advance(minutes=6)
    drain()
    assert job.refresh().state == "completed"
    with pytest.raises(IllegalTransition):
        job.reschedule(delay=5)


def test_a_delayed_job_can_be_given_another_time_in_a_coroutine(hf: Holdfast) -> None:
    async def work() -> None:
        job = await hf.aenqueue("beat", delay=3600)
        assert await job.areschedule(delay=7200) == (await job.arefresh()).run_at

    asyncio.run(work())


def test_a_schedule_is_stored_in_the_callers_transaction(hf: Holdfast, holdfast_dsn: str) -> None:
    with psycopg.connect(holdfast_dsn) as conn:
        hf.on(conn).schedules.add("pulse", "beat", every=60)
        hf.on(conn).schedules.pause("pulse")
        conn.rollback()
    assert hf.schedules.list() == []


def test_a_time_without_a_zone_is_refused(hf: Holdfast) -> None:
    job = hf.enqueue("beat", delay=60)
    with pytest.raises(BadValue, match="must have a time zone"):
        job.reschedule(run_at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(BadValue, match="either run_at or delay"):
        job.reschedule(run_at=datetime(2030, 1, 1, tzinfo=UTC), delay=5)
    with pytest.raises(BadValue, match="either run_at or delay"):
        job.reschedule()


def clock_now(hf: Holdfast) -> datetime:
    with hf.database.connection() as connection:
        now: datetime = connection.execute("select holdfast.clock()").fetchall()[0][0]
    return now


@pytest.mark.parametrize("cron", ["", "0 9 * *", "0 0 9 * * mon 2030", "@daily @weekly", "every day"])
def test_an_expression_without_its_fields_is_refused_where_it_is_declared(hf: Holdfast, cron: str) -> None:
    with pytest.raises(BadValue, match="must have five fields") as caught:
        hf.task(name="report", schedule=cron)(lambda: None)
    assert caught.value.field == "cron"
    for accepted in ("0 9 * * mon-fri", " 0 0 9 * * 1 ", "@daily"):
        Schedule(cron=accepted)

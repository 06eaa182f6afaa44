"""Schedules: each tick brings exactly one job, whoever looks, however often, and whatever crashes."""

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from holdfast.testing import Clock
from tests.fixtures import Until
from tests.sql.sessions import Refused, Session, Together

Now = Callable[[], datetime]
Jobs = Callable[[], list[datetime]]

MINUTELY = {"name": "report", "task": "report.make", "cron": "* * * * *"}


@pytest.fixture
def now(sql: Session) -> Now:
    return lambda: sql.one("select holdfast.clock()")


@pytest.fixture
def at_noon(sql: Session, now: Now, clock: Clock) -> datetime:
    """The clock stands shortly before noon, on a day of its own."""
    noon = now().astimezone(UTC).replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=1)
    clock.advance(noon - timedelta(seconds=30) - now())
    return noon


@pytest.fixture
def jobs(sql: Session) -> Jobs:
    """The ticks of the jobs there are."""

    def jobs() -> list[datetime]:
        rows = sql("select (headers ->> 'tick')::timestamptz from holdfast.job order by 1")
        return [row[0] for row in rows]

    return jobs


def listed(sql: Session, name: str = "report") -> Any:
    return next(row for row in sql.rows("list_schedules") if row.name == name)


def test_a_tick_brings_one_job(sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs) -> None:
    assert (
        sql.value("add_schedule", **MINUTELY, payload='{"kind": "daily"}', queue="reports", priority=50)
        == at_noon
    )
    assert sql.value("fire") > timedelta(seconds=0)
    assert jobs() == []
    clock.advance(seconds=31)
    sql.value("fire")
    sql.value("fire")
    assert jobs() == [at_noon]
    job = sql.rows("list_jobs")[0]
    assert (job.task, job.queue, job.priority) == ("report.make", "reports", 50)
    row = listed(sql)
    assert (row.last_at, row.next_at, row.last_job) == (at_noon, at_noon + timedelta(minutes=1), job.id)
    headers = sql.one("select headers from holdfast.job")
    assert headers["schedule"] == "report"


def test_the_answer_says_how_long_it_is_until_the_next_tick(
    sql: Session, clock: Clock, at_noon: datetime
) -> None:
    assert sql.value("fire") is None
    sql.value("add_schedule", **MINUTELY)
    assert timedelta(seconds=25) < sql.value("fire") <= timedelta(seconds=30)
    sql.value("pause_schedule", name="report")
    assert sql.value("fire") is None


def test_every_so_often(sql: Session, clock: Clock, jobs: Jobs, now: Now) -> None:
    begun = now()
    first = sql.value("add_schedule", name="beat", task="beat", every="90 seconds")
    assert timedelta(seconds=89) < first - begun < timedelta(seconds=91)
    for _ in range(4):
        clock.advance(seconds=90)
        sql.value("fire")
    assert jobs() == [first + n * timedelta(seconds=90) for n in range(4)]


@pytest.mark.parametrize("times", [{"cron": "*/10 * * * *"}, {"every": "10 minutes"}])
@pytest.mark.parametrize(
    ("missed", "made", "skipped"), [("once", [9], 0), ("all", range(10), 0), ("skip", [], 1)]
)
def test_ticks_that_came_while_nothing_ran(
    sql: Session,
    clock: Clock,
    now: Now,
    jobs: Jobs,
    times: dict[str, Any],
    missed: str,
    made: range | list[Any],
    skipped: int,
) -> None:
    first = sql.value("add_schedule", name="report", task="report", missed=missed, **times)
    clock.advance(first + timedelta(minutes=90, seconds=70) - now())
    sql.value("fire")
    assert jobs() == [first + n * timedelta(minutes=10) for n in made]
    assert listed(sql).skipped == skipped
    assert listed(sql).next_at == first + timedelta(minutes=100)


def test_a_tick_that_is_hardly_late_is_not_missed(
    sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY, missed="skip")
    clock.advance(seconds=80)
    sql.value("fire")
    assert jobs() == [at_noon]


def test_a_call_that_has_fired_a_thousand_schedules_tells_that_more_are_due(
    sql: Session, clock: Clock
) -> None:
    sql(
        "select holdfast.add_schedule(name => 'beat.' || n, task => 'beat', every => '1 minute') "
        "from generate_series(1, 1001) n"
    )
    clock.advance(minutes=1)
    assert sql.value("fire") <= timedelta(0)
    assert sql.value("fire") > timedelta(0)
    assert sql.one("select count(*) from holdfast.live") == 1001


def test_all_that_was_missed_is_made_up_for_a_week_at_most_and_a_thousand_at_a_time(
    sql: Session, clock: Clock, jobs: Jobs
) -> None:
    first = sql.value("add_schedule", name="report", task="report", every="10 minutes", missed="all")
    clock.advance(days=8)
    sql.value("fire")
    assert len(jobs()) == 1000
    sql.value("fire")
    ticks = jobs()
    assert len(ticks) == 7 * 144
    assert ticks[0] - first >= timedelta(hours=23)


def test_no_overlap(sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs) -> None:
    sql.value("add_schedule", **MINUTELY, overlap=False)
    clock.advance(seconds=31)
    sql.value("fire")
    job = sql.claim_one()
    clock.advance(minutes=1)
    sql.value("fire")
    assert jobs() == [at_noon]
    assert listed(sql).skipped == 1
    sql.finish([job])
    clock.advance(minutes=1)
    sql.value("fire")
    assert jobs() == [at_noon + timedelta(minutes=2)]


def test_jitter_delays_the_job_not_the_tick(sql: Session, clock: Clock, at_noon: datetime) -> None:
    sql.value("add_schedule", **MINUTELY, jitter="1 hour")
    clock.advance(seconds=31)
    sql.value("fire")
    state, run_at, tick = sql("select state, run_at, (headers ->> 'tick')::timestamptz from holdfast.job")[0]
    assert (state, tick) == ("scheduled", at_noon)
    assert at_noon < run_at < at_noon + timedelta(hours=1)


def test_the_zone_is_the_schedules_own(sql: Session, clock: Clock) -> None:
    at = sql.value("add_schedule", name="a", task="t", cron="0 9 * * *", zone="Asia/Kolkata")
    assert (at.astimezone(UTC).hour, at.astimezone(UTC).minute) == (3, 30)


def test_pause_and_resume(sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs) -> None:
    sql.value("add_schedule", **MINUTELY, missed="all")
    assert sql.value("pause_schedule", name="report") is True
    assert sql.value("pause_schedule", name="report") is False
    assert listed(sql).next_at is None
    clock.advance(minutes=5)
    sql.value("fire")
    assert jobs() == []
    assert sql.value("resume_schedule", name="report") is True
    assert sql.value("resume_schedule", name="report") is False
    sql.value("fire")
    assert jobs() == [], "what passed was not wanted"
    clock.advance(minutes=1)
    sql.value("fire")
    assert jobs() == [at_noon + timedelta(minutes=5)]


def test_change(sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs) -> None:
    sql.value("add_schedule", **MINUTELY)
    assert sql.value("change_schedule", name="report", payload='{"kind": "new"}') == at_noon, "the same times"
    changed = sql.value("change_schedule", name="report", cron="0 13 * * *", queue="other")
    assert changed == at_noon + timedelta(hours=1)
    row = listed(sql)
    assert (row.payload, row.queue, row.task, row.next_at) == (
        {"kind": "new"},
        "other",
        "report.make",
        changed,
    )
    every = sql.value("change_schedule", name="report", every="1 hour")
    assert listed(sql).cron is None
    assert every > sql.one("select holdfast.clock()")


def test_remove(sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs) -> None:
    sql.value("add_schedule", **MINUTELY)
    assert sql.value("remove_schedule", name="report") is True
    assert sql.value("remove_schedule", name="report") is False
    clock.advance(minutes=5)
    assert sql.value("fire") is None
    assert jobs() == []


def test_run_now(sql: Session, at_noon: datetime) -> None:
    sql.value("add_schedule", **MINUTELY)
    sql.value("pause_schedule", name="report")
    job_id = sql.value("run_schedule", name="report")
    assert sql.state(job_id) == "pending"
    assert sql.one("select headers from holdfast.job") == {"schedule": "report"}


def test_what_comes_next(sql: Session, at_noon: datetime) -> None:
    sql.value("add_schedule", **MINUTELY)
    upcoming = [row[0] for row in sql("select * from holdfast.upcoming('report')")]
    assert upcoming == [at_noon + n * timedelta(minutes=1) for n in range(5)]


def test_code_declares_a_schedule_again_and_again(sql: Session, clock: Clock, at_noon: datetime) -> None:
    first = sql.value("add_schedule", **MINUTELY, declared=True)
    sql.value("pause_schedule", name="report")
    assert sql.value("add_schedule", **MINUTELY, declared=True) == first
    sql.value("add_schedule", **{**MINUTELY, "cron": "0 13 * * *"}, declared=True)
    row = listed(sql)
    assert row.cron == "0 13 * * *"
    assert row.paused_at is not None, "an operator's pause stays"


def test_who_changed_what_is_on_record(sql: Session, at_noon: datetime) -> None:
    sql.value("add_schedule", **MINUTELY)
    for verb in ("pause", "resume", "run", "remove"):
        sql.value(f"{verb}_schedule", name="report")
    actions = [row[0] for row in sql("select action from holdfast.audit order by id")]
    assert actions == [f"{verb} schedule" for verb in ("add", "pause", "resume", "run", "remove")]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": "No Name"}, None),
        ({"task": ""}, None),
        ({"cron": None}, "cron"),
        ({"every": "1 minute"}, "cron"),
        ({"cron": None, "every": "0.5 seconds"}, "every"),
        ({"cron": None, "every": "1.5 seconds"}, "every"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"zone": "Mars"}, "zone"),
        ({"missed": "never"}, "missed"),
        ({"jitter": "2 days"}, "jitter"),
        ({"priority": 99999}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
    ],
)
def test_bad_input_is_refused(
    sql: Session, refused: Refused, wrong: dict[str, Any], field: str | None
) -> None:
    with refused("HF008" if field else "HF005") as error:
        sql.value("add_schedule", **{**MINUTELY, **wrong})
    if field:
        assert error.detail["field"] == field
    assert sql.rows("list_schedules") == []


@pytest.mark.parametrize("verb", ["change", "pause", "resume", "run"])
def test_an_unknown_name_is_refused(sql: Session, refused: Refused, verb: str) -> None:
    with refused("HF008") as error:
        sql.value(f"{verb}_schedule", name="nobody")
    assert "list_schedules" in error.message


def test_a_name_is_taken_once(sql: Session, refused: Refused) -> None:
    sql.value("add_schedule", **MINUTELY)
    with refused("HF008") as error:
        sql.value("add_schedule", **MINUTELY)
    assert "change it" in error.message


def test_one_that_is_refused_stops_no_other(
    sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY)
    sql.value("add_schedule", name="other", task="other", cron="* * * * *")
    sql("update holdfast.schedule set task = 'No Name' where name = 'report'")
    clock.advance(seconds=31)
    sql.value("fire")
    assert jobs() == [at_noon]
    assert "No Name" in listed(sql).error
    sql("update holdfast.schedule set task = 'report.make' where name = 'report'")
    clock.advance(minutes=1)
    sql.value("fire")
    assert listed(sql).error is None
    assert len(jobs()) == 3


def test_a_tick_that_had_its_job_never_has_another(
    sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY)
    clock.advance(seconds=31)
    sql.value("fire")
    sql("update holdfast.schedule set next_at = %s", at_noon)
    sql.value("fire")
    assert jobs() == [at_noon]


def test_who_looks_at_the_same_time_does_not_wait(
    sql: Session, other: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY)
    clock.advance(seconds=31)
    with sql.connection.transaction(force_rollback=True):
        sql.value("fire")
        other.value("fire")
    assert jobs() == []
    other.value("fire")
    assert jobs() == [at_noon]


def test_ticks_are_forgotten_after_a_month(sql: Session, clock: Clock, at_noon: datetime) -> None:
    sql.value("add_schedule", **MINUTELY)
    clock.advance(seconds=31)
    sql.value("fire")
    sql.value("pause_schedule", name="report")
    clock.advance(days=31)
    sql.value("upkeep")
    assert sql.one("select count(*) from holdfast.schedule_tick") == 0


def test_four_schedulers_that_are_killed_at_random_make_each_job_once(
    sql: Session, holdfast_dsn: str, clock: Clock, jobs: Jobs, until: Until
) -> None:
    ticks = 1000
    first = sql.value("add_schedule", name="beat", task="beat", every="1 second", missed="all")
    last = first + timedelta(seconds=ticks - 1)
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                with psycopg.connect(
                    holdfast_dsn, autocommit=True, application_name="scheduler"
                ) as connection:
                    while not over.is_set():
                        connection.execute("select holdfast.fire()")
            except psycopg.OperationalError:
                pass  # killed: the next one takes its place

    schedulers = [threading.Thread(target=look) for _ in range(4)]
    for scheduler in schedulers:
        scheduler.start()
    chance = random.Random(5)
    killed = 0
    try:
        for _ in range(100):
            clock.advance(seconds=ticks / 100)
            victims = sql("select pid from pg_stat_activity where application_name = 'scheduler'")
            if victims and chance.random() < 0.5:
                killed += sql.one("select pg_terminate_backend(%s)", chance.choice(victims)[0])
        until(lambda: (done := listed(sql, "beat").last_at) and done >= last)
        sql.value("pause_schedule", name="beat")
    finally:
        over.set()
        for scheduler in schedulers:
            scheduler.join()
    assert killed > 10
    made = [tick for tick in jobs() if tick <= last]
    assert made == [first + timedelta(seconds=n) for n in range(ticks)]


def test_what_an_operator_changed_is_not_changed_back_by_code(sql: Session, at_noon: datetime) -> None:
    sql.value("add_schedule", **MINUTELY, declared=True)
    changed = sql.value("change_schedule", name="report", cron="0 14 * * *")
    assert not listed(sql).declared
    assert sql.value("add_schedule", **MINUTELY, declared=True) == changed
    assert listed(sql).cron == "0 14 * * *"
    sql.value("remove_schedule", name="report")
    assert sql.value("add_schedule", **MINUTELY, declared=True) == at_noon


@pytest.mark.parametrize("declared", [True, False])
def test_another_interval_is_counted_from_its_change(
    sql: Session, clock: Clock, now: Now, jobs: Jobs, declared: bool
) -> None:
    beat = {"name": "beat", "task": "beat"}
    sql.value("add_schedule", **beat, every="7 minutes", declared=declared)
    clock.advance(minutes=3)
    if declared:
        first = sql.value("add_schedule", **beat, every="10 minutes", declared=True)
    else:
        first = sql.value("change_schedule", name="beat", every="10 minutes")
    assert timedelta(minutes=9) < first - now() <= timedelta(minutes=10)
    for _ in range(2):
        clock.advance(minutes=10)
        sql.value("fire")
    assert jobs() == [first, first + timedelta(minutes=10)]


def test_the_times_to_come_are_listed_with_words(sql: Session, at_noon: datetime) -> None:
    sql.value("add_schedule", **MINUTELY)
    ahead = [at_noon + timedelta(minutes=n) for n in range(3)]
    (row,) = sql.rows("list_schedules", upcoming=3)
    assert (row.words, row.upcoming, row.next_at) == ("every minute", ahead, at_noon)
    assert [row[0] for row in sql.rows("upcoming", name="report", amount=3)] == ahead
    sql.value("pause_schedule", name="report")
    assert listed(sql).upcoming == []
    assert sql.rows("upcoming", name="report") == []


def test_looking_at_the_times_to_come_waits_for_nobody(
    sql: Session, other: Session, at_noon: datetime
) -> None:
    sql.value("add_schedule", **MINUTELY)
    with other.transaction():
        other("select from holdfast.schedule for update")
        sql("set lock_timeout = '1ms'")
        assert len(sql.rows("upcoming", name="report")) == 5


def test_who_fires_is_told_that_a_schedule_has_more_ticks_than_are_fired_at_a_time(
    sql: Session, clock: Clock
) -> None:
    sql.value("add_schedule", name="beat", task="beat", every="1 second", missed="all")
    clock.advance(seconds=2500)
    assert sql.value("fire") <= timedelta(0)
    while sql.value("fire") <= timedelta(0):
        pass
    assert sql.one("select count(*) from holdfast.schedule_tick") >= 2500


def test_a_lock_that_passes_costs_no_tick(
    sql: Session, other: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY, missed="all")
    clock.advance(minutes=3)
    with other.transaction():
        other("lock table holdfast.job in share mode")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            sql.value("fire")
    sql.value("fire")
    assert len(jobs()) == 3
    assert (listed(sql).skipped, listed(sql).error) == (0, None)


def test_a_lock_on_schedules_does_not_hold_up_delayed_jobs(
    sql: Session, other: Session, clock: Clock, at_noon: datetime
) -> None:
    sql.value("add_schedule", **MINUTELY)
    job = sql.enqueue(delay="1 minute")
    clock.advance(minutes=2)
    with other.transaction():
        other("lock table holdfast.schedule_tick in share mode")
        assert sql.value("promote") > timedelta(0)
    assert sql.state(job) == "pending"


def test_a_zone_that_is_gone_stops_nothing_else(
    sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY)
    sql.value("add_schedule", name="gone", task="gone", cron="* * * * *", zone="US/Eastern")
    sql("update holdfast.schedule set zone = 'US/Gone' where name = 'gone'")
    job = sql.enqueue(delay="1 second")
    clock.advance(minutes=2)
    sql.value("promote")
    assert sql.state(job) == "pending"
    assert at_noon + timedelta(minutes=1) in jobs()
    gone = listed(sql, "gone")
    assert "US/Gone" in gone.error
    assert gone.upcoming == [gone.next_at]
    assert gone.next_at > sql.one("select holdfast.clock()")


def test_after_the_clock_was_ahead_the_times_go_on(
    sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY)
    clock.advance(days=365)
    sql.value("promote")
    clock.advance(days=-365)
    sql.value("promote")
    clock.advance(minutes=1)
    sql.value("promote")
    assert jobs()[:1] == [at_noon]
    assert len(jobs()) == 2


def test_catching_up_stops_when_time_is_up_and_goes_on_where_it_was(
    sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY, missed="all")
    clock.advance(minutes=10)
    sql("select holdfast.fire_one(s, holdfast.clock(), '-infinity') from holdfast.schedule s")
    assert jobs() == [at_noon]
    assert sql.value("fire") > timedelta(0)
    assert jobs() == [at_noon + n * timedelta(minutes=1) for n in range(10)]


def test_a_schedule_that_somebody_has_locked_is_looked_at_a_little_later(
    sql: Session, other: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY)
    clock.advance(minutes=1)
    with other.transaction():
        other("select from holdfast.schedule for update")
        assert sql.value("promote") == timedelta(milliseconds=100)
    sql.value("promote")
    assert len(jobs()) == 1


def test_running_one_by_hand_holds_up_no_tick(
    sql: Session, other: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY)
    clock.advance(minutes=1)
    with other.transaction():
        other.value("run_schedule", name="report")
        sql.value("fire")
        assert jobs() == [at_noon]


def test_a_run_by_hand_counts_where_jobs_must_not_overlap(
    sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs
) -> None:
    sql.value("add_schedule", **MINUTELY, overlap=False)
    sql.value("run_schedule", name="report")
    clock.advance(minutes=1)
    sql.value("fire")
    assert len(jobs()) == 1
    assert listed(sql).skipped == 1


def test_declaring_and_removing_at_once_never_fails(sql: Session, other: Session, together: Together) -> None:
    def declare() -> None:
        for _ in range(200):
            sql.value("add_schedule", **MINUTELY, declared=True)

    def remove() -> None:
        for _ in range(200):
            other.value("remove_schedule", name="report")

    together(declare, remove)


def test_the_zone_of_an_interval_does_not_move_it(sql: Session, clock: Clock, at_noon: datetime) -> None:
    first = sql.value("add_schedule", name="report", task="t", every="1 hour")
    clock.advance(minutes=7)
    assert sql.value("change_schedule", name="report", zone="Europe/Berlin") == first


def test_a_change_of_nothing_is_refused(sql: Session, refused: Refused, at_noon: datetime) -> None:
    sql.value("add_schedule", **MINUTELY, declared=True)
    with refused("HF008") as error:
        sql.value("change_schedule", name="report")
    assert "say what to change" in error.message
    assert listed(sql).declared


def test_what_was_changed_is_on_record_without_the_payload(sql: Session, at_noon: datetime) -> None:
    sql.value("add_schedule", **MINUTELY)
    sql.value("change_schedule", name="report", cron="0 13 * * *", payload='{"pin": 1}')
    assert sql.one("select detail from holdfast.audit where action = 'change schedule'") == {
        "cron": "0 13 * * *",
        "payload": True,
    }


@pytest.mark.parametrize("every", ["1 month", "1 month 3 days", "-1 year 366 days"])
def test_months_are_no_interval(sql: Session, refused: Refused, every: str) -> None:
    with refused("HF008") as error:
        sql.value("add_schedule", name="beat", task="beat", every=every)
    assert error.detail["field"] == "every"


@pytest.mark.parametrize("zone", ["EST", "CET", "PST", "mst", "Berlin"])
def test_a_zone_by_a_short_name_is_refused(sql: Session, refused: Refused, zone: str) -> None:
    with refused("HF008") as error:
        sql.value("add_schedule", **MINUTELY, zone=zone)
    assert error.detail["field"] == "zone"


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("history", ["new", "fired", "resumed", "refused"])
def test_a_schedule_goes_by_a_clock_that_was_set_back(
    sql: Session, clock: Clock, at_noon: datetime, jobs: Jobs, history: str, every: bool
) -> None:
    times = {"cron": None, "every": "1 minute"} if every else {}
    if history == "resumed":
        sql.value("add_schedule", **MINUTELY | times)
        sql.value("pause_schedule", name="report")
    clock.advance(days=2)
    if history == "resumed":
        sql.value("resume_schedule", name="report")
    else:
        sql.value("add_schedule", **MINUTELY | times)
    if history in {"fired", "refused"}:
        if history == "refused":
            sql("update holdfast.schedule set task = ''")
        clock.advance(minutes=2)
        sql.value("fire")
        sql("update holdfast.schedule set task = 'report.make'")
    before = len(jobs())
    clock.advance(days=-1)
    sql.value("promote")
    assert listed(sql).next_at - sql.one("select holdfast.clock()") <= timedelta(minutes=1)
    assert len(jobs()) == before, "it waits for its next time"
    clock.advance(minutes=1)
    assert sql.value("promote") <= timedelta(minutes=1)
    assert len(jobs()) == before + 1


def test_a_schedule_of_release_0_1_that_never_fired_goes_by_a_clock_that_was_set_back(
    sql: Session, clock: Clock, at_noon: datetime
) -> None:
    sql.value("add_schedule", **MINUTELY)
    sql("update holdfast.schedule set planned_at = null")
    clock.advance(days=-1)
    sql.value("promote")
    assert listed(sql).next_at - sql.one("select holdfast.clock()") <= timedelta(minutes=1)

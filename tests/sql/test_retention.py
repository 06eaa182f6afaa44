"""Retention: what has ended goes when its queue says so, and nothing else ever does."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Connect, Refused, Session, Together, copied_database

Configure = Callable[..., list[Any]]
Done = Callable[..., list[UUID]]


@pytest.fixture
def holdfast_dsn(holdfast_server: str, holdfast_template: str) -> Iterator[str]:
    with copied_database(holdfast_server, holdfast_template) as dsn:
        yield dsn


@pytest.fixture
def configure(sql: Session) -> Configure:
    return lambda queue, **settings: sql.rows("configure", queue=queue, settings=json.dumps(settings))


@pytest.fixture
def done(sql: Session) -> Done:
    """Run jobs of a queue through; their ids."""

    def make(queue: str, amount: int = 1, *, events: bool = True) -> list[UUID]:
        sql.enqueue_many(amount, queues=[queue] * amount)
        jobs = sql.claim_all(queues=[queue])
        assert len(jobs) == amount
        for job in jobs if events else ():
            sql.value("publish", id=job.id, lease=job.lease, name="seen")
            sql.value("keep_step", id=job.id, lease=job.lease, name="one")
        sql.finish(jobs)
        return [job.id for job in jobs]

    return make


@pytest.fixture
def dead(sql: Session) -> Callable[[str], UUID]:
    """A dead letter with errors and a step; its id."""

    def make(queue: str) -> UUID:
        sql.enqueue(queue=queue, max_attempts=1)
        job = sql.claim_one(queues=[queue])
        sql.value("keep_step", id=job.id, lease=job.lease, name="one")
        sql.finish([job], "failed", errors=["no"])
        assert sql.state(job.id) == "dead"
        return job.id

    return make


def sweep(sql: Session) -> None:
    while sql.value("sweep"):
        pass


def kept(sql: Session, table: str = "finished") -> dict[str, int]:
    return dict(sql(f"select queue, count(*) from holdfast.{table} group by queue order by queue"))


TRACES = {
    "attempt_error": "job_id",
    "step": "job_id",
    "checkpoint": "job_id",
    "event_count": "job_id",
    "finished": "id",
    "dead_letter": "id",
    "job": "id",
    "running": "job_id",
}


def traces(sql: Session, job_id: UUID | str) -> set[str]:
    """The tables that still know a job."""
    return {
        table
        for table, column in TRACES.items()
        if sql.one(f"select exists (select from holdfast.{table} where {column} = %s)", job_id)
    }


def test_each_queue_keeps_its_jobs_for_its_own_time(
    sql: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    configure("short", retention="7 days")
    configure("long", retention="90 days")
    clock.advance(days=1)
    ids = {queue: done(queue, 3)[0] for queue in ("short", "long", "other")}
    sql.value("upkeep")
    assert kept(sql) == {"long": 3, "other": 3, "short": 3}
    assert set(kept(sql, "event")) == {"long", "other", "short"}
    clock.advance(days=6)
    sweep(sql)
    assert set(kept(sql)) == {"long", "other", "short"}
    clock.advance(days=2, hours=1)
    sweep(sql)
    assert kept(sql) == {"long": 3, "other": 3}
    assert set(kept(sql, "event")) == {"long", "other"}
    assert traces(sql, ids["short"]) == set()
    assert traces(sql, ids["other"]) == {"finished", "step", "event_count"}
    clock.advance(days=24)
    sql.value("upkeep")
    assert kept(sql) == {"long": 3}
    clock.advance(days=60)
    sql.value("upkeep")
    assert kept(sql) == kept(sql, "event") == {}


def test_a_queue_that_keeps_nothing_is_cleared_within_two_minutes(
    sql: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    configure("gone", retention=0)
    for days in (0, 1):  # in the default partition, and in one of a day
        clock.advance(days=days)
        (first,) = done("gone")
        done("other")
        sweep(sql)
        assert sql.state(first) == "completed", "for a minute, so that who waits for it finds it"
        clock.advance(seconds=61)
        sweep(sql)
        assert traces(sql, first) == set()
        assert set(kept(sql)) == {"other"}


def test_a_day_that_has_passed_is_not_searched_again_and_again(
    sql: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    clock.advance(days=1)
    configure("gone", retention=0)
    sweep(sql)  # notes where the partition ends
    done("gone")
    done("other")
    day = sql.one("select to_char(holdfast.clock() at time zone 'UTC', 'YYYYMMDD')")
    for hours in (23, 2, 2, 2):
        sweep(sql)
        clock.advance(hours=hours)
    sweep(sql)
    searched = f"select xmin::text, seen_at from holdfast.swept where partition = 'finished_{day}'"
    last = sql(searched)
    assert last
    clock.advance(minutes=10)
    sweep(sql)
    assert sql(searched) == last
    assert kept(sql) == {"other": 1}


def test_a_large_partition_is_searched_at_its_end_and_the_rest_of_it_little_by_little(
    sql: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    clock.advance(days=1)
    configure("gone", retention=0)
    day = sql.one("select to_char(holdfast.clock() at time zone 'UTC', 'YYYYMMDD')")

    def fill(queue: str, rows: int) -> None:
        """Finished jobs, two to a block."""
        sql(
            f"insert into holdfast.finished_{day} (id, queue, priority, task, payload, state, attempt, "
            "max_attempts, created_at, finished_at) select gen_random_uuid(), %s, 1, 't', "
            "to_jsonb(repeat('x', 3500)), 'completed', 1, 1, holdfast.clock(), holdfast.clock() "
            "from generate_series(1, %s)",
            queue,
            rows,
        )

    sql(f"alter table holdfast.finished_{day} alter payload set storage plain")
    fill("other", 4_200)
    fill("gone", 10)
    blocks = sql.one(f"select pg_relation_size('holdfast.finished_{day}') / 8192")
    assert blocks > 2048
    clock.advance(minutes=2)
    sweep(sql)
    assert kept(sql) == {"other": 4_200}
    fill("gone", 400)
    for _ in range(3):  # the first looks see where the table ends
        clock.advance(seconds=70)
        sweep(sql)
    assert kept(sql) == {"other": 4_200}
    seen = sql.one(f"select seen from holdfast.swept where partition = 'finished_{day}'")
    assert seen > blocks
    assert sql.one(
        "select passed_at < holdfast.clock() - interval '1 minute' from holdfast.swept where partition = %s",
        f"finished_{day}",
    )
    # Somewhere before its end, where space was free: found by the next pass.
    sql(f"update holdfast.finished_{day} set queue = 'gone' where ctid = '(7,1)'")
    sql(f"vacuum holdfast.finished_{day}")
    clock.advance(minutes=6)
    sweep(sql)
    assert kept(sql) == {"other": 4_199}


def test_without_a_shorter_retention_nothing_is_searched(sql: Session, done: Done, clock: Clock) -> None:
    clock.advance(days=1)
    done("mail")
    sweep(sql)
    clock.advance(days=5)
    sweep(sql)
    assert {name for (name,) in sql("select partition from holdfast.swept")} == {
        "finished_default",
        "event_default",
    }


def test_a_shorter_retention_holds_for_what_is_there_already_and_a_longer_one_too(
    sql: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    clock.advance(days=1)
    done("mail")
    done("other")
    clock.advance(days=10)
    configure("mail", retention="5 days")
    sweep(sql)
    assert kept(sql) == {"other": 1}
    configure("other", retention="forever")
    clock.advance(days=20_000)
    sql.value("upkeep")
    assert kept(sql) == {"other": 1}
    configure("other", retention=None)
    sql.value("upkeep")
    assert kept(sql) == {}


def test_dead_letters_have_a_longer_time_of_their_own(
    sql: Session, dead: Callable[[str], UUID], configure: Configure, clock: Clock
) -> None:
    configure("mail", dead_retention="10 days")
    configure("never", dead_retention="forever", retention=0)
    ids = {queue: dead(queue) for queue in ("mail", "never", "other")}
    before = {queue: traces(sql, job_id) for queue, job_id in ids.items()}
    assert before["mail"] == {"dead_letter", "attempt_error", "step", "event_count"}
    clock.advance(days=9)
    sql.value("upkeep")
    assert {queue: traces(sql, job_id) for queue, job_id in ids.items()} == before
    clock.advance(days=2)
    sweep(sql)
    assert traces(sql, ids["mail"]) == set()
    assert traces(sql, ids["other"]) == before["other"]
    clock.advance(days=356)
    sql.value("upkeep")
    assert traces(sql, ids["other"]) == set()
    clock.advance(days=400)
    sql.value("upkeep")
    assert {"dead_letter", "attempt_error", "step"} <= traces(sql, ids["never"])
    assert sql.value("replay", id=ids["never"]) == "pending"


def test_many_dead_letters_go_a_batch_at_a_time(sql: Session, configure: Configure, clock: Clock) -> None:
    sql(
        "insert into holdfast.dead_letter (id, queue, priority, task, payload, attempt, max_attempts, "
        "created_at, died_at) select gen_random_uuid(), 'q' || n %% 3, 1, 't', '{}', 1, 1, holdfast.clock(), "
        "holdfast.clock() from generate_series(1, %s) n",
        6000,
    )
    configure("q0", dead_retention="1 day")
    clock.advance(days=2)
    assert sql.value("sweep") is False
    assert kept(sql, "dead_letter") == {"q1": 2000, "q2": 2000}
    configure("*", dead_retention=0)
    sql.enqueue_many(1)
    sql("update holdfast.dead_letter set queue = 'q1'")
    sql(
        "insert into holdfast.dead_letter (id, queue, priority, task, payload, attempt, max_attempts, "
        "created_at, died_at) select gen_random_uuid(), queue, priority, task, payload, attempt, "
        "max_attempts, created_at, died_at from holdfast.dead_letter"
    )
    assert sql.value("sweep") is True
    assert kept(sql, "dead_letter") == {"q1": 3000}
    assert sql.value("sweep") is False
    assert kept(sql, "dead_letter") == {}


@pytest.mark.parametrize("disposal", ["drop", "archive", "export"])
def test_nothing_unfinished_is_ever_touched(
    sql: Session, configure: Configure, dead: Callable[[str], UUID], clock: Clock, disposal: str
) -> None:
    """Every live state, with years gone by and retentions of nothing."""
    configure("*", retention=0, dead_retention=0, disposal=disposal)
    claimed, running, returned = sql.enqueue_many(3)
    worker = sql.value("register", lease_time="1 day")
    held = {job.id: job for job in sql.claim_all(worker=worker)}
    sql.value("progress", id=running, lease=held[running].lease, percent=10)
    for job in (held[running], held[returned]):
        sql.value("keep_step", id=job.id, lease=job.lease, name="one")
        sql.value("keep_checkpoint", id=job.id, lease=job.lease, state='{"row": 1}')
        sql.value("publish", id=job.id, lease=job.lease, name="seen")
    sql.finish([held[returned]], "failed", errors=["no"], delays=["90 years"])
    pending = sql.enqueue(id="0190b7f2-7f0e-7d7e-8d0a-3f1f6f3a0001")
    scheduled = sql.enqueue(delay="90 years")
    revived = dead("other")
    sql.value("replay", id=revived)
    states = {claimed: "claimed", running: "running", returned: "scheduled"}
    states |= {pending: "pending", scheduled: "scheduled", revived: "pending"}
    assert {job_id: sql.state(job_id) for job_id in states} == states
    before = {job_id: (traces(sql, job_id), sql.live(job_id)) for job_id in states}
    for days in (2, 400, 10_000):
        clock.advance(days=days)
        sql("update holdfast.worker set heartbeat_at = holdfast.clock()")  # it is alive all the time
        sql.value("upkeep")
        sweep(sql)
        assert {job_id: (traces(sql, job_id), sql.live(job_id)) for job_id in states} == before
        assert {job_id: sql.state(job_id) for job_id in states} == states
        assert sql.one("select error from holdfast.duty where name = 'upkeep'") is None
    assert sql.one("select count(*) from holdfast.used_id") == 1
    assert len(sql.rows("job_errors", id=returned)) == 1


def test_events_outlive_the_retention_of_their_queue_as_long_as_their_job_lives(
    sql: Session, configure: Configure, clock: Clock
) -> None:
    configure("mail", retention="1 hour")
    ended, lives = sql.enqueue_many(2, queues=["mail"] * 2)
    worker = sql.value("register", lease_time="1 day")
    held = {job.id: job for job in sql.claim_all(worker=worker)}
    for job in held.values():
        sql.value("publish", id=job.id, lease=job.lease, name="seen")
    sql.finish([held[ended]])
    clock.advance(days=2)
    sql("update holdfast.worker set heartbeat_at = holdfast.clock()")
    sweep(sql)
    assert sql("select distinct job_id from holdfast.event") == [(lives,)]


def test_what_an_id_was_used_for_again_is_not_taken_along(
    sql: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    configure("gone", retention=0)
    again = "0190b7f2-7f0e-7d7e-8d0a-3f1f6f3a0001"
    sql.enqueue(queue="gone", id=again)
    sql.finish(sql.claim())
    clock.advance(days=8)
    sql("delete from holdfast.used_id")
    sql.enqueue(queue="gone", id=again)
    job = sql.claim_one()
    sql.value("keep_step", id=job.id, lease=job.lease, name="one")
    sweep(sql)
    assert kept(sql) == {}
    assert {"job", "step"} <= traces(sql, again)


def test_the_steps_of_a_finished_job_outlive_an_earlier_job_with_the_same_id(
    sql: Session, configure: Configure, clock: Clock
) -> None:
    configure("mail", retention="10 days")
    again = "0190b7f2-7f0e-7d7e-8d0a-3f1f6f3a0001"

    def work() -> None:
        sql.enqueue(queue="mail", id=again)
        job = sql.claim_one()
        sql.value("keep_step", id=job.id, lease=job.lease, name="one")
        sql.finish([job])

    work()
    clock.advance(days=8)
    sql("delete from holdfast.used_id where used_at < holdfast.clock() - interval '7 days'")
    work()
    clock.advance(days=3)
    sweep(sql)
    assert kept(sql) == {"mail": 1}
    assert traces(sql, again) == {"finished", "step", "event_count"}
    clock.advance(days=8)
    sweep(sql)
    assert traces(sql, again) == set()


@pytest.mark.parametrize("table", ["finished", "event"])
def test_an_archive_of_an_earlier_release_takes_the_columns_of_a_later_one(
    sql: Session, done: Done, configure: Configure, clock: Clock, table: str
) -> None:
    archive = f"holdfast_archive.{table}_default"
    configure("*", disposal="archive")
    done("mail")
    clock.advance(days=40)
    sweep(sql)
    earlier = sql.one(f"select count(*) from {archive}")
    # Whose it is has looked after it: now its columns stand in another order too.
    sql(f"alter table {archive} add column reason text, drop column queue")
    sql(f'alter table holdfast.{table} add column shift text collate "C", add column parts numeric(6, 2)[]')
    done("mail")
    sql(f"update holdfast.{table}_default set shift = 'late', parts = '{{1.5}}'")
    clock.advance(days=40)
    sweep(sql)
    assert kept(sql, table) == {}
    columns = "shift, parts::text, queue, reason"
    found = sql(f"select {columns}, count(*) from {archive} group by 1, 2, 3, 4 order by 1 nulls first")
    assert found[0] == (None, None, None, None, earlier)
    assert [row[:4] for row in found[1:]] == [("late", "{1.50}", "mail", None)]
    collation = (
        "select attcollation::regcollation::text from pg_attribute "
        "where attrelid = %s::regclass and attname = %s"
    )
    assert sql.one(collation, archive, "shift") == '"C"'


def test_an_archived_day_is_moved_under_its_name_and_never_touched_again(
    sql: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    configure("*", disposal="archive")
    (first,) = done("mail")  # in the default partition
    clock.advance(days=1)
    day = sql.one("select (holdfast.clock() at time zone 'UTC')::date")
    (old,) = done("mail")
    clock.advance(days=40)
    sql.value("upkeep")
    assert sql.one("select error from holdfast.duty where name = 'upkeep'") is None
    for name in ("finished", "event"):
        moved = f"holdfast_archive.{name}_{day:%Y%m%d}"
        assert sql.one(f"select count(*) from {moved}") > 0
        today = day + timedelta(days=40)
        assert f"{day}, archived by Holdfast on {today}." in sql.one(
            "select obj_description(%s::regclass, 'pg_class')", moved
        )
        assert sql.one(f"select count(*) from holdfast_archive.{name}_default") > 0
    archived = sql(
        "select id from holdfast_archive.finished_default union all "
        f"select id from holdfast_archive.finished_{day:%Y%m%d}"
    )
    assert archived == [(first,), (old,)]
    assert kept(sql) == kept(sql, "event") == {}
    clock.advance(days=4000)
    sql.value("upkeep")
    assert sql.one(f"select count(*) from holdfast_archive.finished_{day:%Y%m%d}") == 1
    assert sql.one("select has_schema_privilege('public', 'holdfast_archive', 'usage')") is False


def test_a_day_that_is_to_be_exported_waits_for_it(
    sql: Session, done: Done, configure: Configure, clock: Clock, refused: Refused
) -> None:
    configure("*", disposal="export")
    done("mail", 2)
    clock.advance(days=1)
    day = sql.one("select (holdfast.clock() at time zone 'UTC')::date")
    done("mail", 3)
    assert sql.rows("due_exports") == []
    clock.advance(days=400)
    sql.value("upkeep")
    due = {row.partition: row for row in sql.rows("due_exports")}
    ours = f"finished_{day:%Y%m%d}"
    assert {ours, "finished_default", "event_default"} <= set(due)
    assert (due[ours].until_at - due[ours].from_at, due["finished_default"].rows) == (timedelta(days=1), 2)
    assert kept(sql) == {"mail": 5}

    assert sql.value("mark_exported", partition=ours, rows=3, location="here") is True
    assert sql.value("mark_exported", partition=ours, rows=3) is False
    assert kept(sql) == {"mail": 5}, "not before the duty comes by"
    sql.value("upkeep")
    assert kept(sql) == {"mail": 2}
    assert sql.one("select to_regclass(%s)", f"holdfast.{ours}") is None

    until = due["finished_default"].until_at
    with refused("HF008") as error:
        sql.value("mark_exported", partition="finished_default", until=until + timedelta(days=1))
    assert "not past its retention" in error.message
    done("mail")
    assert sql.value("mark_exported", partition="finished_default", until=until, rows=2) is True
    sweep(sql)
    assert kept(sql) == {"mail": 1}, "what is younger stays"
    for wrong in ("job", "finished_19990101", "finished; drop table job"):
        with refused("HF008") as error:
            sql.value("mark_exported", partition=wrong)
        assert "holdfast.due_exports() has those that do" in error.message
    assert [row.target for row in sql.rows("audit_log", action="export")] == ["finished_default", ours]


def test_a_day_is_not_exported_while_somebody_has_yet_to_commit_to_it(
    sql: Session, other: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    configure("*", retention="1 hour", disposal="export")
    sql.value("upkeep")
    clock.advance(days=1)
    done("default")
    worker = other.value("register")
    sql.enqueue()
    (late,) = other.claim(worker=worker)
    with other.connection.transaction():
        other.finish([late])
        (partition,) = sql.one("select array_agg(distinct tableoid::regclass::text) from holdfast.finished")
        clock.advance(days=2)
        assert partition not in {f"holdfast.{row.partition}" for row in sql.rows("due_exports")}
    due = {f"holdfast.{row.partition}": row for row in sql.rows("due_exports")}[partition]
    exported = sql.one(
        "select count(*) from holdfast.export_finished(%s, %s, false)", due.from_at, due.until_at
    )
    assert exported == 2


def test_partitions_are_listed_with_what_comes_of_them(
    sql: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    clock.advance(days=1)
    day = sql.one("select (holdfast.clock() at time zone 'UTC')::date")
    done("mail", 5)
    sql(f"analyze holdfast.finished_{day:%Y%m%d}")
    rows = {row.partition: row for row in sql.rows("list_partitions")}
    row = rows[f"finished_{day:%Y%m%d}"]
    assert (row.parent, row.day, row.rows, row.fate) == ("finished", day, 5, "drop")
    assert row.bytes > 0
    assert row.goes_at.date() == day + timedelta(days=31)
    assert (rows["event_default"].day, rows["event_default"].fate) == (None, "row by row")
    configure("mail", retention="forever")
    assert {row.fate for row in sql.rows("list_partitions")} == {"keep", "row by row"}


def test_a_report_that_reads_makes_neither_a_sweep_nor_a_finish_wait(
    sql: Session, other: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    clock.advance(days=1)
    configure("*", disposal="archive", retention="10 days")
    configure("gone", retention=0)
    day = sql.one("select to_char(holdfast.clock() at time zone 'UTC', 'YYYYMMDD')")
    done("gone")
    done("mail")
    clock.advance(days=40)
    with other.connection.transaction():
        other("select count(*) from holdfast.finished")
        sql.value("upkeep")
        assert kept(sql) == {"mail": 1}
        assert sql.one("select to_regclass(%s)", f"holdfast_archive.finished_{day}") is None
        done("mail")
    sql.value("upkeep")
    assert kept(sql) == {"mail": 1}
    assert sql.one(f"select count(*) from holdfast_archive.finished_{day}") == 1


def test_a_fleet_sweeps_once_in_a_while(
    sql: Session, other: Session, done: Done, configure: Configure, clock: Clock
) -> None:
    configure("gone", retention=0)
    sweep(sql)
    done("gone")
    clock.advance(seconds=70)
    sql("update holdfast.duty set looks = array[holdfast.clock()] where name = 'sweep'")
    assert other.value("sweep", rest="20 seconds") is False
    assert kept(sql) == {"gone": 1}
    clock.advance(seconds=21)
    other.value("sweep", rest="20 seconds")
    assert kept(sql) == {}


def test_sweeps_and_finishes_beside_each_other_lose_and_hinder_nothing(
    sql: Session, connect: Connect, configure: Configure, together: Together, clock: Clock
) -> None:
    configure("gone", retention=0)
    configure("long", retention="90 days")
    finisher, keeper = connect(), connect()

    def finish() -> None:
        for _ in range(20):
            for queue in ("gone", "long"):
                finisher.enqueue_many(20, queues=[queue] * 20)
                assert finisher.finish(finisher.claim_all(queues=[queue])) == []

    def keep() -> None:
        for _ in range(20):
            clock.advance(minutes=3)
            keeper.value("sweep")
        clock.advance(days=1)
        keeper.value("upkeep")

    together(finish, keep)
    clock.advance(hours=1)
    sweep(sql)
    assert kept(sql) == {"long": 400}

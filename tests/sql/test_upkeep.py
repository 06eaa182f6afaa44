"""The slow duty: partitions made ahead and dropped behind, and everything old forgotten."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, timedelta
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import schema
from holdfast.testing import Clock
from tests.sql.sessions import Connect, Session, Together, copied_database


@pytest.fixture
def holdfast_dsn(holdfast_server: str, holdfast_template: str) -> Iterator[str]:
    with copied_database(holdfast_server, holdfast_template) as dsn:
        yield dsn


def partitions(sql: Session) -> set[str]:
    query = "select inhrelid::regclass::text from pg_inherits where inhparent = 'holdfast.finished'::regclass"
    return {name.removeprefix("holdfast.") for (name,) in sql(query)}


def named(*days: date) -> set[str]:
    return {f"finished_{day:%Y%m%d}" for day in days}


@pytest.fixture
def today(sql: Session) -> Callable[[], date]:
    return lambda: sql.one("select (holdfast.clock() at time zone 'UTC')::date")


@pytest.fixture
def done(sql: Session) -> Callable[[], UUID]:
    """Run a job through; returns its id."""

    def make() -> UUID:
        job_id = sql.enqueue()
        sql.finish([sql.claim_one()])
        return job_id

    return make


def place(sql: Session, job_id: UUID) -> str:
    name = sql.one("select tableoid::regclass::text from holdfast.finished where id = %s", job_id)
    return name.removeprefix("holdfast.")


def test_partitions_are_made_a_week_ahead_with_a_default_behind_them(
    sql: Session, today: Callable[[], date]
) -> None:
    # Never for today: a finish on its way to the default partition would be refused there.
    days = [today() + timedelta(days=n) for n in range(1, 8)]
    assert partitions(sql) == named(*days) | {"finished_default"}


def test_no_partition_is_gone_through_because_rows_come_in(sql: Session, clock: Clock) -> None:
    clock.advance(days=3)
    sql.value("upkeep")
    options = sql(
        "select c.reloptions from pg_inherits i join pg_class c on c.oid = i.inhrelid "
        "where i.inhparent in ('holdfast.finished'::regclass, 'holdfast.event'::regclass) and c.relkind = 'r'"
    )
    assert len(options) == 2 * (1 + 7 + 3)
    assert all("autovacuum_vacuum_insert_threshold=-1" in some for (some,) in options)


def test_a_finished_job_lies_in_the_partition_of_its_day(
    sql: Session, today: Callable[[], date], done: Callable[[], UUID], clock: Clock
) -> None:
    assert place(sql, done()) == "finished_default"
    for days in (1, 3):
        clock.advance(days=days)
        assert {place(sql, done())} == named(today())


def test_partitions_are_cut_at_midnight_utc_whatever_the_session_thinks(sql: Session, clock: Clock) -> None:
    sql("set timezone = 'Pacific/Kiritimati'")
    clock.advance(days=100)
    sql.value("upkeep")
    sql("set timezone = 'UTC'")
    bounds = sql(
        "select pg_get_expr(c.relpartbound, c.oid) from pg_class c "
        "where c.relnamespace = 'holdfast'::regnamespace and c.relname ~ '^finished_[0-9]{8}$'"
    )
    assert len(bounds) >= 7
    assert all(bound.count(" 00:00:00+00'") == 2 for (bound,) in bounds)


def test_a_day_without_a_partition_goes_to_the_default_and_stays_there(
    sql: Session, today: Callable[[], date], done: Callable[[], UUID], clock: Clock
) -> None:
    clock.advance(days=20)
    lonely = done()
    assert place(sql, lonely) == "finished_default"
    assert sql.value("upkeep") > 0
    ahead = [today() + timedelta(days=n) for n in range(1, 8)]
    assert named(*ahead) <= partitions(sql)
    assert named(today()).isdisjoint(partitions(sql)), "its rows are in the default partition already"
    assert sql.state(lonely) == "completed"
    clock.advance(days=1)
    assert {place(sql, done())} == named(today())


def test_finished_jobs_are_dropped_after_the_longest_retention(
    sql: Session, today: Callable[[], date], done: Callable[[], UUID], clock: Clock
) -> None:
    clock.advance(days=1)
    old_day = today()
    old = done()
    assert {place(sql, old)} == named(old_day)
    clock.advance(days=30)
    sql.value("upkeep")
    assert sql.state(old) == "completed", "not before the last of that day is 30 days old"
    clock.advance(days=2)
    sql.value("upkeep")
    assert sql.rows("job", id=old) == []
    assert named(old_day).isdisjoint(partitions(sql))


def test_a_queue_with_a_longer_retention_keeps_the_partitions(
    sql: Session, today: Callable[[], date], clock: Clock
) -> None:
    sql("insert into holdfast.queue (name, retention) values ('slow', '90 days')")
    clock.advance(days=1)
    old_day = today()
    sql.enqueue(queue="slow")
    (old,) = sql.claim()
    sql.finish([old])
    clock.advance(days=60)
    sql.value("upkeep")
    assert sql.state(old.id) == "completed"
    clock.advance(days=32)
    sql.value("upkeep")
    assert sql.rows("job", id=old.id) == []
    assert named(old_day).isdisjoint(partitions(sql))


def test_what_lies_in_the_default_partition_is_forgotten_too(
    sql: Session, done: Callable[[], UUID], clock: Clock
) -> None:
    clock.advance(days=20)
    lonely = done()
    assert place(sql, lonely) == "finished_default"
    sql.value("upkeep")
    clock.advance(days=29)
    sql.value("upkeep")
    assert sql.state(lonely) == "completed"
    clock.advance(days=2)
    sql.value("upkeep")
    assert sql.rows("job", id=lonely) == []


def test_a_report_that_reads_the_table_is_not_waited_for_and_nothing_waits_behind_us(
    sql: Session, other: Session, done: Callable[[], UUID], clock: Clock
) -> None:
    clock.advance(days=40)
    before = partitions(sql)
    with other.connection.transaction():
        other("select count(*) from holdfast.finished")
        sql.value("upkeep")
        assert partitions(sql) == before, "neither attached nor dropped while it reads"
        job_id = done()
    sql.value("upkeep")
    assert len(partitions(sql) - before) == 7
    assert len(before - partitions(sql)) == 7
    assert sql.state(job_id) == "completed"


def test_partitions_come_and_go_while_others_finish_jobs(
    sql: Session, connect: Connect, together: Together, clock: Clock
) -> None:
    """Attaching and dropping take locks that finishes hold too: nobody may fail."""
    finisher, keeper = connect(), connect()

    def finish() -> None:
        for _ in range(30):
            finisher.enqueue_many(20)
            assert finisher.finish(finisher.claim_all()) == []

    def keep() -> None:
        for _ in range(8):
            clock.advance(days=5)
            keeper.value("upkeep")

    together(finish, keep)
    assert sql.one("select count(*) from holdfast.job") == 0


def test_the_first_hours_after_an_install_without_upkeep_lose_nothing(holdfast_server: str) -> None:
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute("create database holdfast_bare")
        dsn = make_conninfo(holdfast_server, dbname="holdfast_bare")
        try:
            with psycopg.connect(dsn, autocommit=True) as sql:
                schema.apply(sql)
                job_id = sql.execute("select holdfast.enqueue('task')").fetchall()[0][0]
                ((lease,),) = sql.execute("select lease from holdfast.claim()").fetchall()
                sql.execute("select holdfast.complete(%s, %s)", [job_id, lease])
                errors = sql.execute("select duty, error from holdfast.tick() where error is not null")
                assert errors.fetchall() == []
                state = sql.execute("select state from holdfast.job(%s)", [job_id]).fetchone()
                assert state == ("completed",)
        finally:
            server.execute("drop database holdfast_bare with (force)")


def test_errors_are_forgotten_with_their_jobs_but_not_those_of_the_living_and_the_dead(
    sql: Session, clock: Clock
) -> None:
    fates: dict[str, UUID] = {}
    for fate in ("completed", "dead", "living"):
        fates[fate] = sql.enqueue(fate, max_attempts=9)
        job = sql.claim_one()
        sql.finish([job], "failed", errors=["no"], retries=[fate != "dead"], delays=["0"])
        sql.value("promote")
        if fate == "completed":
            sql.finish([sql.claim_one()])
    clock.advance(days=40)
    sql.value("upkeep")
    left = {fate: len(sql.rows("job_errors", id=job_id)) for fate, job_id in fates.items()}
    assert left == {"completed": 0, "dead": 1, "living": 1}


def test_upkeep_beside_another_does_nothing(sql: Session, other: Session) -> None:
    with sql.connection.transaction():
        sql.value("upkeep")
        assert other.value("upkeep") == 0


def test_upkeep_leaves_a_healthy_database_alone(sql: Session, done: Callable[[], UUID]) -> None:
    done()
    sql.value("upkeep")
    assert sql.value("upkeep") == 0


def test_a_fleet_keeps_house_once_in_a_while(sql: Session, other: Session, clock: Clock) -> None:
    def hangs_on() -> bool:
        """Whether the worker that left long ago is still on record."""
        return sql.one("select exists (select from holdfast.worker where left_at is not null)")

    def tombstone() -> None:
        sql(
            "update holdfast.worker set left_at = holdfast.clock() - interval '2 days' where id = %s",
            sql.value("register"),
        )

    sql.value("upkeep")
    tombstone()
    clock.advance(seconds=40)
    assert other.value("upkeep", rest="45 seconds") == 0
    assert hangs_on()
    clock.advance(seconds=10)
    assert other.value("upkeep", rest="45 seconds") == 1
    assert not hangs_on()
    tombstone()
    assert sql.value("upkeep") == 1, "by hand it is done at once"


def test_the_longer_it_takes_the_longer_is_the_rest(sql: Session, clock: Clock) -> None:
    noon = clock.now().astimezone(UTC).replace(hour=12) + timedelta(days=1)
    clock.set(noon)  # at midnight there is more to do
    sql.value("upkeep")
    sql("update holdfast.duty set looks[2] = looks[1] - interval '1 hour' where name = 'upkeep'")
    sql(
        "update holdfast.worker set left_at = holdfast.clock() - interval '2 days' where id = %s",
        sql.value("register"),
    )
    clock.advance(minutes=14)
    assert sql.value("upkeep", rest="45 seconds") == 0
    clock.advance(minutes=2)
    assert sql.value("upkeep", rest="45 seconds") == 1, "but no longer than a quarter of an hour"


def test_what_should_not_be_is_looked_for_less_often_the_longer_that_takes(
    sql: Session, clock: Clock
) -> None:
    def behind_the_head() -> bool:
        return sql.one("select exists (select from holdfast.lane l where l.head > 1000)")

    def pass_by() -> None:
        sql("update holdfast.lane set head = 1000000, safe_head = 1000000")

    sql.enqueue()
    sql.value("upkeep")
    sql("update holdfast.duty set looks[2] = looks[1] - interval '0.3 seconds' where name = 'check_heads'")
    pass_by()
    clock.advance(minutes=4)
    sql.value("upkeep", rest="45 seconds")
    assert behind_the_head()
    clock.advance(minutes=2)
    sql.value("upkeep", rest="45 seconds")
    assert not behind_the_head()
    pass_by()
    sql.value("upkeep")
    assert not behind_the_head(), "by hand it is done at once"


def test_what_fails_undoes_nothing_else(
    sql: Session, today: Callable[[], date], done: Callable[[], UUID], clock: Clock
) -> None:
    clock.advance(days=1)
    (old_day,) = named(today())
    done()
    sql(f"create view holdfast.reading as select * from holdfast.{old_day}")
    sql.enqueue()
    orphan = sql.claim_one()
    sql("update holdfast.worker set lost_at = holdfast.clock()")
    try:
        clock.advance(days=40)
        assert sql.value("upkeep") > 0
        assert sql.state(orphan.id) == "pending"
        assert old_day in partitions(sql)
        error = sql.one("select error from holdfast.duty where name = 'upkeep'")
        assert error.startswith("drop_partitions:")
    finally:
        sql("drop view holdfast.reading")

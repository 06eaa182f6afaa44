"""Every duty in one call, for cron: one that fails stops no other."""

from collections.abc import Iterator

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Connect, Session, Together, copied_database

DUTIES = ["fire", "promote", "recover", "advance", "fold_stats", "upkeep"]


@pytest.fixture
def holdfast_dsn(holdfast_server: str, holdfast_template: str) -> Iterator[str]:
    with copied_database(holdfast_server, holdfast_template) as dsn:
        yield dsn


def test_a_tick_runs_every_duty(sql: Session, clock: Clock) -> None:
    due = sql.enqueue(delay="1 minute")
    clock.advance(minutes=2)
    assert sql.rows("tick") == [(duty, None) for duty in DUTIES]
    assert sql.state(due) == "pending"


def test_tick_and_do_duties_do_what_is_listed(sql: Session, clock: Clock) -> None:
    listed = sql.rows("list_duties")
    assert [duty.name for duty in listed if duty.in_tick] == DUTIES
    clock.advance(minutes=1)
    done = {row.duty for row in sql.rows("do_duties")}
    assert done - {"do_duties"} == {duty.name for duty in listed}


def test_a_flood_of_due_jobs_is_let_in_by_one_tick(sql: Session, clock: Clock) -> None:
    """Who comes once a minute cannot let in two thousand at a time, as workers do, who come back at once."""
    sql.enqueue_many(5000, delays=["1 minute"] * 5000)
    clock.advance(minutes=2)
    sql.rows("tick")
    assert len(sql.claim_all()) == 5000


def test_ticks_once_a_minute_are_enough_to_keep_house(sql: Session, clock: Clock) -> None:
    sql.enqueue(delay="30 s")
    ids = sql.enqueue_many(3)
    sql.claim_all()  # by a consumer that is never heard of again
    for _ in range(6):
        clock.advance(minutes=1)
        assert not any(error for _, error in sql.rows("tick"))
    assert {sql.state(job_id) for job_id in ids} == {"pending"}
    assert len(sql.claim_all()) == 1, "suspects one at a time"


def test_a_duty_that_cannot_get_a_lock_gives_up_and_the_others_run(
    sql: Session, other: Session, clock: Clock
) -> None:
    due = sql.enqueue(delay="1 minute")
    clock.advance(minutes=2)
    with other.connection.transaction():
        other("lock table holdfast.used_id")
        errors = dict(sql.rows("tick"))
    assert [duty for duty in DUTIES if errors[duty]] == ["upkeep"]
    assert "lock timeout" in errors["upkeep"]
    kept = sql("select error, error_at is not null from holdfast.duty where name = 'upkeep'")
    assert kept == [(errors["upkeep"], True)]
    assert sql.state(due) == "pending"
    assert sql.rows("tick") == [(duty, None) for duty in DUTIES]


def test_no_duty_waits_for_ever(sql: Session) -> None:
    """Each sets a lock_timeout of its own: whoever holds a table may hold up one round, not all of them."""
    unbounded = sql(
        "select proname from pg_proc where pronamespace = 'holdfast'::regnamespace and proname = any(%s) "
        "and not coalesce(proconfig::text ~ 'lock_timeout', false)",
        [*DUTIES, "check_heads", "make_partitions", "drop_partitions"],
    )
    assert unbounded == []


def test_a_duty_that_breaks_leaves_the_work_of_the_others(sql: Session, clock: Clock) -> None:
    due = sql.enqueue(delay="1 minute")
    clock.advance(minutes=2)
    sql("create or replace function holdfast.recover("
        "timeout interval default null, also_fold boolean default true) returns integer "
        "language plpgsql as $$ begin raise exception 'broken'; end $$")  # fmt: skip
    assert dict(sql.rows("tick")) == dict.fromkeys(DUTIES) | {"recover": "broken"}
    assert sql.state(due) == "pending"
    assert sql("select error from holdfast.duty where name = 'recover'") == [("broken",)]


def test_two_ticks_at_once_share_the_work_without_waiting(
    sql: Session, connect: Connect, together: Together, clock: Clock
) -> None:
    sql.enqueue_many(100, delays=["1 s"] * 100)
    clock.advance(minutes=1)
    sessions = [connect() for _ in range(4)]
    results = together(*[lambda s=s: [s.rows("tick") for _ in range(5)] for s in sessions])
    assert not [error for ticks in results for tick in ticks for _, error in tick if error]
    assert len(sql.claim_all()) == 100

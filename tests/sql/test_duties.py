"""One session at a time does a duty, and no login without rights can keep others from it."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from holdfast.testing import Clock
from tests.sql.roles import KINDS, let_in, login
from tests.sql.sessions import Connect, Refused, Session

Holds = Callable[[str], Session]

# Each duty that does not wait for its lock, with a call that does it.
DUTIES = ["promote", "recover", "advance", "fold_stats", "upkeep", "sweep"]
LOCKS = [*DUTIES, "export"]


@pytest.fixture(params=["none", *KINDS])
def thief(request: pytest.FixtureRequest, holdfast_dsn: str) -> Iterator[Session]:
    """A session of a login that has no right of Holdfast's, or one of its roles."""
    let_in(holdfast_dsn)
    with (
        login(holdfast_dsn, *([request.param] if request.param in KINDS else [])) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        yield Session(connection)


def take(session: Session, duty: str) -> None:
    session(f"lock table holdfast.duty_{duty} in share update exclusive mode")


def test_no_login_but_the_owner_can_keep_others_from_a_duty(
    sql: Session, thief: Session, clock: Clock
) -> None:
    due = sql.enqueue(delay="1 minute")
    held = sql.enqueue(queue="held")
    sql.claim_one(queues=["held"], worker=sql.value("register", lease_time="1 second"))
    for duty in ["fire", *LOCKS]:  # the keys that release 0.1.0 used
        thief("select pg_advisory_lock(hashtextextended('holdfast.' || %s, 0))", duty)
    for duty in LOCKS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), thief.connection.transaction():
            take(thief, duty)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            thief("select holdfast.try_duty(%s)", duty)
    for _ in range(3):
        clock.advance(minutes=1)
        assert not any(row.error for row in sql.rows("tick"))
    assert (sql.state(due), sql.state(held)) == ("pending", "pending")
    recent = "coalesce(done_at, looks[1]) > holdfast.clock() - interval '1 minute'"
    done = sql(f"select name from holdfast.duty where {recent}")
    assert {name for (name,) in done} >= {"promote", "recover", "advance", "upkeep"}


def test_nothing_but_a_table_lock_stands_for_a_duty(sql: Session) -> None:
    """An advisory lock is open to every login."""
    functions = "select proname from pg_proc where pronamespace = 'holdfast'::regnamespace"
    assert sql(f"{functions} and prosrc ~ 'advisory'") == []


@pytest.mark.parametrize("duty", DUTIES)
def test_a_duty_is_held_until_its_transaction_ends(sql: Session, other: Session, duty: str) -> None:
    with sql.connection.transaction():
        sql.value(duty)
        assert not other.one("select holdfast.try_duty(%s)", duty)
    assert other.one("select holdfast.try_duty(%s)", duty)


@pytest.mark.parametrize("duty", ["promote", "recover", "advance", "upkeep"])
def test_a_duty_that_another_session_does_is_left_to_it(sql: Session, other: Session, duty: str) -> None:
    def done() -> bool:
        noted = sql.one("select coalesce(done_at, looks[1]) from holdfast.duty where name = %s", duty)
        return noted is not None

    with other.connection.transaction():
        take(other, duty)
        sql.value(duty)
        assert not done()
    sql.value(duty)
    assert done()


def test_to_wait_for_a_duty_by_hand_has_an_end(sql: Session, other: Session) -> None:
    with other.connection.transaction():
        take(other, "recover")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            sql.value("recover", timeout="1 day")


def test_to_do_the_duties_writes_next_to_nothing(sql: Session, connect: Connect) -> None:
    """A locked row would be written to the log at each look, several times a second."""
    for _ in range(2):
        for duty in DUTIES:
            with sql.connection.transaction():
                take(sql, duty)
                assert sql.one("select holdfast.try_duty(%s)", duty), "it has it already"
                assert sql.one("select pg_current_xact_id_if_assigned()") is None


# Who holds a duty for long is named.


@pytest.fixture
def holds(connect: Connect, clock: Clock) -> Iterator[Holds]:
    """A session that has held a duty for five minutes: `holds("promote")`; it holds them until the end."""
    holder = connect(application_name="stuck")

    def hold(duty: str) -> Session:
        holder("begin")
        take(holder, duty)
        clock.advance(minutes=5)
        return holder

    yield hold
    holder("rollback")


def test_the_doctor_names_a_session_that_holds_a_duty_for_long(sql: Session, holds: Holds) -> None:
    sql.rows("tick")
    holder = holds("advance")
    (finding,) = [row for row in sql.rows("doctor") if row.name == "duties" and row.detail.get("pid")]
    assert finding.severity == "warning"
    assert finding.finding.startswith(f"Process {holder.pid} (stuck, ")
    assert "has held duty advance for 5 min" in finding.finding
    assert f"pg_terminate_backend({holder.pid})" in finding.remedy
    assert (finding.detail["duty"], finding.detail["pid"]) == ("advance", holder.pid)


def test_a_duty_that_is_being_done_is_no_finding(sql: Session, other: Session) -> None:
    with other.connection.transaction():
        for duty in LOCKS:
            take(other, duty)
        assert sql.rows("duty_holders", now_at=sql.one("select holdfast.clock()")) == []


def test_a_dump_or_a_reader_is_not_taken_for_the_holder_of_a_duty(
    sql: Session, other: Session, clock: Clock
) -> None:
    with other.connection.transaction():
        for duty in LOCKS:
            other(f"lock table holdfast.duty_{duty} in access share mode")
        clock.advance(minutes=5)
        assert sql.rows("duty_holders", now_at=sql.one("select holdfast.clock()")) == []
        assert sql.one("select holdfast.try_duty('promote')")


def test_a_holder_since_an_unknown_time_is_judged_by_the_last_good_end_of_the_duty(
    sql: Session, holdfast_dsn: str, clock: Clock
) -> None:
    """The owner may lack pg_read_all_stats."""
    sql("select holdfast.note_done('promote', holdfast.clock())")
    clock.advance(minutes=3)
    with login(holdfast_dsn) as dsn, psycopg.connect(dsn) as thief:
        name = thief.info.user
        sql(f"grant usage on schema holdfast to {name}")
        sql(f"grant update on holdfast.duty_promote to {name}")
        thief.execute("lock table holdfast.duty_promote in share update exclusive mode")
        sql("create role hf_test_blind; grant usage on schema holdfast to hf_test_blind; "
            "grant select on all tables in schema holdfast to hf_test_blind; "
            "grant execute on all functions in schema holdfast to hf_test_blind")  # fmt: skip
        try:
            sql("set role hf_test_blind")
            (holder,) = sql.rows("duty_holders", now_at=sql.one("select holdfast.clock()"))
        finally:
            sql("reset role")
            sql("drop owned by hf_test_blind; drop role hf_test_blind")
            sql(f"revoke all on schema holdfast from {name}; revoke all on holdfast.duty_promote from {name}")
        assert (holder.pid, holder.since) == (
            thief.info.backend_pid,
            sql.one("select done_at from holdfast.duty where name = 'promote'"),
        )
        thief.rollback()


def test_a_prepared_transaction_that_holds_a_duty_is_found(
    sql: Session, other: Session, clock: Clock
) -> None:
    other("begin")
    take(other, "promote")
    other("prepare transaction 'duty'")
    clock.advance(minutes=5)
    (holder,) = sql.rows("duty_holders", now_at=sql.one("select holdfast.clock()"))
    sql("rollback prepared 'duty'")
    assert (holder.duty, holder.pid) == ("promote", None)
    assert "pg_prepared_xacts" in holder.remedy


def test_why_names_who_keeps_a_due_job_from_becoming_pending(sql: Session, holds: Holds) -> None:
    due = sql.enqueue(delay="1 minute")
    assert sql.rows("why", id=due)[0].answer == "scheduled"
    holder = holds("promote")
    reason = sql.rows("why", id=due)[0]
    assert (reason.answer, reason.detail["pid"]) == ("duty_held", holder.pid)
    assert f"pg_terminate_backend({holder.pid})" in reason.remedy


def test_why_names_who_keeps_the_job_of_a_lost_worker(sql: Session, holds: Holds) -> None:
    job = sql.enqueue()
    sql.claim_one(worker=sql.value("register"))
    holder = holds("recover")
    answers = {row.answer: row for row in sql.rows("why", id=job)}
    assert answers["duty_held"].detail["pid"] == holder.pid
    sql("update holdfast.worker set heartbeat_at = holdfast.clock()")
    assert "duty_held" not in {row.answer for row in sql.rows("why", id=job)}, "its worker is at work"


def test_why_names_who_keeps_a_late_job_behind_a_head(sql: Session, holds: Holds) -> None:
    late = sql.enqueue()
    holder = holds("advance")
    assert "duty_held" not in {row.answer for row in sql.rows("why", id=late)}
    sql("update holdfast.lane set head = head + 1000")
    reason = sql.rows("why", id=late)[0]
    assert (reason.answer, reason.detail["pid"]) == ("duty_held", holder.pid)


# What fails, and what does not end well.


def duties_found(sql: Session) -> list[Any]:
    return [row for row in sql.rows("doctor") if row.name == "duties"]


def test_a_duty_that_never_ends_well_beside_others_that_do_is_found(sql: Session, clock: Clock) -> None:
    sql.enqueue()
    clock.advance(hours=3)
    sql.rows("tick")
    assert duties_found(sql) == []
    for _ in range(2):
        clock.advance(hours=3)
        for duty in ("promote", "recover", "advance"):
            sql.value(duty)
        (finding,) = duties_found(sql)
    assert finding.severity == "warning"
    assert finding.finding == "Duty upkeep has not ended well for 6 h, though others are done."
    sql.value("upkeep")
    assert duties_found(sql) == []
    clock.advance(minutes=4)
    sql.value("promote")
    assert {row.detail["duty"] for row in duties_found(sql)} == {"recover", "advance"}


def test_a_duty_that_was_never_done_is_found_unless_the_workers_have_just_started(
    sql: Session, clock: Clock
) -> None:
    sql("update holdfast.migration set applied_at = holdfast.clock() - interval '1 day'")
    sql.value("register", lease_time="1 hour")
    for duty in ("promote", "recover", "advance"):
        sql.value(duty)
    assert duties_found(sql) == []
    clock.advance(minutes=4)
    for duty in ("promote", "recover", "advance"):
        sql.value(duty)
    (finding,) = duties_found(sql)
    assert finding.finding == "Duty upkeep has not ended well so far, though others are done."


def test_an_error_is_told_as_past_once_the_duty_has_ended_well(sql: Session, clock: Clock) -> None:
    sql("select holdfast.report_duty('promote', 'disk full')")
    (finding,) = duties_found(sql)
    assert (finding.severity, finding.finding[-10:]) == ("warning", " disk full")
    clock.advance(minutes=1)
    sql.value("promote")
    (finding,) = duties_found(sql)
    assert (finding.severity, "ended well since" in finding.finding) == ("info", True)


def test_the_log_of_the_server_hears_of_an_error_once_a_minute(sql: Session, clock: Clock) -> None:
    heard: list[str | None] = []
    sql.connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
    for _ in range(2):
        for error in ("disk full", "disk full", "no right"):
            sql("select holdfast.note_duty('fire', %s)", error)
        clock.advance(minutes=2)
    assert heard == ["duty fire failed: disk full", "duty fire failed: no right"] * 2


@pytest.mark.parametrize(("duty", "error"), [("laundry", "wet"), (None, "wet"), ("upkeep", None)])
def test_only_duties_are_reported(
    sql: Session, refused: Refused, duty: str | None, error: str | None
) -> None:
    with refused("HF008"):
        sql.rows("report_duty", duty=duty, error=error)


def test_an_error_is_kept_no_longer_than_a_thousand_letters(sql: Session) -> None:
    sql.rows("report_duty", duty="upkeep", error="x" * 5000)
    assert sql.one("select length(error) from holdfast.duty") == 1000

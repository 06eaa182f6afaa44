"""Open transactions that hold a waiting job: a head passes the job, and finds it again when they end."""

from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from holdfast import embedded, schema
from holdfast.testing import SETTINGS, Clock
from tests.sql.sessions import Background, Connect, Session

BY_HAND = "select from holdfast.live where id = %s for update"


def heads(sql: Session, task: str = "task") -> tuple[int, int]:
    ((head, safe),) = sql("select head, safe_head from holdfast.lane where task = %s", task)
    return head, safe


def flow(sql: Session, amount: int, task: str = "task") -> None:
    """Let jobs come and go; one that somebody holds stays."""
    for _ in range(0, amount, 1000):
        sql.enqueue_many(1000, task)
        sql.finish(sql.claim_all(tasks=[task]))


def pass_by(sql: Session, clock: Clock, task: str = "task") -> None:
    """Let the head run ahead of a transaction that stays open."""
    for _ in range(5):
        flow(sql, 5000, task)
        sql.value("advance")
        clock.advance(seconds=3)
    head, safe = heads(sql, task)
    assert head > safe + 10_000


def take(session: Session, job_id: UUID, way: str) -> None:
    """Begin a transaction that holds this job, in one of the ways."""
    session("set holdfast.notify = off")
    session("begin")
    match way:
        case "claim":
            assert session.claim_one().id == job_id
        case "savepoint":
            session("savepoint one")
            session.value("cancel", id=job_id)
            session("release one")
        case "by hand":
            session.enqueue("elsewhere")
            session(BY_HAND, job_id)
        case _:
            session.value("cancel", id=job_id)
    if way == "prepared":
        session("prepare transaction 'stays'")


def end(session: Session, way: str, how: str) -> None:
    session(f"{how} prepared 'stays'" if way == "prepared" else how)


def lockers(sql: Session) -> int:
    return sql.one("select count(*) from holdfast.locker")


WAYS = ["cancel", "claim", "savepoint", "prepared", "by hand"]


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_was_passed_is_served_once_when_its_transaction_is_rolled_back(
    sql: Session, other: Session, clock: Clock, way: str
) -> None:
    held = sql.enqueue()
    place = sql.live(held).seq
    take(other, held, way)
    pass_by(sql, clock)
    assert heads(sql)[1] <= place
    assert lockers(sql) == 1
    end(other, way, "rollback")
    sql.value("advance")
    assert [job.id for job in sql.claim()] == [held]
    assert sql.claim() == []
    sql.value("advance")
    assert lockers(sql) == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_was_passed_stays_as_its_transaction_left_it(
    sql: Session, other: Session, clock: Clock, way: str
) -> None:
    held = sql.enqueue()
    take(other, held, way)
    pass_by(sql, clock)
    end(other, way, "commit")
    for _ in range(2):
        sql.value("advance")
    assert lockers(sql) == 0
    if way == "by hand":
        assert [job.id for job in sql.claim(tasks=["task"])] == [held]
    else:
        assert sql.state(held) == ("claimed" if way == "claim" else "cancelled")
        assert sql.claim() == []
        head, safe = heads(sql)
        assert head == safe


def test_a_head_that_has_passed_a_job_does_not_go_back_while_it_is_held(
    sql: Session, other: Session, clock: Clock
) -> None:
    held = sql.enqueue("held")
    flow(sql, 3000)
    sql.value("advance")
    take(other, held, "cancel")  # long after its place, up to which the safe heads look
    pass_by(sql, clock)
    ahead = heads(sql, "held")[0]
    assert ahead > 10_000
    for _ in range(3):
        assert sql.value("advance") == 0
    assert heads(sql, "held")[0] == ahead
    other("rollback")
    sql.value("advance")
    assert [job.id for job in sql.claim()] == [held]


def test_a_job_is_served_when_its_savepoint_is_rolled_back_though_the_transaction_stays_open(
    sql: Session, other: Session, clock: Clock
) -> None:
    held = sql.enqueue()
    other("begin")
    other.enqueue("elsewhere")
    other("savepoint one")
    other.value("cancel", id=held)
    pass_by(sql, clock)
    other("rollback to one")
    sql.value("advance")
    assert [job.id for job in sql.claim()] == [held]
    other("rollback")


def test_a_head_waits_some_seconds_for_who_holds_a_job(
    sql: Session, other: Session, connect: Connect, clock: Clock
) -> None:
    stays = connect()
    stays("begin")
    stays.enqueue("elsewhere")
    held = sql.enqueue("held")
    pass_by(sql, clock)
    take(other, held, "claim")
    for _ in range(2):
        flow(sql, 1000)
        sql.value("advance")
        clock.advance(seconds=2)
        assert heads(sql, "held")[0] <= sql.live(held).seq
    other("rollback")
    assert sql.claim_one().id == held


def test_who_waited_for_the_lock_of_a_passed_job_is_noted_in_turn(
    sql: Session, other: Session, connect: Connect, clock: Clock, background: Background
) -> None:
    held = sql.enqueue()
    take(other, held, "cancel")
    pass_by(sql, clock)
    next_one = connect()
    next_one("begin")
    waiting = background(lambda: next_one.value("cancel", id=held))
    sql.until(lambda: sql.is_waiting(next_one))
    other("rollback")
    assert waiting() == "cancelled"
    sql.value("advance")
    assert sql.claim() == []
    assert lockers(sql) == 1
    next_one("rollback")
    sql.value("advance")
    assert [job.id for job in sql.claim()] == [held]


def test_jobs_of_several_lanes_and_transactions_are_each_found(
    sql: Session, connect: Connect, clock: Clock
) -> None:
    tasks = ["a", "b", "c"]
    held = {task: sql.enqueue_many(2, task) for task in tasks}
    holders = {task: connect() for task in tasks}
    for task, holder in holders.items():
        holder("begin")
        for job_id in held[task]:
            holder.value("cancel", id=job_id)
    for _ in range(4):
        for task in tasks:
            flow(sql, 4000, task)
        sql.value("advance")
        clock.advance(seconds=3)
    assert lockers(sql) == 3
    for task, holder in holders.items():
        head, safe = heads(sql, task)
        assert head > safe + 10_000
        holder("rollback")
        sql.value("advance")
        assert [job.id for job in sql.claim()] == held[task]


def test_a_head_goes_back_to_many_that_were_passed(sql: Session, other: Session, clock: Clock) -> None:
    held = sql.enqueue_many(1500)
    other("begin")
    assert len(other.claim_all()) == 1500
    pass_by(sql, clock)
    other("rollback")
    sql.value("advance")
    assert [job.id for job in sql.claim_all()] == held


def test_no_more_than_a_thousand_are_looked_after(sql: Session, other: Session, clock: Clock) -> None:
    held = sql.enqueue_many(1001)
    other("begin")
    for number, job_id in enumerate(held):
        other(f"savepoint s{number}")
        other(BY_HAND, job_id)
    other.enqueue("elsewhere")
    for _ in range(4):
        flow(sql, 5000)
        sql.value("advance")
        clock.advance(seconds=3)
    assert lockers(sql) == 0
    assert heads(sql)[0] <= sql.live(held[0]).seq
    other("rollback to s1")
    other("savepoint again")
    other.enqueue("elsewhere")
    sql.value("advance")
    assert [job.id for job in sql.claim_all()] == held[1:], "nobody has passed them"
    other("rollback")


def test_what_was_noted_in_another_cluster_does_no_harm(sql: Session, clock: Clock) -> None:
    sql.enqueue()
    sql.value("advance")
    sql("update holdfast.writer_watch set old_xid = '99999999999', mark_xid = '99999999999'")
    sql("insert into holdfast.locker (xid, seq) values ('99999999998', 1)")
    for _ in range(3):
        sql.value("advance")
        clock.advance(seconds=3)
        flow(sql, 1000)
    assert lockers(sql) == 0
    assert sql.one("select mark_xid < pg_snapshot_xmax(pg_current_snapshot()) from holdfast.writer_watch")


def test_a_number_of_a_row_is_the_nearest_one_of_the_system(sql: Session) -> None:
    long_xid = "select holdfast.long_xid(%s::text::xid, %s::text::xid8)::text::bigint"
    around = 4_294_967_296
    for next_xid in (5 * around + 10, 5 * around + around // 2, around - 5):
        for distance in (0, 1, 5, 12, 1000, 2_000_000_000, -1, -7):
            number = next_xid - distance
            assert sql.one(long_xid, number % around, next_xid) == number
    assert sql.one(long_xid, 4_000_000_000, 1000) == 0, "no such number was ever given out"


def test_a_prepared_transaction_survives_a_restart_and_what_it_held_is_found(server_home: Path) -> None:
    def connect() -> Session:
        return Session(psycopg.connect(server.dsn, autocommit=True))

    def stream(session: Session) -> None:
        # The clock of this database does not move: the transaction is made to look old.
        flow(session, 12_000)
        session(
            "update holdfast.writer_watch set "
            "old_xid = pg_snapshot_xmax(pg_current_snapshot()), mark_at = holdfast.clock(), "
            "seen_at = array(select t - interval '1 minute' from unnest(seen_at) t)"
        )
        session("select holdfast.advance()")
        assert heads(session)[0] > 10_000

    with embedded.start(server_home, settings=SETTINGS) as server:
        sql, late = connect(), connect()
        schema.apply(sql.connection)
        held = sql.enqueue()
        take(late, held, "prepared")
        sql.value("advance")
        stream(sql)
        for session in (sql, late):
            session.connection.close()

    with embedded.start(server_home, settings=SETTINGS) as server:
        sql = connect()
        sql.value("advance")
        assert sql.claim() == []
        sql("rollback prepared 'stays'")
        sql.value("advance")
        assert [job.id for job in sql.claim()] == [held]
        sql.connection.close()


# Scheduled jobs.


def marks(sql: Session) -> tuple[int, int]:
    ((due_from, promote_from),) = sql("select due_from, promote_from from holdfast.writer_watch")
    return due_from, promote_from


def time_passes(sql: Session, clock: Clock) -> None:
    for _ in range(4):
        clock.advance(seconds=3)
        sql.enqueue_many(100, delays=["1 s"] * 100)
        sql.value("promote")
        sql.value("advance")


@pytest.mark.parametrize("way", ["cancel", "savepoint", "prepared"])
@pytest.mark.parametrize("how", ["rollback", "commit"])
def test_promote_reads_past_a_scheduled_job_that_is_held(
    sql: Session, other: Session, clock: Clock, way: str, how: str
) -> None:
    held = sql.enqueue(delay="2 s")
    run_at = sql.live(held).run_at
    take(other, held, way)
    time_passes(sql, clock)
    due_from, promote_from = marks(sql)
    assert due_from == run_at < promote_from
    assert held in [job.id for job in sql.rows("list_jobs", state="scheduled", amount=1000)]
    sql.value("promote")
    end(other, way, how)
    sql.value("advance")
    sql.value("promote")
    if how == "rollback":
        assert sql.state(held) == "pending"
    else:
        assert sql.state(held) == "cancelled"
        assert marks(sql)[0] > run_at
    sql.value("advance")
    assert lockers(sql) == 0


def test_promote_waits_some_seconds_for_who_holds_a_scheduled_job(
    sql: Session, other: Session, clock: Clock
) -> None:
    time_passes(sql, clock)
    clock.advance(seconds=2)
    sql.value("promote")
    held = sql.enqueue(delay="1 s")
    run_at = sql.live(held).run_at
    take(other, held, "cancel")
    clock.advance(seconds=4)
    sql.value("advance")
    assert marks(sql)[1] == run_at
    other("rollback")
    sql.value("promote")
    assert sql.state(held) == "pending"


def cancel_in_savepoint(session: Session, job_id: UUID) -> None:
    session("begin")
    session.enqueue("elsewhere")
    session("savepoint one")
    session.value("cancel", id=job_id)


def test_a_scheduled_job_is_promoted_when_its_savepoint_is_rolled_back(
    sql: Session, other: Session, clock: Clock
) -> None:
    held = sql.enqueue(delay="2 s")
    cancel_in_savepoint(other, held)
    time_passes(sql, clock)
    assert marks(sql)[1] > sql.live(held).run_at
    other("rollback to one")
    sql.value("advance")
    sql.value("promote")
    assert sql.state(held) == "pending"
    other("rollback")


def test_a_scheduled_job_that_nobody_looks_after_is_found_by_upkeep(
    sql: Session, other: Session, clock: Clock
) -> None:
    held = sql.enqueue(delay="2 s")
    cancel_in_savepoint(other, held)
    time_passes(sql, clock)
    sql("delete from holdfast.locker")
    other("rollback to one")
    sql.value("advance")
    sql.value("promote")
    assert sql.state(held) == "scheduled", "else it would prove nothing"
    sql.value("upkeep")
    sql.value("promote")
    assert sql.state(held) == "pending"
    other("rollback")

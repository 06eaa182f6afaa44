"""A head moves past what is done, and never past a job that is or will be pending."""

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import schema
from holdfast.testing import Clock
from tests.sql.sessions import Connect, Session


def heads(sql: Session, kind: int = 0) -> tuple[int, int]:
    """The head that claims read from and the one that is proven, of the only lane of this kind."""
    ((head, safe),) = sql("select head, safe_head from holdfast.lane where kind = %s", kind)
    return head, safe


def last_seq(sql: Session) -> int:
    return sql.one("select last_value from holdfast.job_seq")


@pytest.fixture
def flow(sql: Session) -> Callable[..., None]:
    """Let jobs come and go through the queue, as many as asked."""

    def run(amount: int, session: Session = sql) -> None:
        for _ in range(0, amount, 1000):
            session.enqueue_many(1000)
            while jobs := session.claim_all():
                session.finish(jobs)

    return run


def test_the_head_follows_what_is_done(sql: Session, flow: Callable[..., None]) -> None:
    flow(2000)
    assert sql.value("advance") == 1
    head, safe = heads(sql)
    assert head == safe == last_seq(sql) + 1
    job_id = sql.enqueue()
    assert sql.claim_one().id == job_id


def test_the_more_versions_of_a_lane_nobody_may_clean_up_the_longer_are_the_steps(
    sql: Session, other: Session, flow: Callable[..., None]
) -> None:
    other("begin isolation level repeatable read")
    other("select 1")
    flow(1000)
    assert sql.value("advance") == 1
    sql("do 'begin for n in 1..3000 loop update holdfast.lane set safe_head = safe_head; end loop; end'")
    sql("select pg_stat_force_next_flush()")
    flow(2000)
    assert sql.value("advance") == 0
    flow(2000)
    assert sql.value("advance") == 1
    other("rollback")
    sql("vacuum holdfast.lane")  # the next test has the same database


def test_the_head_stops_at_the_first_job_that_waits(sql: Session, flow: Callable[..., None]) -> None:
    flow(1000)
    waiting = sql.enqueue()
    sql.enqueue_many(1000)
    sql.finish([job for job in sql.claim_all() if job.id != waiting])
    sql("update holdfast.worker set heartbeat_at = heartbeat_at - interval '1 day'")
    sql.value("advance")
    assert heads(sql)[0] > sql.live(waiting).seq, "one that is held does not hold the head"
    job_id = sql.enqueue()
    sql.enqueue_many(1000)
    sql.value("advance")
    assert heads(sql)[0] == sql.live(job_id).seq


def test_a_move_of_a_few_places_is_not_worth_a_write(sql: Session) -> None:
    sql.enqueue_many(100)
    sql.finish(sql.claim_all())
    assert sql.value("advance") == 0


def test_an_idle_database_stays_idle(sql: Session, flow: Callable[..., None]) -> None:
    flow(1000)
    sql.value("advance")
    written = "select xmin, ctid from holdfast.writer_watch union all select xmin, ctid from holdfast.lane"
    before = sql(written)
    for _ in range(50):
        assert sql.value("advance") == 0
    assert sql(written) == before


def test_only_one_moves_the_heads_at_a_time(sql: Session, other: Session, flow: Callable[..., None]) -> None:
    flow(1000)
    with sql.connection.transaction():
        assert sql.value("advance") == 1
        assert other.value("advance") == 0


@pytest.mark.parametrize("way", ["enqueue", "copy", "savepoint", "rolled_back_savepoint", "retry", "promote"])
def test_the_head_waits_for_a_transaction_that_took_a_place(
    sql: Session, other: Session, flow: Callable[..., None], way: str, clock: Clock
) -> None:
    """Whoever can give a job a place must hold the lock on `job` before it takes the number."""
    flow(1000)
    sql.value("advance")
    if way == "retry":
        other.enqueue()
        held = other.claim_one()
    if way == "promote":
        other.enqueue(delay="1 s")
        clock.advance(seconds=2)
    with other.connection.transaction():
        match way:
            case "enqueue":
                other.enqueue()
            case "copy":
                lane = other.value("lane", queue="default", priority=100, task="task")
                with other.connection.cursor().copy("copy holdfast.job (lane_id, task) from stdin") as copy:
                    copy.write_row((lane, "task"))
            case "savepoint":
                with other.connection.transaction():
                    other.enqueue()
            case "rolled_back_savepoint":
                other.enqueue()
                with other.connection.transaction(force_rollback=True):
                    other.enqueue()
            case "retry":
                other.finish([held], "released")
            case "promote":
                other.value("promote")
        for _ in range(3):
            flow(1000)
            sql.value("advance")
        # Not beyond the place that is still to come, although all that can be seen is done.
        assert heads(sql)[1] <= other.one("select min(seq) from holdfast.job")
    assert len(sql.claim_all()) == 1


def test_the_head_moves_on_when_the_transactions_of_its_proof_have_ended(
    sql: Session, other: Session, connect: Connect, flow: Callable[..., None]
) -> None:
    flow(1000)
    late = connect()
    late("begin")
    late.enqueue()
    flow(1000)
    assert sql.value("advance") == 0  # notes a place, and that `late` must end
    noted = sql.one("select seq from holdfast.writer_watch")
    other("begin")
    other.enqueue()
    late("commit")
    sql.finish(sql.claim_all())
    flow(1000)
    assert sql.value("advance") == 1, "who came after the proof does not hold it up"
    assert heads(sql) == (noted + 1, noted + 1)
    other("commit")
    assert len(sql.claim_all()) == 1


def test_who_advances_in_a_transaction_of_its_own_jobs_does_not_pass_them(
    sql: Session, other: Session, flow: Callable[..., None]
) -> None:
    flow(1000)
    with sql.connection.transaction():
        own = sql.enqueue()
        flow(1000, other)
        sql.value("advance")
        sql.value("advance")
    assert other.claim_one().id == own


def test_a_prepared_transaction_stops_the_heads(sql: Session, flow: Callable[..., None]) -> None:
    flow(1000)
    sql.value("advance")
    before = heads(sql)
    sql("set holdfast.notify = off")
    sql("begin")
    job_id = sql.enqueue()
    sql("prepare transaction 'later'")
    for _ in range(3):
        flow(1000)
        assert sql.value("advance") == 0
    ((name,),) = sql("select unnest(holdfast.writers())")
    assert name.startswith("prepared ")
    assert heads(sql) == before
    sql("commit prepared 'later'")
    assert sql.claim_one().id == job_id
    assert sql.value("advance") == 1


def test_a_transaction_that_stays_open_for_long_does_not_make_claims_slow(
    sql: Session, other: Session, flow: Callable[..., None], clock: Clock
) -> None:
    flow(1000)
    sql.value("advance")
    other("begin")
    late = [other.enqueue(), other.enqueue()]
    safe = None
    for _ in range(3):
        flow(5000)
        sql.value("advance")
        clock.advance(seconds=3)
        safe = safe or heads(sql)[1]
    head, proven = heads(sql)
    assert head > proven + 10_000, "claims read from here"
    assert proven == safe <= other.one("select min(seq) from holdfast.job")
    other("commit")
    assert sql.claim() == [], "they are behind the head"
    # Another open transaction keeps the proof from coming: the late jobs are found between the two heads.
    other("begin")
    other.enqueue()
    sql.value("advance")
    assert [job.id for job in sql.claim()] == late
    other("rollback")
    sql.value("advance")
    head, proven = heads(sql)
    assert head == proven > safe + 10_000


def test_late_jobs_are_found_when_the_proof_comes(
    sql: Session, other: Session, flow: Callable[..., None], clock: Clock
) -> None:
    flow(1000)
    sql.value("advance")
    other("begin")
    late = other.enqueue()
    pass_by(sql, flow, clock)
    other("commit")
    assert sql.claim() == []
    sql.value("advance")
    assert [job.id for job in sql.claim()] == [late]


def pass_by(sql: Session, flow: Callable[..., None], clock: Clock) -> None:
    """Let the head run ahead of a transaction that stays open."""
    for _ in range(3):
        flow(5000)
        sql.value("advance")
        clock.advance(seconds=3)
    head, proven = heads(sql)
    assert head > proven + 10_000


def test_the_head_that_is_ahead_never_passes_the_sequence(
    sql: Session, other: Session, flow: Callable[..., None], clock: Clock
) -> None:
    # `select last_value` reads up to 32 too high while others take numbers.
    other("begin")
    other.enqueue()
    pass_by(sql, flow, clock)
    head, _ = heads(sql)
    assert head <= sql.one("select nextval('holdfast.job_seq')")


def test_the_head_waits_a_while_for_a_large_transaction(sql: Session, other: Session, clock: Clock) -> None:
    # Beside an idle worker, whose last note may be of long ago.
    sql.enqueue_many(1000)
    sql.finish(sql.claim_all())
    sql.value("advance")
    clock.advance(seconds=600)
    other("begin")
    large = other.enqueue_many(15_000)
    for _ in range(3):
        sql.value("advance")
        clock.advance(seconds=2)
    assert heads(sql)[0] <= other.one("select min(seq) from holdfast.job"), "two advances, 4 seconds"
    other("commit")
    assert [job.id for job in sql.claim(10)] == large[:10]


@pytest.mark.parametrize("prepared", [False, True])
def test_the_head_waits_for_who_came_lately_and_not_for_who_stays(
    sql: Session, other: Session, connect: Connect, flow: Callable[..., None], clock: Clock, prepared: bool
) -> None:
    flow(1000)
    sql.value("advance")
    other("set holdfast.notify = off")
    other("begin")
    other.enqueue()
    if prepared:
        other("prepare transaction 'stays'")
    pass_by(sql, flow, clock)
    sql.value("advance")
    lately = connect()
    lately("begin")
    new = lately.enqueue_many(1500)
    flow(15_000)
    sql.value("advance")
    lately("commit")
    assert [job.id for job in sql.claim(10)] == new[:10]


def test_the_head_goes_back_to_many_that_come_late(
    sql: Session, other: Session, connect: Connect, flow: Callable[..., None], clock: Clock
) -> None:
    flow(1000)
    sql.value("advance")
    stays = connect()
    stays("begin")
    stays.enqueue()  # the proof does not come meanwhile
    other("begin")
    late = other.enqueue_many(3000)
    pass_by(sql, flow, clock)
    other("commit")
    after = sql.enqueue()
    assert [job.id for job in sql.claim(1)] == [after]
    place = sql.live(late[0]).seq
    sql.value("advance")
    assert heads(sql)[0] == sql.live(late[0]).seq == place, "none of them got a new place"
    assert [job.id for job in sql.claim_all()] == late


def test_whatever_stands_behind_a_head_is_found_and_reported(sql: Session) -> None:
    ids = sql.enqueue_many(3)
    sql("update holdfast.lane set head = 1000, safe_head = 1000")
    assert sql.claim() == []
    assert sql.value("check_heads") == 1
    assert [job.id for job in sql.claim()] == ids
    assert sql.value("check_heads") == 0
    assert sql.one("select action from holdfast.audit where target like 'lane %%'") == "repair"


def test_a_late_job_that_was_locked_when_it_was_looked_for_is_found_by_upkeep(sql: Session) -> None:
    ids = sql.enqueue_many(3)
    sql("select setval('holdfast.job_seq', 2000)")
    sql("update holdfast.lane set head = 1000")  # past them: a look for late ones has stepped over them
    assert sql.claim() == []
    sql.value("upkeep")
    assert [job.id for job in sql.claim()] == ids


def test_upkeep_looks_behind_the_heads_too(sql: Session) -> None:
    sql.enqueue()
    sql("update holdfast.lane set head = 1000, safe_head = 1000")
    sql.value("upkeep")
    assert len(sql.claim()) == 1


def test_a_sequence_that_was_reset_is_moved_above_everything(sql: Session, flow: Callable[..., None]) -> None:
    flow(2000)
    sql.value("advance")
    reached = last_seq(sql)
    sql("alter sequence holdfast.job_seq restart")
    lost = sql.enqueue_many(5)
    assert sql.claim() == [], "they stand behind the head"
    sql.value("advance")
    assert [job.id for job in sql.claim()] == lost
    assert last_seq(sql) > reached
    assert sql.one("select detail ->> 'reached' from holdfast.audit where target = 'job_seq'") is not None
    flow(2000)
    assert sql.value("advance") == 1
    assert len(sql.enqueue_many(5)) == len(sql.claim()) == 5


def test_a_reset_is_noticed_also_where_no_head_has_moved(sql: Session, clock: Clock) -> None:
    # Retries would get places before their old ones, which the guard refuses: nothing could be promoted.
    sql.enqueue_many(3000)
    sql.value("advance")
    assert heads(sql) == (0, 0)
    sql.finish(sql.claim_all(), "failed", delays=["1 s"] * 3000)
    sql("alter sequence holdfast.job_seq restart")
    clock.advance(seconds=2)
    with pytest.raises(psycopg.Error, match="not behind its old place"):
        sql.value("promote", amount=10)
    sql.value("advance")
    sql.value("promote", amount=10)
    assert len(sql.claim_all()) == 10


def test_a_reset_is_noticed_while_a_proof_is_held_up(
    sql: Session, other: Session, flow: Callable[..., None]
) -> None:
    flow(2000)
    sql.value("advance")
    other("begin")
    held_up = other.enqueue()
    sql.value("advance")
    sql("select setval('holdfast.job_seq', 1, false)")
    lost = sql.enqueue_many(5)
    sql.value("advance")
    assert [job.id for job in sql.claim()] == lost
    other("commit")
    assert [job.id for job in sql.claim()] == [held_up]
    for outcome in ("released", "interrupted"):
        sql.finish(sql.claim_all(), outcome)


def test_after_a_reset_nothing_goes_back_to_a_place_before_its_old_one(
    sql: Session, flow: Callable[..., None]
) -> None:
    flow(2000)
    sql.value("advance")
    ids = sql.enqueue_many(3)
    held = sql.claim_all()
    last = sql.one("select max(seq) from holdfast.job")
    for next_place in (last, 1):  # the same one again would be as wrong
        sql("select setval('holdfast.job_seq', %s, false)", next_place)
        with pytest.raises(psycopg.Error, match="not behind its old place"):
            sql.finish(held, "released")
    sql.value("advance")
    sql.finish(held, "released")
    assert [job.id for job in sql.claim_all()] == ids


def test_who_names_job_is_seen_before_its_first_row_has_come_to_live(sql: Session, other: Session) -> None:
    # It takes that row's place before it locks the partition, but after the table that it names.
    worker = sql.value("register", name="w", queues=None, tasks=None)
    assert sql.value("sleep", worker=worker)  # it was awake
    assert not sql.value("sleep", worker=worker)
    other("begin")
    other("insert into holdfast.job (lane_id, task) select 1, 'task' where false")
    assert sql.one("select cardinality(holdfast.writers())") == 1
    assert sql.value("sleep", worker=worker)
    other("rollback")
    assert sql.one("select cardinality(holdfast.writers())") == 0
    assert not sql.value("sleep", worker=worker)


def test_a_writer_of_both_is_one_writer(sql: Session, other: Session) -> None:
    other("begin")
    other.enqueue()
    lane = other.value("lane", queue="default", priority=100, task="task")
    other("insert into holdfast.job (lane_id, task) values (%s, 'task')", lane)
    assert sql.one("select cardinality(holdfast.writers())") == 1
    other("rollback")


def test_a_sequence_restored_below_old_jobs_is_repaired(sql: Session, flow: Callable[..., None]) -> None:
    # As after logical replication or a dump without the sequence.
    flow(1000)
    ids = sql.enqueue_many(1000)
    sql.value("advance")
    sql("delete from holdfast.writer_watch")
    sql("select setval('holdfast.job_seq', 500)")
    sql.value("advance")
    new = sql.enqueue()
    assert [job.id for job in sql.claim_all()] == [*ids, new]


def test_right_after_install_nothing_is_passed(holdfast_server: str) -> None:
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute("create database holdfast_new")
        dsn = make_conninfo(holdfast_server, dbname="holdfast_new")
        try:
            with psycopg.connect(dsn, autocommit=True) as sql, psycopg.connect(dsn) as late:
                schema.apply(sql)
                # The very first number is taken here, and seen by nobody yet.
                late.execute("select holdfast.enqueue('task')")
                for _ in range(3):
                    sql.execute("select holdfast.enqueue_many(array_fill('task'::text, array[1000]))")
                    sql.execute("select holdfast.advance()")
                    jobs = sql.execute("select id, lease from holdfast.claim(amount => 10000)").fetchall()
                    ids, leases = zip(*jobs, strict=True)
                    sql.execute("select holdfast.finish(%s, %s)", [list(ids), list(leases)])
                    sql.execute("select holdfast.advance()")
                late.commit()
                assert len(sql.execute("select from holdfast.claim()").fetchall()) == 1
        finally:
            server.execute("drop database holdfast_new with (force)")


def test_the_sequence_does_not_cache(sql: Session) -> None:
    assert sql.one("select cache_size from pg_sequences where sequencename = 'job_seq'") == 1

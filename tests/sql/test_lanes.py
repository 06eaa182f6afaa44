"""Lanes: a queue has only so many, empty ones are removed, and no job is ever without one."""

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Connect, Refused, Session, Together

Lanes = Callable[[], set[int]]

STEPS = 4  # of upkeep, from an empty lane to none


@pytest.fixture
def lanes(sql: Session) -> Lanes:
    """`lanes()`: the ids of the lanes there are."""
    return lambda: {lane_id for (lane_id,) in sql("select id from holdfast.lane")}


@pytest.fixture
def emptied(sql: Session, clock: Clock, lanes: Lanes) -> int:
    """A lane that has long been empty."""
    sql.enqueue("a")
    sql.finish([sql.claim_one()])
    sql.value("fold_stats")
    clock.advance(minutes=11)
    (lane_id,) = lanes()
    return lane_id


def upkeep(sql: Session, times: int = STEPS) -> None:
    for _ in range(times):
        sql.value("upkeep")


def served(sql: Session, job_id: UUID) -> bool:
    """Whether a claim comes to this job, after everything that can be done to its lane."""
    upkeep(sql, 2 * STEPS)
    assert (
        sql.one(
            "select count(*) from holdfast.live j where not exists ("
            "select from holdfast.lane l where l.id = j.lane_id)"
        )
        == 0
    )
    return [job.id for job in sql.claim()] == [job_id]


def test_a_lane_that_has_long_been_empty_is_removed(sql: Session, emptied: int, lanes: Lanes) -> None:
    upkeep(sql, STEPS - 1)
    assert lanes() == {emptied}
    upkeep(sql, 1)
    assert lanes() == set()
    job_id = sql.enqueue("a")
    assert [job.id for job in sql.claim()] == [job_id]
    assert emptied not in lanes()


def test_what_was_done_in_a_removed_lane_stays_counted(sql: Session, emptied: int, lanes: Lanes) -> None:
    upkeep(sql)
    assert lanes() == set()
    assert sql.one("select sum(completed) from holdfast.stat where span = 'hour'") == 1


def test_a_lane_whose_counts_are_not_yet_added_up_stays(sql: Session, clock: Clock, lanes: Lanes) -> None:
    sql.enqueue("a")
    sql.finish([sql.claim_one()])
    clock.advance(minutes=11)
    for _ in range(2 * STEPS):  # upkeep adds them up before, unless somebody else is at it
        sql("select holdfast.retire_lanes(holdfast.clock())")
    assert len(lanes()) == 1
    sql.value("fold_stats")
    assert sql.one("select sum(completed) from holdfast.stat where span = 'hour'") == 1


def test_a_lane_that_was_in_use_lately_stays(sql: Session, clock: Clock, lanes: Lanes) -> None:
    job_id = sql.enqueue("a", delay="30 minutes")
    clock.advance(minutes=31)
    sql.value("promote")
    assert [job.id for job in sql.claim()] == [job_id]
    sql("select holdfast.finish(array[id], array[lease]) from holdfast.live")
    sql.value("fold_stats")
    upkeep(sql, 2 * STEPS)
    assert len(lanes()) == 1


@pytest.mark.parametrize("state", ["pending", "scheduled", "claimed"])
def test_a_lane_with_a_job_stays(sql: Session, clock: Clock, lanes: Lanes, state: str) -> None:
    sql.enqueue("a", delay="1 day" if state == "scheduled" else None)
    if state == "claimed":
        sql.claim_one()
    (lane_id,) = lanes()
    clock.advance(minutes=11)
    sql("update holdfast.worker set heartbeat_at = holdfast.clock()")
    upkeep(sql, 2 * STEPS)
    assert lanes() == {lane_id}


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_job_that_comes_while_its_lane_is_removed_has_another(
    sql: Session, emptied: int, lanes: Lanes, steps: int
) -> None:
    upkeep(sql, steps)
    job_id = sql.enqueue("a")
    assert (len(lanes()) == 1) == (steps == 0)
    assert served(sql, job_id)


@pytest.mark.parametrize("steps", range(1, 2 * STEPS))
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("how", ["enqueue", "insert", "many"])
def test_a_transaction_that_knew_the_lane_may_put_a_job_there(
    sql: Session, other: Session, emptied: int, steps: int, isolation: str, how: str
) -> None:
    """It is open since before the lane was marked."""
    with other.transaction(isolation):
        lane_id = other.value("lane", queue="default", priority=100, task="a")
        assert lane_id == emptied
        upkeep(sql, steps)
        match how:
            case "enqueue":
                job_id = other.enqueue("a")
            case "insert":
                insert = "insert into holdfast.job (lane_id, task) values (%s, 'a') returning id"
                job_id = other.one(insert, lane_id)
            case "many":
                (job_id,) = other.enqueue_many(1, "a")
        upkeep(sql, STEPS)
    assert served(sql, job_id)


@pytest.mark.parametrize("before", range(STEPS))
@pytest.mark.parametrize("after", range(STEPS))
def test_a_job_that_is_not_yet_committed_keeps_its_lane(
    sql: Session, other: Session, emptied: int, before: int, after: int
) -> None:
    with other.transaction():
        other.value("lane", queue="default", priority=100, task="a")
        upkeep(sql, before)
        job_id = other.one("insert into holdfast.job (lane_id, task) values (%s, 'a') returning id", emptied)
        upkeep(sql, after)
    assert served(sql, job_id)


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_prepared_job_keeps_its_lane(sql: Session, other: Session, emptied: int, steps: int) -> None:
    other("begin")
    other.value("lane", queue="default", priority=100, task="a")
    upkeep(sql, steps)
    other("set local holdfast.notify = off")
    job_id = other.one("insert into holdfast.job (lane_id, task) values (%s, 'a') returning id", emptied)
    other("prepare transaction 'lanes'")
    upkeep(sql, 2 * STEPS)
    other("commit prepared 'lanes'")
    assert served(sql, job_id)


@pytest.mark.parametrize("steps", range(STEPS + 2))
def test_a_lane_that_was_looked_up_in_an_earlier_transaction_is_refused_or_kept(
    sql: Session, other: Session, emptied: int, refused: Refused, steps: int
) -> None:
    upkeep(sql, steps)
    insert = "insert into holdfast.job (lane_id, task) values (%s, 'a') returning id"
    if steps <= 1:  # nobody has noted yet who is open
        with other.transaction():
            job_id = other.one(insert, emptied)
            upkeep(sql, STEPS)
        assert served(sql, job_id)
    else:
        if steps == 2:  # and before the second note, too
            with refused("HF008"):
                other.one(insert, emptied)
        with refused("HF008") as error:
            other.one(insert, emptied)
        assert error.detail["field"] == "lane_id"
        assert "in the same transaction" in error.hint


def test_a_job_is_not_moved_by_hand_to_a_lane_that_is_gone(
    sql: Session, emptied: int, refused: Refused
) -> None:
    upkeep(sql)
    sql.enqueue("a")
    with refused("HF008"):
        sql("update holdfast.job set lane_id = %s, seq = nextval('holdfast.job_seq')", emptied)


def test_upkeep_twice_in_one_transaction_removes_nothing_in_use(
    sql: Session, other: Session, emptied: int
) -> None:
    with sql.transaction():
        upkeep(sql, 1)
        with other.transaction():
            job_id = other.enqueue("a")  # it does not see the mark
            upkeep(sql, 2 * STEPS)
    assert served(sql, job_id)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_transaction_that_began_while_others_were_noted_may_put_a_job_there(
    sql: Session, other: Session, emptied: int, steps: int
) -> None:
    upkeep(sql, 1)
    with sql.transaction():
        upkeep(sql, steps)
        other("begin")  # it is not noted, and does not see the note
        insert = "insert into holdfast.job (lane_id, task) values (%s, 'a') returning id"
        job_id = other.one(insert, emptied)
        upkeep(sql, STEPS)
    upkeep(sql, STEPS)
    other("commit")
    assert served(sql, job_id)


def test_an_old_transaction_of_this_database_puts_removal_off(
    sql: Session, other: Session, emptied: int, lanes: Lanes
) -> None:
    with other.transaction():
        other("select 1")
        upkeep(sql, 3 * STEPS)
        assert lanes() == {emptied}
    upkeep(sql)
    assert lanes() == set()


def test_no_job_is_lost_while_lanes_come_and_go(sql: Session, connect: Connect, together: Together) -> None:
    tasks = ["a", "b", "c"]

    def work(seed: int) -> int:
        session, dice, made = connect(), random.Random(seed), 0
        for _ in range(120):
            if dice.random() < 0.5:
                with session.transaction(dice.choice(["read committed", "repeatable read"])):
                    for _ in range(dice.randint(1, 3)):
                        session.enqueue(dice.choice(tasks))
                        made += 1
            elif dice.random() < 0.5:
                session.finish(session.claim(dice.randint(1, 5)), dice.choice(["completed", "released"]))
            else:
                session.value("fold_stats")
        return made

    def remove() -> None:
        session = connect()
        for _ in range(150):
            session("delete from holdfast.lane_activity")
            session.value("upkeep")

    *made, _ = together(*[lambda n=n: work(n) for n in range(3)], remove)
    while jobs := sql.claim(100):
        assert sql.finish(jobs) == []
    assert sql.one("select count(*) from holdfast.finished") == sum(made)
    assert sql.one("select count(*) from holdfast.live") == 0
    assert sql.one("select last_value from holdfast.lane_id_seq") > 10, (
        "no lane was removed: this proves nothing"
    )


def test_a_queue_has_only_so_many_lanes(sql: Session, refused: Refused) -> None:
    sql.rows("configure", queue="q", settings='{"lane_limit": 3}')
    for task, priority in [("a", 100), ("b", 100), ("a", 50)]:
        sql.enqueue(task, queue="q", priority=priority)
    for call in (
        lambda: sql.enqueue("b", queue="q", priority=50),
        lambda: sql.rows("enqueue_many", tasks=["a", "c"], queues=["q", "q"]),
        lambda: sql.rows("places", tasks=["c"], queues=["q"], priorities=[100]),
    ):
        with refused("HF019") as error:
            call()
    assert (
        error.message
        == "queue q has 3 lanes, and its lane_limit is 3: there is none for task c at priority 100"
    )
    assert error.detail == {"queue": "q", "lanes": 3, "limit": 3}
    assert "holdfast queue configure q lane_limit=6" in error.hint
    sql.enqueue("c", queue="other")
    sql.enqueue("a", queue="q")
    sql.rows("configure", queue="q", settings='{"lane_limit": 4}')
    sql.enqueue("c", queue="q")


def test_the_limit_holds_back_no_job_that_is_there(sql: Session) -> None:
    ids = [sql.enqueue(task, max_attempts=9) for task in ("a", "b", "c")]
    sql.rows("configure", queue="*", settings='{"lane_limit": 1}')
    for outcome in ("interrupted", "released", "snoozed"):
        jobs = sql.claim_all()
        assert {job.id for job in jobs} == set(ids)
        assert sql.finish(jobs, outcome, delays=["0"] * 3) == []
        sql.value("promote")
    worker = sql.value("register")
    sql.rows("start", ids=ids, leases=[job.lease for job in sql.claim_all(worker=worker)])
    assert sql.lose(worker) == 3
    assert sql.one("select count(*) from holdfast.live where state = 'pending'") == 3


def test_retired_lanes_do_not_count(sql: Session, emptied: int) -> None:
    sql.rows("configure", queue="*", settings='{"lane_limit": 1}')
    upkeep(sql, 1)
    assert sql.enqueue("b")


def test_many_lanes_in_other_queues_cost_a_claim_nothing(sql: Session) -> None:
    def blocks(**options: Any) -> int:
        sql.enqueue("a", queue="mine")
        sql.claim(10, **options)
        explain = "explain (analyze, buffers, timing off, format json) select * from holdfast.claim(%s)"
        given = ", ".join(f"{name} => '{value}'" for name, value in options.items())
        plan = sql.one(explain.replace("%s", given).replace("['", "{").replace("']", "}"))[0]["Plan"]
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    asks = [{"queues": ["mine"]}, {"tasks": ["a"]}, {"queues": ["mine"], "tasks": ["a"]}]
    few = [blocks(**ask) for ask in asks]
    sql(
        "insert into holdfast.lane (queue, priority, task) "
        "select 'theirs' || n % 7, 100, 'other' || n from generate_series(1, 100000) n"
    )
    sql("analyze holdfast.lane")
    for ask, before in zip(asks, few, strict=True):
        assert blocks(**ask) <= 1.5 * before + 10, ask


def test_a_lane_that_is_retired_between_two_looks_of_an_enqueue_is_replaced(
    sql: Session, other: Session, connect: Connect, background: Background, emptied: int
) -> None:
    sql("update holdfast.policy_watch set changes = changes + 1")  # the first look does not believe the lane
    producer = connect()
    with other.transaction():
        other("lock table holdfast.retry_policy")  # which is read between the looks
        enqueued = background(lambda: producer.enqueue("a"))
        sql.until(lambda: sql.is_waiting(producer))
        sql("select holdfast.retire_lanes(holdfast.clock())")
        assert sql("select lane_id from holdfast.retired_lane") == [(emptied,)]
    assert served(sql, enqueued())


def test_the_search_for_empty_lanes_rests_a_hundred_times_as_long_as_it_took(
    sql: Session, emptied: int, clock: Clock
) -> None:
    steps = "select (select count(*) from holdfast.retired_lane), (select count(*) from holdfast.lane_watch)"
    sql.value("upkeep", rest="0 seconds")
    assert sql(steps) == [(1, 0)]
    took = "update holdfast.duty set looks[2] = looks[1] - interval '6 seconds' where name = 'retire_lanes'"
    sql(took)
    clock.advance(minutes=9)
    sql.value("upkeep", rest="0 seconds")
    assert sql(steps) == [(1, 0)]
    clock.advance(minutes=2)
    sql.value("upkeep", rest="0 seconds")
    assert sql(steps) == [(1, 1)]


def test_a_full_queue_does_not_keep_the_due_jobs_of_others_waiting(
    sql: Session, other: Session, clock: Clock, emptied: int
) -> None:
    sql.rows("configure", queue="default", settings='{"lane_limit": 1}')
    with other.transaction():
        late = other.enqueue("a", delay="1 minute")
        sql.value("upkeep")  # the lane is marked while the job is on its way there
        assert sql("select lane_id from holdfast.retired_lane") == [(emptied,)]
    sql.enqueue("b")  # and another task takes its place
    due = sql.enqueue("c", queue="elsewhere", delay="1 minute")
    clock.advance(minutes=2)
    sql.value("promote")
    assert (sql.state(late), sql.state(due)) == ("pending", "pending")
    upkeep(sql, 2 * STEPS)
    assert late in {job.id for job in sql.claim()}

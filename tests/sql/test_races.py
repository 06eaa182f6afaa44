"""Finish, recover, cancel and progress at the same moment: one winner, no deadlock, nothing half done."""

import random
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Connect, Refused, Session, Together

ROUNDS = 50


def test_a_finish_waits_for_a_recovery_under_way_and_is_told_that_it_lost(
    sql: Session, other: Session, background: Background
) -> None:
    worker = sql.value("register")
    job_id = sql.enqueue()
    job = sql.claim_one(worker=worker)
    with sql.connection.transaction():
        assert sql.lose(worker) == 1
        late = background(lambda: other.finish([job], "completed"))
        sql.until(lambda: sql.is_waiting(other))
    (refusal,) = late()
    assert (refusal.sqlstate, refusal.state) == ("HF001", "pending")
    assert sql.state(job_id) == "pending"


def test_a_recovery_steps_over_a_report_under_way(sql: Session, other: Session) -> None:
    worker = sql.value("register")
    sql.enqueue_many(3)
    jobs = sql.claim(worker=worker)
    with other.connection.transaction():
        assert other.finish(jobs[:1]) == []
        assert sql.lose(worker) == 2
    assert sql.state(jobs[0].id) == "completed"


@pytest.fixture
def overdue(sql: Session, clock: Clock) -> tuple[UUID, Any, Any]:
    """A live worker with two jobs; the second has run longer than its timeout."""
    worker = sql.value("register")
    sql.enqueue_many(2)
    first, overdue = sorted(sql.claim(worker=worker), key=lambda job: job.id)
    sql.rows("start", ids=[overdue.id], leases=[overdue.lease], timeouts=["1 second"])
    for _ in range(4):
        sql.value("recover")  # so that it takes no silence for an outage
        clock.advance(seconds=1.8)
    sql.value("heartbeat", worker=worker)
    return worker, first, overdue


@pytest.fixture
def recoverer(connect: Connect) -> Session:
    """A session that fails if it waits."""
    session = connect()
    session("set lock_timeout = '1ms'")
    return session


def test_a_worker_that_leaves_and_a_recovery_of_its_overdue_job_do_not_wait_for_each_other(
    sql: Session, other: Session, overdue: tuple[UUID, Any, Any], recoverer: Session
) -> None:
    worker, first, late = overdue
    with sql.transaction(), other.transaction():
        sql("select from holdfast.job where id = %s for update", first.id)
        assert other.value("leave", worker=worker) == 1  # it skips the locked job
        assert recoverer.value("recover") == 0  # it skips the overdue job, which the worker gives back
    assert (sql.state(first.id), sql.state(late.id)) == ("claimed", "pending")
    sql.value("recover")
    assert sql.state(first.id) == "pending"


def test_a_recovery_of_an_overdue_job_does_not_wait_for_the_row_of_its_worker(
    sql: Session, other: Session, overdue: tuple[UUID, Any, Any], recoverer: Session
) -> None:
    worker, first, late = overdue
    with other.transaction():
        other.value("heartbeat", worker=worker)
        assert recoverer.value("recover") == 1
    assert (sql.state(first.id), sql.state(late.id)) == ("claimed", "pending")


def test_a_cancel_waits_for_a_completion_under_way_and_is_told_who_won(
    sql: Session, other: Session, background: Background
) -> None:
    job_id = sql.enqueue()
    job = sql.claim_one()
    with sql.connection.transaction():
        sql.value("complete", id=job.id, lease=job.lease)
        late = background(lambda: other.value("cancel", id=job_id))
        sql.until(lambda: sql.is_waiting(other))
    assert late() == "completed"


def test_a_report_waits_for_a_wish_to_cancel_under_way_and_sees_it(
    sql: Session, other: Session, background: Background
) -> None:
    for outcome, end in [("completed", "completed"), ("failed", "cancelled")]:
        job_id = sql.enqueue()
        job = sql.claim_one()
        sql.value("progress", id=job.id, lease=job.lease, percent=50)
        with sql.connection.transaction():
            assert sql.value("cancel", id=job_id) == "requested"
            late = background(partial(other.finish, [job], outcome))
            sql.until(lambda: sql.is_waiting(other))
        assert late() == []
        done = sql.job(job_id)
        assert done.state == end
        assert done.started_at is not None


def test_progress_waits_for_a_completion_under_way_and_is_told_that_it_is_late(
    sql: Session, other: Session, background: Background, refused: Refused
) -> None:
    job_id = sql.enqueue()
    job = sql.claim_one()
    with sql.connection.transaction():
        sql.value("complete", id=job.id, lease=job.lease)
        late = background(lambda: other.value("progress", id=job_id, lease=job.lease, percent=50))
        sql.until(lambda: sql.is_waiting(other))
    with refused("HF003"):
        late()
    assert sql("select from holdfast.running") == []


def test_a_claim_steps_over_a_cancel_under_way(sql: Session, other: Session) -> None:
    job_id = sql.enqueue()
    with sql.connection.transaction():
        assert sql.value("cancel", id=job_id) == "cancelled"
        assert other.claim() == []
    assert other.claim() == []


def test_the_same_report_twice_at_once_counts_once(
    sql: Session, connect: Connect, together: Together
) -> None:
    sessions = [connect() for _ in range(4)]
    for outcome in ("completed", "failed", "released", "interrupted"):
        sql.enqueue_many(20, outcome)
        jobs = sql.claim_all(tasks=[outcome])
        reports = [lambda it=it, jobs=jobs, outcome=outcome: it.finish(jobs, outcome) for it in sessions]
        assert together(*reports) == [[]] * 4
    assert sql.one("select count(*) from holdfast.finished") == 20
    assert sql.one("select count(*) from holdfast.attempt_error") == 40


def test_two_different_reports_at_once_have_one_winner(
    sql: Session, connect: Connect, together: Together
) -> None:
    one, two = connect(), connect()
    for _ in range(ROUNDS):
        sql.enqueue()
        job = sql.claim_one()
        first, second = together(
            lambda job=job: one.finish([job], "completed"), lambda job=job: two.finish([job], "failed")
        )
        assert len(first) + len(second) == 1
        assert sql.state(job.id) == ("scheduled" if first else "completed")
        if second:
            assert second[0].sqlstate == "HF003"


def test_finish_recover_cancel_and_progress_in_any_order_have_one_winner_and_never_deadlock(
    connect: Connect, sql: Session, together: Together
) -> None:
    """Every job ends in exactly one place, and whoever was refused is not the one who won."""
    dice = random.Random(4)
    finisher, mixer, recoverer, canceller, keeper = (connect() for _ in range(5))
    for session in (finisher, mixer, recoverer, canceller, keeper):
        session("set deadlock_timeout = '20ms'")
    for _ in range(ROUNDS):
        worker = sql.value("register")
        ids = sql.enqueue_many(40)
        jobs = sql.claim_all(worker=worker)
        outcomes = [dice.choice(["completed", "failed", "released", "snoozed", "interrupted"]) for _ in jobs]

        def shuffled(jobs: list[Any] = jobs) -> list[Any]:
            return dice.sample(jobs, len(jobs))

        def mixed(jobs: list[Any] = jobs, outcomes: list[str] = outcomes) -> list[Any]:
            pairs = dice.sample(list(zip(jobs, outcomes, strict=True)), len(jobs))
            return mixer.rows(
                "finish",
                ids=[job.id for job, _ in pairs],
                leases=[job.lease for job, _ in pairs],
                outcomes=[outcome for _, outcome in pairs],
            )

        def cancel(jobs: list[Any] = jobs) -> list[Any]:
            return [canceller.value("cancel", id=job.id) for job in shuffled(jobs)[:10]]

        def keep(jobs: list[Any] = jobs) -> list[Any]:
            some = shuffled(jobs)
            return keeper.rows(
                "progress_many",
                ids=[job.id for job in some],
                leases=[job.lease for job in some],
                percents=[50] * 40,
                stages=[None] * 40,
                messages=[None] * 40,
            )

        completed, other_reports, recovered, _, _ = together(
            lambda some=shuffled: finisher.finish(some(), "completed"),
            mixed,
            lambda it=worker: recoverer.lose(it),
            cancel,
            keep,
        )
        # Whoever lost is told; a completion and another report cannot both be accepted.
        lost_completions = {refusal.id for refusal in completed}
        lost_reports = {refusal.id for refusal in other_reports}
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome != "completed":
                assert job.id in lost_completions or job.id in lost_reports
        places = sql(
            "select id, count(*) from holdfast.jobs where id = any(%s) group by id having count(*) <> 1", ids
        )
        assert places == []
        assert sql.one("select count(*) from holdfast.jobs where id = any(%s)", ids) == 40
        won = sum(1 for job in jobs if job.id not in lost_completions or job.id not in lost_reports)
        assert won + recovered == 40
        sql("set holdfast.door = 'open'")
        sql("delete from holdfast.job")
        assert sql("select from holdfast.running r join holdfast.finished f on f.id = r.job_id") == []
        sql("delete from holdfast.running")


def test_batches_in_opposite_orders_do_not_deadlock(
    sql: Session, connect: Connect, together: Together
) -> None:
    one, two, three = connect(), connect(), connect()
    for session in (one, two, three):
        session("set deadlock_timeout = '20ms'")
    for outcome in ("completed", "failed", "released"):
        for _ in range(5):
            worker = sql.value("register")
            sql.enqueue_many(200)
            jobs = sql.claim_all(worker=worker)
            together(
                lambda jobs=jobs, outcome=outcome: one.finish(jobs, outcome),
                lambda jobs=jobs, outcome=outcome: two.finish(jobs[::-1], outcome),
                lambda worker=worker: three.lose(worker),
            )
            sql("set holdfast.door = 'open'")
            sql("delete from holdfast.job")


def test_a_worker_that_leaves_while_it_is_recovered_neither_deadlocks_nor_loses_a_job(
    sql: Session, connect: Connect, together: Together
) -> None:
    leaver, recoverer = connect(), connect()
    for _ in range(ROUNDS):
        worker = sql.value("register")
        ids = sql.enqueue_many(20)
        sql.claim_all(worker=worker)

        def leave(worker: UUID = worker) -> int:
            try:
                return leaver.value("leave", worker=worker)
            except psycopg.Error as error:
                assert error.sqlstate == "HF006"  # noqa: PT017 - it may as well succeed
                return 0

        left, recovered = together(leave, lambda worker=worker: recoverer.lose(worker))
        recovered += sql.value("recover", timeout="9 days")
        assert left + recovered >= 20
        assert sql.one("select count(*) from holdfast.job where state = 'pending' and attempt = 0") == 20
        sql.finish(sql.claim_all(), "completed")
        while jobs := sql.claim_all():  # suspects come one at a time
            sql.finish(jobs)
        assert {sql.state(job_id) for job_id in ids} == {"completed"}


def test_a_claim_under_way_when_its_worker_is_lost_is_recovered_at_the_next_look(
    sql: Session, other: Session
) -> None:
    worker = sql.value("register")
    sql.enqueue_many(5)
    with other.connection.transaction():
        jobs = other.claim(worker=worker)
        assert sql.lose(worker) == 0, "it cannot be seen yet"
    assert sql.value("recover", timeout="1 day") == 5
    assert [sql.job(job.id).attempt for job in jobs] == [0] * 5


def test_a_recovery_by_hand_waits_for_a_heartbeat_under_way(
    sql: Session, other: Session, background: Background
) -> None:
    worker = sql.value("register")
    sql.enqueue()
    job = sql.claim_one(worker=worker)
    sql("update holdfast.worker set heartbeat_at = heartbeat_at - interval '10 days'")
    with sql.connection.transaction():
        sql.value("heartbeat", worker=worker)
        late = background(lambda: other.value("recover", timeout="9 days"))
        sql.until(lambda: sql.is_waiting(other))
    assert late() == 0
    assert sql.finish([job]) == []


def test_a_look_steps_over_a_worker_that_is_just_being_heard_of(
    sql: Session, other: Session, clock: Clock
) -> None:
    worker = sql.value("register")
    sql.enqueue()
    sql.claim_one(worker=worker)
    for _ in range(3):
        other.value("recover")
        clock.advance(seconds=14)
    with sql.connection.transaction(force_rollback=True):
        sql.value("heartbeat", worker=worker)
        assert other.value("recover") == 0
    assert other.value("recover") == 1, "it was not heard of in the end"


def test_a_heartbeat_waits_for_a_recovery_under_way_and_is_refused(
    sql: Session, other: Session, background: Background, refused: Refused
) -> None:
    worker = sql.value("register")
    sql.enqueue()
    sql.claim_one(worker=worker)
    with sql.connection.transaction():
        assert sql.lose(worker) == 1
        late = background(lambda: other.value("heartbeat", worker=worker))
        sql.until(lambda: sql.is_waiting(other))
    with refused("HF006"):
        late()


def test_a_report_does_not_wait_for_a_job_that_another_holds_by_now(sql: Session, connect: Connect) -> None:
    sql.enqueue_many(2)
    stale, own = sql.claim()
    sql(
        "update holdfast.job set lease = gen_random_uuid() where id = %s", stale.id
    )  # it was lost, and claimed anew
    holder = connect()
    holder("begin")
    holder("select from holdfast.job where id = %s for update", stale.id)
    sql("set lock_timeout = '1s'")
    refusals = sql.finish([stale, own])
    assert [(refusal.id, refusal.sqlstate) for refusal in refusals] == [(stale.id, "HF001")]
    assert sql.state(own.id) == "completed"
    holder("rollback")

"""An id of the caller's: the same call twice is one job, whatever happens in between."""

from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Connect, Refused, Session, Together


@pytest.fixture
def job_id() -> UUID:
    return uuid4()


def jobs(sql: Session) -> int:
    return sql.one("select count(*) from holdfast.jobs")


def test_the_same_id_again_returns_the_first_job_and_adds_none(sql: Session, job_id: UUID) -> None:
    assert sql.enqueue("pay", payload='{"a": 1, "b": 2}', id=job_id) == job_id
    # The order of keys in a JSON object says nothing, and where it runs is not what it is.
    assert sql.enqueue("pay", payload='{"b": 2, "a": 1}', id=job_id, queue="other", priority=7) == job_id
    assert jobs(sql) == 1
    assert sql.job(job_id).queue == "default"


def test_another_payload_under_the_same_id_is_refused(sql: Session, job_id: UUID, refused: Refused) -> None:
    sql.enqueue("pay", payload='{"amount": 1}', id=job_id)
    with refused("HF007") as error:
        sql.enqueue("pay", payload='{"amount": 2}', id=job_id)
    assert error.detail == {"id": str(job_id), "field": "payload"}
    assert str(job_id) in error.message
    assert sql.job(job_id).payload == {"amount": 1}


def test_another_task_under_the_same_id_is_refused(sql: Session, job_id: UUID, refused: Refused) -> None:
    sql.enqueue("pay", id=job_id)
    with refused("HF007") as error:
        sql.enqueue("refund", id=job_id)
    assert error.detail == {"id": str(job_id), "field": "task"}


@pytest.mark.parametrize("end", ["completed", "dead", "cancelled"])
def test_an_id_stays_used_after_its_job_has_ended(
    sql: Session, job_id: UUID, end: str, refused: Refused
) -> None:
    sql.enqueue("pay", id=job_id)
    if end == "cancelled":
        sql.value("cancel", id=job_id)
    else:
        job = sql.claim_one()
        sql.finish([job], "completed" if end == "completed" else "failed", retries=[False])
    assert sql.state(job_id) == end
    assert sql.enqueue("pay", id=job_id) == job_id
    assert sql.state(job_id) == end
    assert jobs(sql) == 1
    with refused("HF007"):
        sql.enqueue("pay", payload="[2]", id=job_id)


def test_an_id_whose_transaction_was_rolled_back_is_free(sql: Session, job_id: UUID) -> None:
    with sql.connection.transaction(force_rollback=True):
        sql.enqueue("pay", payload="[1]", id=job_id)
    assert sql.enqueue("pay", payload="[2]", id=job_id) == job_id
    assert sql.job(job_id).payload == [2]


def test_an_id_whose_savepoint_was_rolled_back_is_free(sql: Session, job_id: UUID) -> None:
    with sql.connection.transaction():
        with sql.connection.transaction(force_rollback=True):
            sql.enqueue("pay", payload="[1]", id=job_id)
        sql.enqueue("pay", payload="[2]", id=job_id)
    assert sql.job(job_id).payload == [2]


def test_the_second_caller_waits_for_the_first_and_makes_no_second_job(
    sql: Session, other: Session, job_id: UUID, background: Background
) -> None:
    with sql.connection.transaction():
        sql.enqueue("pay", id=job_id)
        second = background(lambda: other.enqueue("pay", id=job_id))
        sql.until(lambda: sql.is_waiting(other))
    assert second() == job_id
    assert jobs(sql) == 1


def test_the_second_caller_makes_the_job_if_the_first_rolls_back(
    sql: Session, other: Session, job_id: UUID, background: Background
) -> None:
    with sql.connection.transaction(force_rollback=True):
        sql.enqueue("pay", payload="[1]", id=job_id)
        second = background(lambda: other.enqueue("pay", payload="[2]", id=job_id))
        sql.until(lambda: sql.is_waiting(other))
    assert second() == job_id
    assert sql.job(job_id).payload == [2]


def test_twenty_callers_at_once_make_one_job(
    sql: Session, connect: Connect, together: Together, job_id: UUID
) -> None:
    sessions = [connect() for _ in range(20)]
    results = together(*[lambda it=it: it.enqueue("pay", id=job_id) for it in sessions])
    assert set(results) == {job_id}
    assert jobs(sql) == 1


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_an_id_is_one_job_under_a_snapshot_too(
    sql: Session, other: Session, job_id: UUID, isolation: str, refused: Refused
) -> None:
    other.enqueue("pay", id=job_id)
    with sql.transaction(isolation):
        assert sql.enqueue("pay", id=job_id) == job_id
    job = other.claim_one()
    other.finish([job])
    with sql.transaction(isolation):
        assert sql.enqueue("pay", id=job_id) == job_id
    with refused("HF007"), sql.transaction(isolation):
        sql.enqueue("pay", payload="[1]", id=job_id)
    assert jobs(sql) == 1


def test_an_id_used_since_the_snapshot_is_a_collision_never_a_second_job(
    sql: Session, other: Session, job_id: UUID
) -> None:
    sql("begin isolation level repeatable read")
    sql("select 1")  # takes the snapshot
    other.enqueue("pay", id=job_id)
    other.finish([other.claim_one()])
    with pytest.raises(psycopg.errors.SerializationFailure):
        sql.enqueue("pay", id=job_id)
    sql("rollback")
    assert sql.enqueue("pay", id=job_id) == job_id
    assert jobs(sql) == 1


def test_ids_in_a_call_for_many_are_each_one_job(sql: Session) -> None:
    known, new, twice = sorted(uuid4() for _ in range(3))
    sql.enqueue("pay", payload="[0]", id=known)
    payloads = ["[2]", "[0]", "[1]", "[2]", "[9]"]
    ids = sql.enqueue_many(5, "pay", payloads=payloads, ids=[twice, known, new, twice, None])
    assert ids[:4] == [twice, known, new, twice]
    assert ids[4] not in {known, new, twice}
    assert jobs(sql) == 4
    assert sql.enqueue_many(4, "pay", payloads=payloads[:4], ids=ids[:4]) == ids[:4]
    assert jobs(sql) == 4


def test_one_id_twice_in_a_call_with_different_payloads_is_refused(
    sql: Session, job_id: UUID, refused: Refused
) -> None:
    with refused("HF007"):
        sql.enqueue_many(2, "pay", payloads=["[1]", "[2]"], ids=[job_id, job_id])
    assert jobs(sql) == 0


def test_callers_with_the_same_ids_in_opposite_orders_do_not_deadlock(
    sql: Session, connect: Connect, together: Together
) -> None:
    # The planner would note the ids in the order given, unless it is told not to.
    ids = [uuid4() for _ in range(300)]
    sessions = [connect() for _ in range(4)]

    def enqueue(session: Session, order: list[UUID]) -> None:
        for part in range(0, 300, 50):
            session.enqueue_many(50, "pay", ids=order[part : part + 50])

    for _ in range(3):
        sql("select set_config('holdfast.door', 'open', false)")
        sql("delete from holdfast.job")
        sql("delete from holdfast.used_id")
        together(*[
            lambda s=session, n=number: enqueue(s, [ids[part + 49 - i if n % 2 else part + i]
                                                    for part in range(0, 300, 50) for i in range(50)])
            for number, session in enumerate(sessions)
        ])  # fmt: skip
        assert jobs(sql) == 300


def test_an_id_is_forgotten_after_7_days(sql: Session, clock: Clock, job_id: UUID) -> None:
    sql.enqueue("pay", payload="[1]", id=job_id)
    sql.finish([sql.claim_one()])
    clock.advance(days=6.9)
    sql.value("upkeep")
    assert sql.enqueue("pay", payload="[1]", id=job_id) == job_id
    assert sql.state(job_id) == "completed"
    clock.advance(days=0.2)
    sql.value("upkeep")
    assert sql.enqueue("pay", payload="[2]", id=job_id) == job_id
    assert sql.job(job_id).state == "pending"


def test_an_id_is_known_as_long_as_its_job_lives(
    sql: Session, clock: Clock, job_id: UUID, refused: Refused
) -> None:
    sql.enqueue("pay", payload="[1]", id=job_id)
    clock.advance(days=20)
    sql.value("upkeep")
    assert sql.enqueue("pay", payload="[1]", id=job_id) == job_id
    with refused("HF007"):
        sql.enqueue("pay", payload="[2]", id=job_id)
    assert jobs(sql) == 1


def test_a_job_under_an_id_used_before_can_die_beside_the_old_letter(
    sql: Session, clock: Clock, job_id: UUID
) -> None:
    for n in (1, 2):
        sql.enqueue("pay", payload=f"[{n}]", id=job_id)
        sql.value("fail", id=job_id, lease=sql.claim_one().lease, error=f"no {n}", retry=False)
        clock.advance(days=8)
        sql.value("upkeep")
    assert sql("select payload, last_error from holdfast.dead_letter") == [([2], "no 2")]
    assert sql.state(job_id) == "dead"

"""Who waits for the end of a job is told, and nobody else pays for it."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Connect, Refused, Session

Hear = Callable[[], list[set[UUID]]]

CHANNEL = "holdfast_wait_test"


@pytest.fixture
def hear(connect: Connect) -> Hear:
    """What has been said on our channel: the ids of each notification."""
    listener = connect()
    listener(f"listen {CHANNEL}")

    def hear() -> list[set[UUID]]:
        said = [notify.payload for notify in listener.connection.notifies(timeout=0.2)]
        return [{UUID(job_id) for job_id in payload.split(",")} for payload in said]

    return hear


def wait_for(sql: Session, *ids: UUID) -> None:
    sql.rows("await_jobs", ids=list(ids), channel=CHANNEL)


def dead(sql: Session, job: Any) -> None:
    sql.finish([job], "failed", errors=["no"], retries=[False])


def cancelled(sql: Session, job: Any) -> None:
    sql.finish([job], "cancelled")


def completed(sql: Session, job: Any) -> None:
    sql.finish([job])


def lost_for_good(sql: Session, job: Any) -> None:
    sql.rows("start", ids=[job.id], leases=[job.lease], once=[True])
    sql.lose(job.worker)


@pytest.mark.parametrize("end", [completed, dead, cancelled, lost_for_good])
def test_each_end_is_told(sql: Session, hear: Hear, end: Callable[..., Any]) -> None:
    job_id = sql.enqueue()
    wait_for(sql, job_id)
    job = sql.claim_one()
    assert hear() == []
    end(sql, job)
    assert hear() == [{job_id}]


def test_the_end_of_a_waiting_job_is_told(sql: Session, hear: Hear) -> None:
    off, up = sql.enqueue_many(2)
    wait_for(sql, off, up)
    sql.value("cancel", id=off)
    sql.value("give_up", id=up)
    assert hear() == [{off}, {up}]


def test_a_failure_that_is_tried_again_is_no_end(sql: Session, hear: Hear) -> None:
    job_id = sql.enqueue()
    wait_for(sql, job_id)
    sql.finish([sql.claim_one()], "failed", errors=["no"], delays=["1 h"])
    assert hear() == []
    assert sql.rows("ends", ids=[job_id]) == []


def test_thousands_are_told_in_a_few_words(sql: Session, hear: Hear) -> None:
    ids = sql.enqueue_many(1000)
    wait_for(sql, *ids)
    sql.finish(sql.claim_all())
    said = hear()
    assert len(said) == 5  # each has 200 ids
    assert set.union(*said) == set(ids)


def test_nobody_is_told_who_waits_no_more_or_wants_silence(sql: Session, hear: Hear) -> None:
    first, second = sql.enqueue_many(2)
    wait_for(sql, first, second)
    sql.rows("await_no_more", ids=[first], channel=CHANNEL)
    sql("set holdfast.notify = off")
    sql.finish(sql.claim())
    assert hear() == []


def test_how_jobs_have_ended(sql: Session) -> None:
    ids = sql.enqueue_many(4)
    done, broken, off, _held = sql.claim()
    sql.finish([done], results=['{"n": 1}'])
    dead(sql, broken)
    cancelled(sql, off)
    stranger = sql.one("select gen_random_uuid()")
    ends = {end.id: end for end in sql.rows("ends", ids=[*ids, stranger])}
    assert (ends[done.id].state, ends[done.id].result, ends[done.id].task) == ("completed", {"n": 1}, "task")
    assert (ends[broken.id].state, ends[broken.id].error) == ("dead", "no")
    assert ends[off.id].state == "cancelled"
    assert ends[stranger].state is None
    assert ids[3] not in ends


def test_a_channel_has_a_name_that_is_safe(sql: Session, refused: Refused) -> None:
    for channel in ("", "a b", 'a"b', "x" * 64, None):
        with refused("HF008") as error:
            sql.rows("await_jobs", ids=[], channel=channel)
        assert error.detail["field"] == "channel"


def test_waiters_that_are_gone_are_swept(sql: Session, clock: Clock) -> None:
    done, waits = sql.enqueue_many(2)
    wait_for(sql, done, waits)
    sql.value("cancel", id=done)
    clock.advance(minutes=2)
    sql.value("upkeep")
    assert sql("select job_id from holdfast.waiter") == [(waits,)]


def test_at_most_10000_jobs_are_waited_for_in_a_call(sql: Session, refused: Refused) -> None:
    sql("select holdfast.await_jobs(array(select gen_random_uuid() from generate_series(1, 10000)), 'c')")
    with refused("HF008") as error:
        sql("select holdfast.await_jobs(array(select gen_random_uuid() from generate_series(1, 10001)), 'c')")
    assert error.detail["field"] == "ids"
    assert "10000 at most" in error.message

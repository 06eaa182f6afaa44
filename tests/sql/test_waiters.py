"""Who waits for the end of a job is told, and nobody else pays for it."""

from uuid import UUID

import pytest

CHANNEL = "holdfast_wait_test"


@pytest.fixture
def hear(connect):
    """What has been said on our channel: the ids of each notification."""
    listener = connect()
    listener(f"listen {CHANNEL}")

    def hear():
        said = [notify.payload for notify in listener.connection.notifies(timeout=0.2)]
        return [{UUID(job_id) for job_id in payload.split(",")} for payload in said]

    return hear


def wait_for(sql, *ids):
    sql.rows("await_jobs", ids=list(ids), channel=CHANNEL)


def dead(sql, job):
    sql.finish([job], "failed", errors=["no"], retries=[False])


def cancelled(sql, job):
    sql.finish([job], "cancelled")


def completed(sql, job):
    sql.finish([job])


def lost_for_good(sql, job):
    sql.rows("start", ids=[job.id], leases=[job.lease], once=[True])
    sql.lose(job.worker)


@pytest.mark.parametrize("end", [completed, dead, cancelled, lost_for_good])
def test_each_end_is_told(sql, hear, end):
    job_id = sql.enqueue()
    wait_for(sql, job_id)
    job = sql.claim_one()
    assert hear() == []
    end(sql, job)
    assert hear() == [{job_id}]


def test_the_end_of_a_waiting_job_is_told(sql, hear):
    off, up = sql.enqueue_many(2)
    wait_for(sql, off, up)
    sql.value("cancel", id=off)
    sql.value("give_up", id=up)
    assert hear() == [{off}, {up}]


def test_a_failure_that_is_tried_again_is_no_end(sql, hear):
    job_id = sql.enqueue()
    wait_for(sql, job_id)
    sql.finish([sql.claim_one()], "failed", errors=["no"], delays=["1 h"])
    assert hear() == []
    assert sql.rows("ends", ids=[job_id]) == []


def test_thousands_are_told_in_a_few_words(sql, hear):
    ids = sql.enqueue_many(1000)
    wait_for(sql, *ids)
    sql.finish(sql.claim_all())
    said = hear()
    assert len(said) == 6  # each has room for 200 ids, less the first
    assert set.union(*said) == set(ids)


def test_nobody_is_told_who_waits_no_more_or_wants_silence(sql, hear):
    first, second = sql.enqueue_many(2)
    wait_for(sql, first, second)
    sql.rows("await_no_more", ids=[first], channel=CHANNEL)
    sql("set holdfast.notify = off")
    sql.finish(sql.claim())
    assert hear() == []


def test_how_jobs_have_ended(sql):
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


def test_a_channel_has_a_name_that_is_safe(sql, refused):
    for channel in ("", "a b", 'a"b', "x" * 64, None):
        with refused("HF008") as error:
            sql.rows("await_jobs", ids=[], channel=channel)
        assert error.detail["field"] == "channel"


def test_waiters_that_are_gone_are_swept(sql, clock):
    done, waits = sql.enqueue_many(2)
    wait_for(sql, done, waits)
    sql.value("cancel", id=done)
    clock.advance(minutes=2)
    sql.value("upkeep")
    assert sql("select job_id from holdfast.waiter") == [(waits,)]


def test_at_most_10000_jobs_are_waited_for_in_a_call(sql, refused):
    sql("select holdfast.await_jobs(array(select gen_random_uuid() from generate_series(1, 10000)), 'c')")
    with refused("HF008") as error:
        sql("select holdfast.await_jobs(array(select gen_random_uuid() from generate_series(1, 10001)), 'c')")
    assert error.detail["field"] == "ids"
    assert "10000 at most" in error.message

"""What a job is when it has just been put on its queue."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Refused, Session


def test_a_job_needs_nothing_but_the_name_of_its_task(sql: Session) -> None:
    job = sql.job(sql.enqueue("mail.welcome"))
    assert (job.queue, job.task, job.payload, job.priority) == ("default", "mail.welcome", {}, 100)
    assert (job.state, job.attempt, job.max_attempts) == ("pending", 0, 3)
    assert (job.worker, job.lease, job.result, job.last_error, job.headers) == (None,) * 5
    assert (job.claimed_at, job.started_at, job.finished_at, job.duration, job.progress) == (None,) * 5
    assert job.run_at == job.created_at == job.changed_at


def test_a_job_keeps_everything_that_its_call_said(sql: Session) -> None:
    job_id = sql.enqueue(
        "mail.welcome",
        payload='{"user_id": 7, "tags": ["a", null]}',
        queue="mail",
        priority=150,
        max_attempts=9,
        headers='{"trace": "abc"}',
    )
    job = sql.job(job_id)
    assert (job.queue, job.priority, job.max_attempts) == ("mail", 150, 9)
    assert (job.payload, job.headers) == ({"user_id": 7, "tags": ["a", None]}, {"trace": "abc"})


def test_ids_are_uuids_of_version_7_in_the_order_of_time(sql: Session) -> None:
    ids = [sql.enqueue() for _ in range(5)]
    assert {UUID(str(job_id)).version for job_id in ids} == {7}
    millis = [job_id.int >> 80 for job_id in ids]
    assert millis == sorted(millis)
    assert abs(millis[0] / 1000 - sql.one("select extract(epoch from now())::float8")) < 60


def test_an_id_made_without_the_servers_own_function_is_a_version_7_too(sql: Session) -> None:
    # PostgreSQL 18 has uuidv7(); the versions before it use the expression in the migration.
    expression = """
      select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid"""
    made = sql.one(expression)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert abs((made.int >> 80) - (sql.enqueue().int >> 80)) < 60_000


@pytest.mark.parametrize(
    "when", [{"delay": "1 hour"}, {"run_at": "2999-01-01 00:00+00"}], ids=["delay", "run_at"]
)
def test_a_job_that_is_due_later_is_scheduled(sql: Session, clock: Clock, when: dict[str, Any]) -> None:
    if "run_at" in when:
        when = {"run_at": sql.one("select holdfast.clock() + interval '1 hour'")}
    job = sql.job(sql.enqueue(**when))
    assert job.state == "scheduled"
    assert timedelta(minutes=59) < job.run_at - job.created_at <= timedelta(hours=1)
    assert sql.claim() == []


@pytest.mark.parametrize("when", [{"delay": "0"}, {"run_at": "1999-12-31 23:59+00"}])
def test_a_job_that_was_due_long_ago_is_only_late(sql: Session, when: dict[str, Any]) -> None:
    job_id = sql.enqueue(**when)
    assert sql.state(job_id) == "pending"
    assert [job.id for job in sql.claim()] == [job_id]


def test_many_jobs_go_in_with_one_call_and_come_back_in_their_order(sql: Session) -> None:
    ids = sql.enqueue_many(
        4,
        payloads=['{"n": 0}', None, '{"n": 2}', "[3]"],
        queues=["a", None, "b", "a"],
        priorities=[5, None, -5, 7],
        delays=[None, "1 hour", None, None],
        max_attempts=[None, 7, None, 1],
        headers=[None, None, '{"h": 1}', None],
    )
    jobs = [sql.job(job_id) for job_id in ids]
    assert [job.payload for job in jobs] == [{"n": 0}, {}, {"n": 2}, [3]]
    assert [job.queue for job in jobs] == ["a", "default", "b", "a"]
    assert [job.priority for job in jobs] == [5, 100, -5, 7]
    assert [job.state for job in jobs] == ["pending", "scheduled", "pending", "pending"]
    assert [job.max_attempts for job in jobs] == [3, 7, 3, 1]
    assert [job.headers for job in jobs] == [None, None, {"h": 1}, None]


def test_jobs_of_one_call_are_claimed_in_the_order_given(sql: Session) -> None:
    payloads = [f'{{"n": {n}}}' for n in range(500)]
    sql.enqueue_many(500, payloads=payloads)
    assert [job.payload["n"] for job in sql.claim_all()] == list(range(500))


def test_a_call_for_no_jobs_is_no_mistake(sql: Session) -> None:
    assert sql.rows("enqueue_many", tasks=[]) == []


def test_one_bad_job_in_a_call_keeps_all_of_them_out(sql: Session, refused: Refused) -> None:
    with refused("HF005"):
        sql.rows("enqueue_many", tasks=["good", "BAD", "good"])
    assert sql("select from holdfast.job") == []


def test_arrays_of_different_lengths_are_refused(sql: Session, refused: Refused) -> None:
    with refused("HF008") as error:
        sql.enqueue_many(2, queues=["one"])
    assert "as long as tasks" in error.message


def test_the_maximum_of_attempts_comes_from_the_call_the_task_the_queue_or_the_default(sql: Session) -> None:
    assert sql.job(sql.enqueue("t", queue="q")).max_attempts == 3
    sql("update holdfast.queue set max_attempts = 4 where name = '*'")
    assert sql.job(sql.enqueue("t", queue="q")).max_attempts == 4
    sql("insert into holdfast.queue (name, max_attempts) values ('q', 5)")
    assert sql.job(sql.enqueue("t", queue="q")).max_attempts == 5
    sql("insert into holdfast.retry_policy (task, max_attempts) values ('t', 6)")
    assert sql.job(sql.enqueue("t", queue="q")).max_attempts == 6
    assert sql.job(sql.enqueue("t", queue="q", max_attempts=7)).max_attempts == 7
    assert [sql.job(job_id).max_attempts for job_id in sql.enqueue_many(1, "t", queues=["q"])] == [6]


def test_a_bulk_copy_needs_a_lane_and_nothing_else(sql: Session) -> None:
    lane = sql.value("lane", queue="bulk", priority=30, task="import")
    with sql.connection.cursor().copy("copy holdfast.job (lane_id, task, payload) from stdin") as copy:
        for n in range(1000):
            copy.write_row((lane, "import", f'{{"n": {n}}}'))
    jobs = sql.claim_all(queues=["bulk"])
    assert [job.payload["n"] for job in jobs] == list(range(1000))
    assert {(job.queue, job.priority, job.max_attempts) for job in jobs} == {("bulk", 30, 3)}


def test_a_bulk_copy_makes_later_jobs_scheduled(sql: Session) -> None:
    lane = sql.value("lane", queue="bulk", priority=30, task="import")
    later = sql.one("select holdfast.clock() + interval '1 day'")
    with sql.connection.cursor().copy("copy holdfast.job (lane_id, task, run_at) from stdin") as copy:
        copy.write_row((lane, "import", later))
        copy.write_row((lane, "import", None))
    assert [state for (state,) in sql("select state from holdfast.job order by seq")] == [
        "scheduled",
        "pending",
    ]


def test_a_bulk_copy_into_the_lane_of_another_task_is_refused(sql: Session, refused: Refused) -> None:
    lane = sql.value("lane", queue="bulk", priority=30, task="import")
    with refused("HF008") as error:
        sql("insert into holdfast.job (lane_id, task) values (%s, 'export')", lane)
    assert error.detail["field"] == "lane_id"
    with refused("HF008"):
        sql("insert into holdfast.job (lane_id, task) values (999999, 'export')")


def test_a_bulk_copy_cannot_jump_the_queue_through_a_lane_of_returned_jobs(
    sql: Session, refused: Refused
) -> None:
    lane = sql.value("lane", queue="bulk", priority=30, task="import", kind=1)
    with refused("HF008"):
        sql("insert into holdfast.job (lane_id, task) values (%s, 'import')", lane)


def test_the_same_id_twice_by_copy_is_refused_by_the_primary_key(sql: Session) -> None:
    job_id = sql.enqueue()
    lane = sql.value("lane", queue="default", priority=100, task="task")
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql("insert into holdfast.job (id, lane_id, task) values (%s, %s, 'task')", job_id, lane)


def test_places_come_in_the_order_asked_for(sql: Session) -> None:
    sql("select holdfast.set_retry_policy('b', max_attempts => 9)")
    rows = sql(
        "select lane_id, max_attempts, may_copy, now_at "
        "from holdfast.places(array['b', 'a', 'b'], array['q', 'q', 'q'], array[1, 2, 1])"
    )
    lanes = [
        sql.one("select holdfast.lane('q', %s, %s)", priority, task)
        for priority, task in [(1, "b"), (2, "a")]
    ]
    assert [row[:3] for row in rows] == [(lanes[0], 9, True), (lanes[1], 3, True), (lanes[0], 9, True)]
    assert len({row[3] for row in rows}) == 1


def test_places_refuse_bad_names(sql: Session, refused: Refused) -> None:
    for tasks, queues, priorities, code in [
        (["Bad Name"], ["q"], [1], "HF005"),
        (["t"], ["Bad Name"], [1], "HF005"),
        (["t"], [None], [1], "HF005"),
        (["t"], ["q"], [40_000], "HF008"),
    ]:
        with refused(code):
            sql("select * from holdfast.places(%s, %s, %s)", tasks, queues, priorities)


def test_a_job_that_a_trigger_of_somebody_leaves_out_is_refused_not_lost(sql: Session) -> None:
    sql(
        "create function public.leave_out() returns trigger language plpgsql as 'begin return null; end'; "
        "create trigger leaves_out before insert on holdfast.job "
        "for each row execute function public.leave_out()"
    )
    with pytest.raises(psycopg.errors.TriggeredActionException, match="was not stored: a trigger"):
        sql.enqueue()

"""What a claim hands out, in which order, and how much of it."""

import random
from uuid import UUID, uuid4

import pytest

from tests.sql.sessions import Background, Refused, Session


def test_a_claim_needs_no_arguments(sql: Session) -> None:
    for _ in range(11):
        sql.enqueue()
    jobs = sql.rows("claim")
    assert len(jobs) == 10
    assert len({job.lease for job in jobs}) == len({job.worker for job in jobs}) == 1
    assert isinstance(jobs[0].lease, UUID)
    assert sql.job(jobs[0].id).worker == jobs[0].worker


def test_a_claim_hands_out_what_a_worker_must_know(sql: Session) -> None:
    job_id = sql.enqueue(
        "mail", payload='{"a": 1}', queue="q", priority=7, max_attempts=4, headers='{"h": 2}'
    )
    worker, lease = uuid4(), uuid4()
    job = sql.claim_one(worker=worker, lease=lease, queues=["q"], tasks=["mail"])
    assert (job.id, job.task, job.payload, job.attempt, job.lease) == (job_id, "mail", {"a": 1}, 1, lease)
    assert (job.queue, job.priority, job.max_attempts, job.suspect, job.worker) == ("q", 7, 4, False, worker)
    assert job.headers == {"h": 2}
    row = sql.job(job_id)
    assert (row.state, row.lease, row.worker, row.attempt) == ("claimed", lease, worker, 1)
    assert row.created_at == job.created_at <= row.claimed_at == row.changed_at


def test_higher_priorities_go_first(sql: Session) -> None:
    priorities = [100, -32768, 32767, 0, 150, 30, 150]
    sql.enqueue_many(len(priorities), priorities=priorities)
    assert [job.priority for job in sql.claim_all()] == sorted(priorities, reverse=True)


def test_what_goes_before_other_jobs_can_be_claimed_alone(sql: Session) -> None:
    sql.enqueue_many(4, priorities=[100, 101, 200, 99])
    assert [job.priority for job in sql.claim_all(above=100)] == [200, 101]
    assert sql.claim_all(above=100) == []
    assert [job.priority for job in sql.claim_all()] == [100, 99]


def test_within_a_priority_first_come_first_served_across_tasks_and_queues(sql: Session) -> None:
    order = [(f"task{n % 7}", f"queue{n % 3}") for n in range(200)]
    random.Random(1).shuffle(order)
    ids = [sql.enqueue(task, queue=queue) for task, queue in order]
    claimed = []
    for amount in (1, 2, 3, 50, 7, 1, 100, 100):
        claimed += [job.id for job in sql.claim(amount)]
    assert claimed == ids


def test_a_thousand_priorities_are_served_in_order(sql: Session) -> None:
    priorities = [n - 500 for n in range(1000)] * 3
    random.Random(2).shuffle(priorities)
    sql.enqueue_many(3000, priorities=priorities)
    claimed = []
    while jobs := sql.claim(499):
        claimed += [job.priority for job in jobs]
    assert claimed == sorted(priorities, reverse=True)


@pytest.mark.parametrize("amount", [1, 2, 10, 500])
@pytest.mark.parametrize("lanes", [1, 13])
def test_a_claim_never_returns_more_than_asked(sql: Session, amount: int, lanes: int) -> None:
    sql.rows("enqueue_many", tasks=[f"task{n % lanes}" for n in range(600)])
    assert len(sql.claim(amount)) == amount


@pytest.mark.parametrize("amount", [0, -1, 10_001, None])
def test_an_amount_outside_its_range_is_refused(sql: Session, amount: int | None, refused: Refused) -> None:
    with refused("HF008") as error:
        sql.claim(amount)
    assert error.detail["field"] == "amount"


def test_a_worker_gets_only_its_queues_and_tasks(sql: Session) -> None:
    for queue in ("a", "b"):
        for task in ("x", "y"):
            sql.enqueue(task, queue=queue)
    assert (
        sql.claim(queues=["c"]) == sql.claim(tasks=["z"]) == sql.claim(queues=[]) == sql.claim(tasks=[]) == []
    )
    assert [(job.queue, job.task) for job in sql.claim(queues=["a", "c"], tasks=["y"])] == [("a", "y")]
    assert [(job.queue, job.task) for job in sql.claim(queues=["a"])] == [("a", "x")]
    assert [(job.queue, job.task) for job in sql.claim(tasks=["x"])] == [("b", "x")]
    assert [(job.queue, job.task) for job in sql.claim()] == [("b", "y")]


def test_a_task_that_no_worker_knows_disturbs_nobody(sql: Session) -> None:
    sql.enqueue_many(2000, "unknown", priorities=[200] * 2000)
    known = sql.enqueue_many(10, "known")
    assert [job.id for job in sql.claim(tasks=["known"])] == known
    assert sql.one("select count(*) from holdfast.job where state = 'pending' and attempt = 0") == 2000


def test_a_paused_queue_hands_nothing_out_and_goes_on_where_it_was(sql: Session) -> None:
    ids = [sql.enqueue(queue="a"), sql.enqueue(queue="b"), sql.enqueue(queue="a")]
    sql.value("pause", queue="a")
    assert [job.id for job in sql.claim()] == [ids[1]]
    ids.append(sql.enqueue(queue="a"))
    assert sql.claim() == []
    sql.value("resume", queue="a")
    assert [job.id for job in sql.claim()] == [ids[0], ids[2], ids[3]]


def test_attempts_are_counted_at_the_claim(sql: Session) -> None:
    job_id = sql.enqueue(max_attempts=2)
    for attempt in (1, 2):
        job = sql.claim_one()
        assert job.attempt == sql.job(job_id).attempt == attempt
        sql.value("fail", id=job.id, lease=job.lease, error="no", retry_in="0")
        sql.value("promote")
    assert sql.state(job_id) == "dead"
    assert sql.claim() == []


@pytest.mark.parametrize("lanes", [1, 2])
def test_no_job_is_claimed_before_it_was_created_or_due(
    sql: Session, other: Session, background: Background, lanes: int
) -> None:
    worker = sql.value("register")
    delayed = sql.enqueue("delayed", delay="1 hour")
    with sql.transaction():
        sql("lock table holdfast.lane")
        claimed = background(lambda: other.claim(10, worker=worker))  # it looks at the clock, and waits
        sql.until(lambda: sql.is_waiting(other))
        ids = [sql.enqueue("delayed"), *(sql.enqueue(f"task.{number}") for number in range(1, lanes))]
        sql.value("run_now", id=delayed)
    assert {job.id for job in claimed()} == {delayed, *ids}
    assert all(job.claimed_at >= max(job.created_at, job.run_at) for job in map(sql.job, [delayed, *ids]))


@pytest.mark.parametrize("lanes", [1, 2])
def test_no_job_is_claimed_in_the_future_where_the_clock_was_set_back(sql: Session, lanes: int) -> None:
    sql("select holdfast.test_advance(3600)")
    ids = [sql.enqueue(f"task.{number}") for number in range(lanes)]
    sql("select holdfast.test_advance(-3600)")
    assert {job.id for job in sql.claim(10, worker=sql.value("register"))} == set(ids)
    assert sql.one("select bool_and(claimed_at <= holdfast.clock()) from holdfast.job")


@pytest.mark.parametrize("waits", ["scheduled", "pending"])
def test_a_job_whose_maximum_was_lowered_below_its_attempts_is_never_claimed(
    sql: Session, waits: str
) -> None:
    job_id, behind = sql.enqueue(max_attempts=5), sql.enqueue()
    for _ in range(2):
        job = sql.claim_one()
        sql.value("fail", id=job_id, lease=job.lease, error="no", retry_in="0")
        if waits == "pending" or job.attempt == 1:
            sql.value("promote")
    assert sql.state(job_id) == waits
    sql("update holdfast.job set max_attempts = 2 where id = %s", job_id)
    assert [job.id for job in sql.claim()] == [behind]
    sql.value("promote")
    sql.value("upkeep")
    dead = sql.job(job_id)
    assert (dead.state, dead.attempt, dead.max_attempts, dead.last_error) == ("dead", 2, 2, "no")


def test_spent_jobs_at_the_front_do_not_hide_others_of_their_priority(sql: Session) -> None:
    # Two lanes of returned jobs; all of the first one's are out of attempts.
    spent = [sql.enqueue("spent", max_attempts=9) for _ in range(10)]
    good = [sql.enqueue("good", max_attempts=9) for _ in range(10)]
    sql.finish(sql.claim_all(), "interrupted")
    sql("update holdfast.job set max_attempts = 1 where task = 'spent'")
    low = sql.enqueue("low", priority=1)
    assert [job.id for job in sql.claim(10)] == good
    assert [job.id for job in sql.claim(10)] == [low]
    sql.value("upkeep")
    assert {sql.state(job_id) for job_id in spent} == {"dead"}


def test_jobs_that_another_claim_has_locked_are_stepped_over(sql: Session, other: Session) -> None:
    ids = [sql.enqueue(f"task{n % 2}") for n in range(20)]
    with other.connection.transaction():
        assert [job.id for job in other.claim(5)] == ids[:5]
        assert [job.id for job in sql.claim(10)] == ids[5:15]
    assert [job.id for job in sql.claim(10)] == ids[15:]


def test_a_less_urgent_job_is_not_taken_while_a_more_urgent_one_is_free(sql: Session, other: Session) -> None:
    # The first 10 by order are in one lane and locked: the other lane's must come before the low one.
    locked = [sql.enqueue("a") for _ in range(10)]
    free = [sql.enqueue("b") for _ in range(10)]
    sql.enqueue("low", priority=1)
    with other.connection.transaction():
        assert [job.id for job in other.claim(10, tasks=["a"])] == locked
        assert [job.id for job in sql.claim(10)] == free


def test_a_claim_rolled_back_is_claimed_again_without_a_count(sql: Session, other: Session) -> None:
    job_id = sql.enqueue()
    with other.connection.transaction(force_rollback=True):
        assert other.claim_one().id == job_id
        assert sql.claim() == []
    assert sql.claim_one().attempt == 1


def test_a_claim_is_bounded_in_bytes_but_never_below_one_job(sql: Session) -> None:
    sql("update holdfast.queue set payload_limit = 67108864")
    sql("alter table holdfast.job alter payload set storage external")  # no time lost on compression

    def enqueue(amount: int, megabytes: int, priority: int) -> None:
        sql(
            "select holdfast.enqueue('task', to_jsonb(repeat('x', %s)), priority => %s) "
            "from generate_series(1, %s)",
            megabytes * 1024 * 1024,
            priority,
            amount,
        )

    def claim() -> list[int]:
        return [priority for (priority,) in sql("select priority from holdfast.claim(amount => 500)")]

    enqueue(10, megabytes=2, priority=9)
    enqueue(1, megabytes=20, priority=5)
    sql.enqueue(priority=1)
    # 16 MiB hold seven or eight of the first; and nothing less urgent is slipped in behind them.
    first = claim()
    assert first in ([9] * 7, [9] * 8)
    assert claim() == [9] * (10 - len(first))
    assert claim() == [5]
    assert claim() == [1]
    sql("alter table holdfast.job alter payload set storage extended")


def test_a_lost_reply_can_be_asked_for_by_worker_and_lease(sql: Session) -> None:
    sql.enqueue_many(5, priorities=[1, 5, 3, 5, 2])
    worker, lease = uuid4(), uuid4()
    jobs = sql.claim(worker=worker, lease=lease)
    assert sql.rows("claimed", worker=worker, lease=lease) == jobs
    sql.finish(jobs[:2])
    assert sql.rows("claimed", worker=worker, lease=lease) == jobs[2:]
    assert (
        sql.rows("claimed", worker=worker, lease=uuid4())
        == sql.rows("claimed", worker=uuid4(), lease=lease)
        == []
    )

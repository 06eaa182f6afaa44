"""What the planner believes about a table may be long past.

One that was vacuumed while it was empty is taken for empty, however full it is now; one that was analyzed
while all jobs were held, for one with nothing else in it.
"""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.sql.sessions import Session, without_autovacuum

WAITING = 5_000


@pytest.fixture(scope="module", autouse=True)
def undisturbed(database: tuple[str, psycopg.Connection[Any]]) -> None:
    without_autovacuum(database[1])


@pytest.fixture
def believed_empty(sql: Session) -> None:
    sql.enqueue_many(500)
    sql.finish(sql.claim_all())
    sql("vacuum analyze holdfast.live, holdfast.running")
    assert sql.one("select reltuples from pg_class where oid = 'holdfast.live'::regclass") == 0
    sql.enqueue_many(WAITING)


@pytest.fixture
def believed_held(sql: Session) -> None:
    sql.enqueue_many(500)
    jobs = sql.claim_all()
    sql("analyze holdfast.live")
    sql.finish(jobs)
    sql("vacuum holdfast.live")
    sql.enqueue_many(WAITING)


@pytest.fixture
def hangers_on(sql: Session) -> Iterator[None]:
    """What others have on record, in tables that are taken for empty as well: one row keeps their pages."""
    fill = {
        "running": "(job_id, lease, started_at, changed_at) "
        "select gen_random_uuid(), gen_random_uuid(), now(), now()",
        "event_count": "(job_id, events, last_at) select gen_random_uuid(), 1, now()",
    }
    for table, row in fill.items():
        sql(f"insert into holdfast.{table} {row} from generate_series(1, {WAITING})")
        sql(f"delete from holdfast.{table} where ctid < (select max(ctid) from holdfast.{table})")
        sql(f"vacuum analyze holdfast.{table}")
        sql(f"insert into holdfast.{table} {row} from generate_series(1, {WAITING})")
    yield
    sql("truncate holdfast.running, holdfast.event_count")


def blocks(sql: Session, call: str, *values: Any) -> int:
    plan = sql.one(f"explain (analyze, buffers, timing off, format json) select {call}", *values)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def rows_read(sql: Session, call: str, *values: Any) -> int:
    """How many jobs, and rows that hang on them, are looked at, in the tables and in their indexes."""
    count = (
        "select sum(pg_stat_get_xact_tuples_returned(i)) from unnest(array['holdfast.live'::regclass, "
        "'holdfast.job_pkey', 'holdfast.job_pending', 'holdfast.job_due', 'holdfast.job_held', "
        "'holdfast.running', 'holdfast.running_pkey', 'holdfast.event_count', 'holdfast.event_count_pkey']) i"
    )
    with sql.connection.transaction():
        before = sql.one(count)
        sql(f"select from {call}", *values)
        return sql.one(count) - before


@pytest.mark.parametrize(
    "outcome", ["completed", "failed", "snoozed", "released", "interrupted", "cancelled"]
)
def test_a_finish_looks_up_its_jobs_one_by_one(sql: Session, believed_empty: None, outcome: str) -> None:
    jobs = sql.claim(100)
    ids, leases = [job.id for job in jobs], [job.lease for job in jobs]
    finish = "holdfast.finish(%s::uuid[], %s::uuid[], %s)"
    assert blocks(sql, finish, ids, leases, [outcome] * 100) < 100 * 100


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize(
    "outcome", ["completed", "failed", "snoozed", "released", "interrupted", "cancelled"]
)
def test_a_finish_of_one_that_was_seen_at_work_looks_at_no_other(
    sql: Session, believed_empty: None, hangers_on: None, outcome: str, attempts: int
) -> None:
    sql.enqueue("rare", max_attempts=attempts)
    job = sql.claim_one(tasks=["rare"])
    sql.rows("start", ids=[job.id], leases=[job.lease])
    finish = "holdfast.finish(array[%s]::uuid[], array[%s]::uuid[], array[%s])"
    assert rows_read(sql, finish, job.id, job.lease, outcome) < 100


def test_whether_many_are_still_held_is_looked_up_one_by_one(
    sql: Session, believed_empty: None, new_lease: Callable[[], UUID]
) -> None:
    jobs = sql.claim(100)
    ids, leases = [job.id for job in jobs], [*(job.lease for job in jobs[:-1]), new_lease()]
    assert rows_read(sql, "holdfast.not_held(%s::uuid[], %s::uuid[])", ids, leases) < 1000


def test_a_recovery_and_a_promotion_look_up_theirs(sql: Session, believed_empty: None) -> None:
    sql.claim(100)
    assert blocks(sql, "holdfast.recover('0')") < 100 * 100
    sql.enqueue_many(100, delays=["1 hour"] * 100)
    sql("update holdfast.job set run_at = run_at - interval '1 day' where state = 'scheduled'")
    assert blocks(sql, "holdfast.promote()") < 100 * 100


@pytest.mark.parametrize(
    "call",
    [
        "holdfast.cancels(%(worker)s)",
        "holdfast.recover()",
        "holdfast.start(array[%(id)s], array[%(lease)s])",
        "holdfast.not_held(array[%(id)s], array[%(lease)s])",
        "holdfast.disown(%(worker)s, array[%(id)s], '{}', now())",
        "holdfast.claimed(%(worker)s, %(lease)s)",
        "holdfast.leave(%(worker)s)",
    ],
)
def test_what_a_worker_asks_again_and_again_reads_next_to_nothing(
    sql: Session, believed_empty: None, call: str
) -> None:
    worker = sql.value("register")
    job = sql.claim(1, worker=worker)[0]
    sql.value("cancel", id=job.id)
    query = f"explain (analyze, buffers, timing off, format json) select {call}"
    given = {"worker": worker, "id": job.id, "lease": job.lease}
    with sql.connection.transaction(force_rollback=True):
        sql.connection.execute(query, given)  # what it takes to plan it is not counted
    plan = sql.connection.execute(query, given).fetchall()[0][0][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < WAITING / 50


def test_who_leaves_beside_an_old_snapshot_looks_at_its_own_jobs(sql: Session, other: Session) -> None:
    other("begin isolation level repeatable read")
    other("select 1")
    sql.enqueue_many(WAITING)
    sql.finish(sql.claim_all())
    sql("vacuum analyze holdfast.live")
    worker = sql.value("register")
    sql.enqueue()
    sql.claim(1, worker=worker)
    assert rows_read(sql, "holdfast.leave(%s)", worker) < 100


@pytest.mark.parametrize("how", ["leave", "recover"])
def test_jobs_of_many_lanes_are_looked_up_once_each_as_they_go_back(
    sql: Session, believed_empty: None, how: str
) -> None:
    worker = sql.value("register")
    tasks = [f"task-{n % 200}" for n in range(400)]
    sql.rows("enqueue_many", tasks=tasks)
    assert len(sql.claim(400, worker=worker, tasks=sorted(set(tasks)))) == 400
    call = "holdfast.leave(%s)" if how == "leave" else "holdfast.recover('0')"
    assert rows_read(sql, call, *([worker] if how == "leave" else [])) < 400 * 40
    assert not [row for row in sql.rows("list_workers") if row.holds]


@pytest.fixture
def in_each_state(sql: Session, believed_empty: None) -> dict[str, UUID]:
    """Some thousands scheduled too, and the id of a job in each state."""
    sql.enqueue_many(WAITING, delays=["1 hour"] * WAITING)
    ids = {"pending": sql.enqueue(), "scheduled": sql.enqueue(delay="1 hour")}
    for state in ("claimed", "running", "completed", "cancelled", "dead"):
        ids[state] = sql.enqueue("rare", max_attempts=1)
        job = sql.claim_one(tasks=["rare"])
        match state:
            case "running":
                sql.rows("start", ids=[job.id], leases=[job.lease])
            case "completed" | "cancelled":
                sql.finish([job], state)
            case "dead":
                sql.finish([job], "failed")
    return ids


def test_a_job_is_looked_up_by_its_id(sql: Session, in_each_state: dict[str, UUID]) -> None:
    for state, job_id in in_each_state.items():
        assert sql.job(job_id).state == state
        for look in ("job", "why", "job_errors", "memory", "run_now"):
            if (look, state) != ("why", "pending"):  # it counts who goes before, up to ten thousand
                assert rows_read(sql, f"holdfast.{look}(%s)", job_id) < 100, (look, state)


def test_so_is_what_hangs_on_it(sql: Session, in_each_state: dict[str, UUID], hangers_on: None) -> None:
    for state, job_id in in_each_state.items():
        assert rows_read(sql, "holdfast.job(%s)", job_id) < 100, state
    assert rows_read(sql, "holdfast.list_jobs(state => 'pending', amount => 50)") < WAITING / 10


@pytest.mark.parametrize(
    "state", ["pending", "claimed", "running", "completed", "cancelled", "dead", "scheduled", None]
)
def test_a_list_looks_at_what_it_shows(
    sql: Session, in_each_state: dict[str, UUID], state: str | None
) -> None:
    shown = {row.id for row in sql.rows("list_jobs", state=state)}
    assert state is None or in_each_state[state] in shown
    most = WAITING if state in {"scheduled", None} else 0  # of these, all, to find those that changed last
    assert rows_read(sql, "holdfast.list_jobs(state => %s, amount => 50)", state) < most + WAITING / 10
    if state:
        assert rows_read(sql, "holdfast.list_jobs(state => %s, queue => 'other')", state) < most + 100


@pytest.mark.parametrize("state", ["claimed", "running"])
def test_a_list_of_held_jobs_looks_at_no_others(sql: Session, believed_held: None, state: str) -> None:
    assert rows_read(sql, "holdfast.list_jobs(state => %s)", state) < 100


def test_a_count_looks_at_each_job_once(sql: Session, believed_held: None) -> None:
    assert rows_read(sql, "holdfast.count_jobs()") < WAITING + 100

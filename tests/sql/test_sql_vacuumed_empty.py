"""A table that was vacuumed while it was empty is taken for empty by the planner, however full it is now."""

import pytest

WAITING = 5_000


@pytest.fixture
def believed_empty(sql):
    sql.enqueue_many(500)
    sql.finish(sql.claim_all())
    sql("vacuum analyze holdfast.job, holdfast.running")
    assert sql.one("select reltuples from pg_class where oid = 'holdfast.job'::regclass") == 0
    sql.enqueue_many(WAITING)


def blocks(sql, call, *values) -> int:
    plan = sql.one(f"explain (analyze, buffers, timing off, format json) select {call}", *values)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@pytest.mark.parametrize(
    "outcome", ["completed", "failed", "snoozed", "released", "interrupted", "cancelled"]
)
def test_a_finish_looks_up_its_jobs_one_by_one(sql, believed_empty, outcome):
    jobs = sql.claim(100)
    ids, leases = [job.id for job in jobs], [job.lease for job in jobs]
    finish = "holdfast.finish(%s::uuid[], %s::uuid[], %s)"
    assert blocks(sql, finish, ids, leases, [outcome] * 100) < 100 * 100


def test_a_recovery_and_a_promotion_look_up_theirs(sql, believed_empty):
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
def test_what_a_worker_asks_again_and_again_reads_next_to_nothing(sql, believed_empty, call):
    worker = sql.value("register")
    job = sql.claim(1, worker=worker)[0]
    sql.value("cancel", id=job.id)
    query = f"explain (analyze, buffers, timing off, format json) select {call}"
    given = {"worker": worker, "id": job.id, "lease": job.lease}
    plan = sql.connection.execute(query, given).fetchone()[0][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < WAITING / 10

"""A poison job must not take its neighbours along: who was near a death runs alone until cleared."""

import pytest


@pytest.fixture
def survivors(sql):
    """Enqueue jobs, let a worker claim them all and die; returns their ids."""

    def make(amount, started=0, **options):
        ids = sql.enqueue_many(amount, **options)
        die(sql, started=started)
        return ids

    return make


def die(sql, amount=10_000, started=0):
    """A worker claims, starts some of what it got, and is killed; returns what it held."""
    worker = sql.value("register")
    jobs = sql.claim(amount, worker=worker)
    for job in jobs[:started]:
        sql.rows("start", ids=[job.id], leases=[job.lease])
    sql.lose(worker)
    return jobs


def test_suspects_are_handed_out_one_at_a_time(sql, survivors):
    ids = survivors(3)
    worker = sql.value("register")
    first = sql.claim_one(worker=worker)
    assert (first.id, first.suspect, first.attempt) == (ids[0], True, 1)
    assert sql.claim_all(worker=worker) == [], "not a second one while the first may still kill it"
    sql.finish([first])
    second = sql.claim_all(worker=worker)
    assert [job.id for job in second] == [ids[1]]


def test_a_suspects_start_is_on_record_before_its_handler_can_run(sql, survivors):
    survivors(1)
    job = sql.claim_one()
    row = sql.job(job.id)
    assert (row.state, row.started_at) == ("running", row.claimed_at)


def test_other_work_goes_on_beside_a_suspect(sql, survivors):
    survivors(2)
    fresh = sql.enqueue_many(5)
    worker = sql.value("register")
    assert [job.suspect for job in sql.claim_all(worker=worker)] == [True]
    assert [job.id for job in sql.claim_all(worker=worker)] == fresh


def test_more_urgent_work_comes_with_a_suspect_but_nothing_after_it(sql, survivors):
    suspects = survivors(2)
    urgent = sql.enqueue_many(3, priorities=[150] * 3)
    sql.enqueue_many(3)
    jobs = sql.claim_all()
    assert [job.id for job in jobs] == [*urgent, suspects[0]]
    assert [job.suspect for job in jobs] == [False, False, False, True]


def test_a_suspect_that_has_lived_for_a_while_lets_the_next_one_start(sql, survivors, clock):
    ids = survivors(3)
    worker = sql.value("register")
    sql.claim_one(worker=worker)
    clock.advance(seconds=6)
    sql.value("heartbeat", worker=worker)
    assert [job.id for job in sql.claim_all(worker=worker)] == [ids[1]]


def test_several_workers_clear_suspects_side_by_side(sql, survivors):
    ids = survivors(3)
    taken = [sql.claim_one(worker=sql.value("register")).id for _ in range(3)]
    assert taken == ids


def test_suspects_of_many_tasks_come_one_at_a_time_too(sql):
    sql.rows("enqueue_many", tasks=[f"task{n}" for n in range(5)])
    die(sql)
    worker = sql.value("register")
    cleared = []
    while jobs := sql.claim_all(worker=worker):
        assert len(jobs) == 1
        cleared += [job.task for job in jobs]
        sql.finish(jobs)
    assert cleared == [f"task{n}" for n in range(5)]


def test_only_the_culprit_pays_for_a_death(sql, survivors):
    poison, innocent = survivors(2)
    worker = sql.value("register")
    assert sql.claim_one(worker=worker).id == poison
    neighbours = [*sql.enqueue_many(3)]
    jobs = sql.claim_all(worker=worker)
    assert [job.id for job in jobs] == neighbours
    for job in jobs:
        sql.rows("start", ids=[job.id], leases=[job.lease])
    sql.lose(worker)
    assert sql.job(poison).attempt == 1
    assert [sql.job(job_id).attempt for job_id in (innocent, *neighbours)] == [0] * 4
    assert [len(sql.rows("job_errors", id=job_id)) for job_id in (poison, *neighbours)] == [1, 0, 0, 0]


def test_a_job_that_kills_its_worker_every_time_ends_dead_and_its_200_neighbours_complete_uncharged(sql):
    # Nothing was ever started for long enough to be written down, as with short jobs.
    ids = sql.enqueue_many(201)
    poison = ids[100]
    deaths = 0
    while True:
        worker = sql.value("register")
        alive = True
        while alive and (jobs := sql.claim_all(worker=worker)):
            before = [job for job in jobs if job.id < poison]
            alive = poison not in [job.id for job in jobs]
            sql.finish(jobs if alive else before)
        if alive:
            break
        deaths += 1
        sql.lose(worker)
    assert sql.state(poison) == "dead"
    assert sql.job(poison).attempt == 3
    assert deaths == 4, "the first death is nobody's: no start was written"
    others = [sql.job(job_id) for job_id in ids if job_id != poison]
    assert {(job.state, job.attempt) for job in others} == {("completed", 1)}


def test_a_suspect_that_fails_or_is_given_back_is_no_suspect_any_more(sql, survivors, clock):
    ids = survivors(3)
    for outcome in ("failed", "released", "interrupted"):
        worker = sql.value("register")
        job = sql.claim_one(worker=worker)
        sql.finish([job], outcome, delays=["0"])
    sql.value("promote")
    jobs = sql.claim_all()
    assert {job.id for job in jobs} == set(ids)
    assert not any(job.suspect for job in jobs)

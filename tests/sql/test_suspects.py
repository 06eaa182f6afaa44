"""A poison job must not take its neighbours along: what was near a death runs alone until it is cleared."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Connect, Session

WorkerWith = Callable[..., tuple[UUID, list[Any]]]
Survivors = Callable[..., list[UUID]]


@pytest.fixture
def worker_with(sql: Session) -> WorkerWith:
    """Register a worker that claims some jobs and starts them, all unless told otherwise; returns both."""

    def make(amount: int, started: int | None = None, max_attempts: int = 3) -> tuple[UUID, list[Any]]:
        sql.enqueue_many(amount, max_attempts=[max_attempts] * amount)
        worker = sql.value("register")
        jobs = sql.claim_all(worker=worker)
        assert len(jobs) == amount
        for job in jobs[:started]:
            sql.rows("start", ids=[job.id], leases=[job.lease])
        return worker, jobs

    return make


@pytest.fixture
def dies(sql: Session, clock: Clock) -> Callable[..., int]:
    """Let workers be heard of once more after so many seconds, then never again; what they held is back."""

    def let(*workers: UUID, after: float = 0) -> int:
        if after:
            clock.advance(seconds=after)
            for worker in workers:
                sql.value("heartbeat", worker=worker)
        clock.advance(minutes=11)
        return sql.value("recover", timeout="10 minutes")

    return let


def counts(sql: Session, jobs: list[Any]) -> list[int]:
    """How many deaths are on record for each of these."""
    query = "select (select d.deaths from holdfast.death d where d.job_id = %s)"
    return [sql.one(query, job.id) for job in jobs]


@pytest.fixture
def survivors(sql: Session) -> Survivors:
    """Enqueue jobs, let a worker claim them all and die; returns their ids."""

    def make(amount: int, started: int = 0, **options: Any) -> list[UUID]:
        ids = sql.enqueue_many(amount, **options)
        die(sql, started=started)
        return ids

    return make


def die(sql: Session, amount: int = 10_000, started: int = 0) -> list[Any]:
    """A worker claims, starts some of what it got, and is killed; returns what it held."""
    worker = sql.value("register")
    jobs = sql.claim(amount, worker=worker)
    for job in jobs[:started]:
        sql.rows("start", ids=[job.id], leases=[job.lease])
    sql.lose(worker)
    return jobs


def test_suspects_are_handed_out_one_at_a_time(sql: Session, survivors: Survivors) -> None:
    ids = survivors(3)
    worker = sql.value("register")
    first = sql.claim_one(worker=worker)
    assert (first.id, first.suspect, first.attempt) == (ids[0], True, 1)
    assert sql.claim_all(worker=worker) == [], "not a second one while the first may still kill it"
    sql.finish([first])
    second = sql.claim_all(worker=worker)
    assert [job.id for job in second] == [ids[1]]


def test_a_suspects_start_is_on_record_before_its_handler_can_run(sql: Session, survivors: Survivors) -> None:
    survivors(1)
    job = sql.claim_one()
    row = sql.job(job.id)
    assert (row.state, row.started_at) == ("running", row.claimed_at)


def test_other_work_goes_on_beside_a_suspect(sql: Session, survivors: Survivors) -> None:
    survivors(2)
    fresh = sql.enqueue_many(5)
    worker = sql.value("register")
    assert [job.suspect for job in sql.claim_all(worker=worker)] == [True]
    assert [job.id for job in sql.claim_all(worker=worker)] == fresh


def test_more_urgent_work_comes_with_a_suspect_but_nothing_after_it(
    sql: Session, survivors: Survivors
) -> None:
    suspects = survivors(2)
    urgent = sql.enqueue_many(3, priorities=[150] * 3)
    sql.enqueue_many(3)
    jobs = sql.claim_all()
    assert [job.id for job in jobs] == [*urgent, suspects[0]]
    assert [job.suspect for job in jobs] == [False, False, False, True]


def test_a_suspect_is_cleared_when_it_has_run_for_a_while(
    sql: Session, survivors: Survivors, clock: Clock
) -> None:
    ids = survivors(3)
    worker = sql.value("register")
    sql.claim_one(worker=worker)
    clock.advance(seconds=4)
    assert sql.claim_all(worker=worker) == []
    clock.advance(seconds=1)
    assert [job.id for job in sql.claim_all(worker=worker)] == [ids[1]]
    assert sql.claim_all(worker=worker) == [], "that one is not cleared"


def test_a_suspect_is_not_cleared_before_it_has_run_for_twice_as_long_as_at_a_death(
    sql: Session, clock: Clock, worker_with: WorkerWith, dies: Callable[..., int]
) -> None:
    worker, jobs = worker_with(2)
    dies(worker, after=7)
    sql.claim_one(worker=(worker := sql.value("register")))
    # When it died is not known to the second: it may have been ten later, a third of the lease time.
    for seconds in (6, 7, 20):
        clock.advance(seconds=seconds)
        sql.value("heartbeat", worker=worker)
        assert sql.claim_all(worker=worker) == []
    clock.advance(seconds=2)
    assert [job.id for job in sql.claim_all(worker=worker)] == [jobs[1].id]


def test_two_claims_of_one_worker_do_not_both_take_a_suspect(
    sql: Session, other: Session, connect: Connect, background: Background, survivors: Survivors
) -> None:
    ids = survivors(2)
    worker = sql.value("register")
    second = connect()
    with other.transaction():
        assert [job.id for job in other.claim_all(worker=worker)] == [ids[0]]
        taken = background(lambda: second.claim_all(worker=worker))
        sql.until(lambda: sql.is_waiting(second))
    assert taken() == []


def test_several_workers_clear_suspects_side_by_side(sql: Session, survivors: Survivors) -> None:
    ids = survivors(3)
    taken = [sql.claim_one(worker=sql.value("register")).id for _ in range(3)]
    assert taken == ids


def test_suspects_of_many_tasks_come_one_at_a_time_too(sql: Session) -> None:
    sql.rows("enqueue_many", tasks=[f"task{n}" for n in range(5)])
    die(sql)
    worker = sql.value("register")
    cleared = []
    while jobs := sql.claim_all(worker=worker):
        assert len(jobs) == 1
        cleared += [job.task for job in jobs]
        sql.finish(jobs)
    assert cleared == [f"task{n}" for n in range(5)]


def test_nobody_pays_for_a_first_death(
    sql: Session, worker_with: WorkerWith, dies: Callable[..., int]
) -> None:
    worker, jobs = worker_with(3, started=2, max_attempts=1)
    assert dies(worker, after=1.5) == 3
    for job in jobs:
        assert (sql.state(job.id), sql.job(job.id).attempt) == ("pending", 0)
        assert sql.rows("job_errors", id=job.id) == []
    assert counts(sql, jobs) == [1, 1, None], "the third had not started"
    assert sql.claim_one().suspect
    events = "select data -> 'deaths' from holdfast.event where job_id = %s and name = 'job.recovered'"
    assert [sql.one(events, job.id) for job in jobs] == [1, 1, None]


def test_only_the_culprit_pays_for_a_death(sql: Session, survivors: Survivors) -> None:
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


def test_a_suspect_that_is_not_cleared_pays_and_dies_at_its_last_attempt(
    sql: Session, worker_with: WorkerWith, dies: Callable[..., int]
) -> None:
    worker, (poison, innocent) = worker_with(2, max_attempts=1)
    dies(worker, after=1.5)
    worker = sql.value("register")
    assert sql.claim_one(worker=worker).id == poison.id
    dies(worker, after=1.5)
    assert (sql.state(poison.id), sql.job(poison.id).attempt) == ("dead", 1)
    assert sql.job(poison.id).last_error.startswith("lost:")
    assert (sql.state(innocent.id), sql.job(innocent.id).attempt) == ("pending", 0)


def test_a_suspect_that_was_cleared_does_not_pay(
    sql: Session, survivors: Survivors, dies: Callable[..., int]
) -> None:
    (job_id,) = survivors(1)
    worker = sql.value("register")
    sql.claim_one(worker=worker)
    dies(worker, after=5)
    assert (sql.state(job_id), sql.job(job_id).attempt) == ("pending", 0)
    assert sql.rows("job_errors", id=job_id) == []


def test_a_suspect_that_was_cleared_does_not_pay_although_nothing_was_heard_since(
    sql: Session, survivors: Survivors, clock: Clock, dies: Callable[..., int]
) -> None:
    """That the next one was handed out is proof enough that its worker had lived until then."""
    first, _second = survivors(2)
    worker = sql.value("register", lease_time="10 minutes")
    sql.claim_one(worker=worker)
    clock.advance(seconds=6)
    sql.finish(sql.claim_all(worker=worker))
    clock.advance(seconds=1)
    dies(worker)
    assert sql.job(first).attempt == 0


@pytest.mark.parametrize("sign", ["progress", "claim"])
def test_whatever_shows_that_a_worker_lived_clears_its_suspect(
    sql: Session, survivors: Survivors, clock: Clock, dies: Callable[..., int], sign: str
) -> None:
    (job_id,) = survivors(1)
    worker = sql.value("register")
    suspect = sql.claim_one(worker=worker)
    clock.advance(seconds=6)
    if sign == "progress":
        sql.value("progress", id=suspect.id, lease=suspect.lease, percent=5)
    else:
        sql.enqueue()
        sql.claim_one(worker=worker)
    dies()
    assert sql.job(job_id).attempt == 0


def test_the_longest_of_its_runs_is_kept(
    sql: Session, worker_with: WorkerWith, dies: Callable[..., int]
) -> None:
    worker, _ = worker_with(1)
    dies(worker, after=100)
    sql.claim_one(worker=(worker := sql.value("register")))
    dies(worker, after=1)
    assert sql.one("select longest >= interval '100 seconds' from holdfast.death")


def test_one_that_outlives_its_suspicion_each_time_ends_dead_too(
    sql: Session, worker_with: WorkerWith, dies: Callable[..., int]
) -> None:
    worker, (job,) = worker_with(1, max_attempts=2)
    for seconds in (1, 100):
        dies(worker, after=seconds)
        assert (sql.state(job.id), sql.job(job.id).attempt) == ("pending", 0)
        sql.claim_one(worker=(worker := sql.value("register")))
    dies(worker, after=1000)
    assert sql.state(job.id) == "dead"
    assert sql.job(job.id).last_error.startswith("lost:")
    assert len(sql.rows("job_errors", id=job.id)) == 1


def test_a_death_before_the_start_was_on_record_counts_for_a_suspect(
    sql: Session, survivors: Survivors, dies: Callable[..., int]
) -> None:
    (job_id,) = survivors(1, max_attempts=[1])
    sql.claim_one(worker=(worker := sql.value("register")))
    dies(worker, after=100)
    assert sql.state(job_id) == "dead", "the second death that it was held at"


def test_who_was_there_does_not_die_of_another_ones_death(
    sql: Session, worker_with: WorkerWith, clock: Clock, dies: Callable[..., int]
) -> None:
    worker, (long, poison) = worker_with(2, max_attempts=1)
    dies(worker, after=1)
    worker = sql.value("register")
    assert sql.claim_one(worker=worker).id == long.id
    clock.advance(seconds=25)
    sql.value("heartbeat", worker=worker)
    assert sql.claim_one(worker=worker).id == poison.id
    dies(worker, after=1)
    assert (sql.state(long.id), sql.job(long.id).attempt) == ("pending", 0)
    assert counts(sql, [long]) == [2], "but it was there"
    assert sql.state(poison.id) == "dead"


def test_a_killer_that_was_cleared_too_early_is_found_the_next_time(
    sql: Session, worker_with: WorkerWith, clock: Clock, dies: Callable[..., int]
) -> None:
    worker, (poison, innocent) = worker_with(2)
    dies(worker, after=1)
    worker = sql.value("register")
    assert sql.claim_one(worker=worker).id == poison.id
    clock.advance(seconds=25)
    sql.value("heartbeat", worker=worker)
    assert sql.claim_one(worker=worker).id == innocent.id
    dies(worker, after=1)
    assert [sql.job(job.id).attempt for job in (poison, innocent)] == [0, 1], "the wrong one"
    worker = sql.value("register")
    assert sql.claim_one(worker=worker).id == poison.id
    clock.advance(seconds=30)
    sql.value("heartbeat", worker=worker)
    assert sql.claim_all(worker=worker) == [], "it killed after 26 seconds, so it is not cleared after 30"
    dies(worker)
    assert [sql.job(job.id).attempt for job in (poison, innocent)] == [1, 1]


def test_several_workers_that_die_together_have_each_their_own_culprit(
    sql: Session, survivors: Survivors, clock: Clock, dies: Callable[..., int]
) -> None:
    ids = survivors(3)
    workers = [sql.value("register") for _ in ids]
    for worker in workers:
        sql.claim_one(worker=worker)
    clock.advance(seconds=6)
    sql.value("heartbeat", worker=workers[0])
    assert dies(*workers) == 3
    assert [sql.job(job_id).attempt for job_id in ids] == [0, 1, 1], "the first had been cleared"


def test_the_culprit_of_one_worker_clears_nobody_on_another(
    sql: Session, worker_with: WorkerWith, clock: Clock, dies: Callable[..., int]
) -> None:
    worker, (long, poison) = worker_with(2, max_attempts=1)
    dies(worker, after=1)
    first, second = (sql.value("register") for _ in range(2))
    assert sql.claim_one(worker=first).id == long.id
    clock.advance(seconds=25)
    assert sql.claim_one(worker=second).id == poison.id
    dies(first, second, after=1)
    assert [sql.state(job.id) for job in (long, poison)] == ["dead", "dead"], "each at its second death"
    assert sql.job(long.id).attempt == 1


def test_a_suspect_that_was_called_off_is_cancelled(
    sql: Session, survivors: Survivors, dies: Callable[..., int]
) -> None:
    (job_id,) = survivors(1)
    sql.claim_one(worker=(worker := sql.value("register")))
    sql.value("cancel", id=job_id)
    dies(worker, after=1)
    assert sql.state(job_id) == "cancelled"


def test_a_job_taken_back_for_its_timeout_pays_and_it_is_no_death(
    sql: Session, worker_with: WorkerWith, clock: Clock
) -> None:
    worker, (job,) = worker_with(1, started=0)
    sql.rows("start", ids=[job.id], leases=[job.lease], timeouts=["1 minute"])
    clock.advance(seconds=66)
    sql.value("heartbeat", worker=worker)
    assert sql.value("recover") == 1
    assert (sql.state(job.id), sql.job(job.id).attempt) == ("pending", 1)
    assert counts(sql, [job]) == [None]


@pytest.mark.parametrize("longer", [1, 4])
def test_of_workers_that_are_killed_over_and_over_no_job_dies_before_its_time(
    sql: Session, dies: Callable[..., int], longer: int
) -> None:
    """A deploy that waits for nobody. Whatever runs then has nothing to do with it."""
    ids, seconds = sql.enqueue_many(3), 100
    for deaths in range(1, 5):
        workers = [sql.value("register") for _ in ids]
        for worker in workers:
            job = sql.claim_one(worker=worker)
            sql.rows("start", ids=[job.id], leases=[job.lease])
        dies(*workers, after=seconds)
        seconds *= longer
        assert {sql.state(job_id) for job_id in ids} == {"dead" if deaths == 4 else "pending"}


def test_a_job_that_kills_its_worker_every_time_ends_dead_and_its_200_neighbours_complete_uncharged(
    sql: Session,
) -> None:
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


def test_a_suspect_whose_run_has_ended_is_no_suspect_any_more(
    sql: Session, survivors: Survivors, clock: Clock
) -> None:
    ids = survivors(3, started=3)
    for outcome in ("failed", "snoozed", "interrupted"):
        worker = sql.value("register")
        job = sql.claim_one(worker=worker)
        sql.finish([job], outcome, delays=["0"])
    sql.value("promote")
    jobs = sql.claim_all()
    assert {job.id for job in jobs} == set(ids)
    assert not any(job.suspect for job in jobs)
    assert counts(sql, jobs) == [1] * 3, "what it was at is not forgotten"


@pytest.mark.parametrize("how", ["release", "leave"])
def test_a_suspect_that_never_began_is_as_suspect_as_before(
    sql: Session, survivors: Survivors, how: str
) -> None:
    ids = survivors(2)
    worker = sql.value("register")
    job = sql.claim_one(worker=worker)
    if how == "release":
        sql.value("release", id=job.id, lease=job.lease)
    else:
        sql("delete from holdfast.running")
        sql.value("leave", worker=worker)
    worker = sql.value("register")
    jobs = sql.claim_all(worker=worker)
    assert [(job.id, job.suspect) for job in jobs] == [(ids[1], True)]
    sql.finish(jobs)
    (job,) = sql.claim_all(worker=worker)
    assert (job.id, job.suspect, job.attempt) == (ids[0], True, 1)


def test_a_dead_job_that_is_replayed_has_seen_no_death(
    sql: Session, worker_with: WorkerWith, dies: Callable[..., int]
) -> None:
    worker, (job,) = worker_with(1, max_attempts=1)
    dies(worker, after=1)
    sql.claim_one(worker=(worker := sql.value("register")))
    dies(worker, after=1)
    assert counts(sql, [job]) == [1]
    sql.value("replay", id=job.id)
    assert counts(sql, [job]) == [None]
    assert not sql.claim_one().suspect


def test_what_is_known_of_deaths_goes_with_the_job(
    sql: Session, worker_with: WorkerWith, dies: Callable[..., int]
) -> None:
    worker, jobs = worker_with(2)
    dies(worker, after=1)
    sql.finish([sql.claim_one(worker=sql.value("register"))])
    sql.value("upkeep")
    assert counts(sql, jobs) == [None, 1]


@pytest.mark.parametrize(
    ("killers", "innocents", "long"),
    [([1.5], 6, 3), ([7], 6, 12), ([1.5], 6, 12), ([0.2], 6, 90), ([20], 4, 90), ([1, 3], 6, 9)],
)
def test_killers_die_in_time_and_innocents_never(
    sql: Session, clock: Clock, killers: list[Any], innocents: int, long: int
) -> None:
    """One worker after the other, in steps of half a second, until nothing is left."""
    ids = sql.enqueue_many(len(killers) + innocents, max_attempts=[1] * (len(killers) + innocents))
    kills_after = dict(zip(ids, killers, strict=False))
    kills = dict.fromkeys(kills_after, 0)
    running: dict[UUID, Any] = {}
    worker, seconds = sql.value("register"), 0.0
    while sql.one("select count(*) from holdfast.live"):
        assert seconds < 2000, "it goes on for ever"
        for job in sql.claim(20, worker=worker):
            running[job.id] = (job, seconds)
        seconds += 0.5
        clock.advance(seconds=0.5)
        sql.value("heartbeat", worker=worker)
        ran = {job_id: seconds - since for job_id, (_, since) in running.items()}
        culprits = [job_id for job_id, time in ran.items() if time >= kills_after.get(job_id, 1e9)]
        seen = [job for job, since in running.values() if seconds - since > 0.5]
        sql.rows("start", ids=[job.id for job in seen], leases=[job.lease for job in seen])
        if culprits:
            kills[culprits[0]] += 1
            running.clear()
            sql.value("recover", timeout="0 seconds")
            worker = sql.value("register")
        else:
            done = [running.pop(job_id)[0] for job_id, time in ran.items() if time >= long]
            sql.finish(done)
    assert {sql.state(job_id) for job_id in kills_after} == {"dead"}
    assert max(kills.values()) <= 2, "max_attempts + 1"
    others = {(sql.state(job_id), sql.job(job_id).attempt) for job_id in ids if job_id not in kills}
    assert others == {("completed", 1)}


def test_a_suspect_that_somebody_has_locked_pays_for_the_death_of_its_worker_all_the_same(
    sql: Session, other: Session, clock: Clock, worker_with: WorkerWith, dies: Callable[..., int]
) -> None:
    """Its neighbour, which has run at its last death but for this one, is judged before it."""
    worker, (long, killer) = worker_with(2, max_attempts=1)
    dies(worker, after=1)
    worker = sql.value("register")
    assert sql.claim_one(worker=worker).id == long.id
    clock.advance(seconds=60)
    sql.value("heartbeat", worker=worker)
    assert sql.claim_one(worker=worker).id == killer.id
    with other.transaction():
        other("select from holdfast.job where id = %s for update", killer.id)
        assert dies(worker, after=1) == 1
        assert (sql.state(long.id), sql.state(killer.id)) == ("pending", "running")
    assert sql.value("recover", timeout="10 minutes") == 1
    assert (sql.state(long.id), sql.state(killer.id)) == ("pending", "dead")

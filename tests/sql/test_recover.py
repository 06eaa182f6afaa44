"""A worker that dies loses its jobs to others; one that lives never does, also not after an outage."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Connect, Refused, Session

WorkerWith = Callable[..., tuple[UUID, list[Any]]]
ClaimUnderWay = Callable[[UUID], tuple[Session, Any]]

LEASE = 30


@pytest.fixture
def look(sql: Session) -> Callable[[], int]:
    """Recover as a duty does."""
    return lambda: sql.value("recover")


@pytest.fixture
def watch(sql: Session, clock: Clock, look: Callable[[], int]) -> Callable[..., int]:
    """Let time pass while somebody looks every few seconds, and these workers are heard of."""

    def pass_time(seconds: int, *alive: UUID, every: int = 5) -> int:
        recovered = 0
        for _ in range(seconds // every):
            clock.advance(seconds=every)
            for worker in alive:
                sql.value("heartbeat", worker=worker)
            recovered += look()
        return recovered

    return pass_time


@pytest.fixture
def worker_with(sql: Session) -> WorkerWith:
    """Register a worker and let it claim; returns its id and its jobs."""

    def make(
        amount: int = 1, started: int = 0, max_attempts: int = 3, **options: Any
    ) -> tuple[UUID, list[Any]]:
        sql.enqueue_many(amount, max_attempts=[max_attempts] * amount)
        worker = sql.value("register", **options)
        jobs = sql.claim_all(worker=worker)
        assert len(jobs) == amount
        for job in jobs[:started]:
            assert sql.rows("start", ids=[job.id], leases=[job.lease]) == []
        return worker, jobs

    return make


def status(sql: Session, worker: UUID) -> str:
    return {row.id: row.status for row in sql.rows("list_workers")}[worker]


def test_a_dead_worker_loses_its_jobs_within_the_lease_time(
    sql: Session, watch: Callable[..., int], worker_with: WorkerWith
) -> None:
    dead, jobs = worker_with(3)
    alive, kept = worker_with(2)
    watch(10, dead, alive)
    assert watch(LEASE - 5, alive) == 0
    assert watch(10, alive) == 3
    assert {sql.state(job.id) for job in jobs} == {"pending"}
    assert {sql.state(job.id) for job in kept} == {"claimed"}
    assert status(sql, dead) == "lost"
    assert status(sql, alive) == "busy"
    assert sql.one("select recovered from holdfast.worker where id = %s", dead) == 3


def test_a_long_job_that_is_alive_keeps_its_lease_however_long_it_runs(
    sql: Session, watch: Callable[..., int], worker_with: WorkerWith
) -> None:
    alive, (job,) = worker_with(1, started=1)
    assert watch(1800, alive, every=15) == 0
    assert sql.finish([job]) == []


def test_at_a_first_death_no_attempt_counts(
    sql: Session, watch: Callable[..., int], worker_with: WorkerWith
) -> None:
    _, jobs = worker_with(10, started=3, max_attempts=1)
    assert watch(60) == 10
    assert {(sql.state(job.id), sql.job(job.id).attempt) for job in jobs} == {("pending", 0)}
    assert [sql.rows("job_errors", id=job.id) for job in jobs] == [[]] * 10
    assert sql("select from holdfast.running") == []


def test_a_suspect_that_loses_its_worker_has_one_attempt_less(
    sql: Session, watch: Callable[..., int], worker_with: WorkerWith
) -> None:
    _, (job,) = worker_with(1, started=1)
    watch(60)
    sql.claim_one(worker=sql.value("register"))
    assert watch(60) == 1
    assert (sql.state(job.id), sql.job(job.id).attempt) == ("pending", 1)
    assert [error.attempt for error in sql.rows("job_errors", id=job.id)] == [1]
    assert sql.job(job.id).last_error.startswith("lost:")


def test_a_job_out_of_attempts_goes_to_the_dead_letters(
    sql: Session, watch: Callable[..., int], worker_with: WorkerWith
) -> None:
    _, (job,) = worker_with(1, started=1, max_attempts=1)
    watch(60)
    sql.claim_one(worker=(worker := sql.value("register")))
    assert watch(60) == 1
    dead = sql.job(job.id)
    assert (dead.state, dead.worker, dead.attempt) == ("dead", worker, 1)
    assert dead.started_at is not None
    assert dead.last_error.startswith("lost:")
    (error,) = sql.rows("job_errors", id=job.id)
    assert str(worker) in error.error


def test_a_job_that_was_to_be_cancelled_is_cancelled(
    sql: Session, watch: Callable[..., int], worker_with: WorkerWith
) -> None:
    _, jobs = worker_with(2, started=1)
    for job in jobs:
        sql.value("cancel", id=job.id)
    assert watch(60) == 2
    assert [sql.state(job.id) for job in jobs] == ["cancelled"] * 2


def test_after_an_outage_longer_than_the_lease_nobody_is_judged_until_a_lease_has_passed(
    sql: Session, watch: Callable[..., int], clock: Clock, look: Callable[[], int], worker_with: WorkerWith
) -> None:
    alive, kept = worker_with(2)
    dead, lost = worker_with(2)
    watch(20, alive, dead)
    clock.advance(seconds=40)  # the database was away: no heartbeats, no looks
    assert look() == 0
    assert watch(10) == 0, "the live one is only on its way back"
    assert watch(15, alive) == 0
    assert watch(15, alive) == 2
    assert {sql.state(job.id) for job in kept} == {"claimed"}
    assert {sql.state(job.id) for job in lost} == {"pending"}


@pytest.mark.parametrize("outage", [16, 40, 300, 86_400])
def test_outages_that_follow_each_other_closely_judge_nobody_either(
    sql: Session,
    watch: Callable[..., int],
    clock: Clock,
    look: Callable[[], int],
    worker_with: WorkerWith,
    outage: int,
) -> None:
    _, jobs = worker_with(1)
    watch(10, jobs[0].worker, every=1)
    for _ in range(5):
        clock.advance(seconds=outage)
        assert look() == 0
        clock.advance(seconds=1)
        assert look() == 0
        sql.value("heartbeat", worker=jobs[0].worker)
    assert sql.finish(jobs) == []


def test_two_outages_with_a_single_look_between_them_judge_nobody(
    sql: Session, watch: Callable[..., int], clock: Clock, look: Callable[[], int], worker_with: WorkerWith
) -> None:
    _, jobs = worker_with(1)
    watch(10, jobs[0].worker, every=1)
    for _ in range(2):
        clock.advance(seconds=40)
        assert look() == 0
    assert sql.finish(jobs) == []


def test_a_claim_that_stays_open_after_an_outage_keeps_nobody_from_looking(
    sql: Session, other: Session, watch: Callable[..., int], clock: Clock, worker_with: WorkerWith
) -> None:
    consumer, _ = worker_with(1)
    dead, jobs = worker_with(1)
    watch(10, consumer, dead)
    clock.advance(seconds=40)
    with other.transaction():
        other.claim(worker=consumer)  # a sign of life: it locks the worker's row
        assert watch(LEASE - 5) == 0
        assert watch(15) == 1
        assert sql.state(jobs[0].id) == "pending"


def test_an_outage_is_measured_by_each_workers_own_lease(
    sql: Session, watch: Callable[..., int], clock: Clock, look: Callable[[], int], worker_with: WorkerWith
) -> None:
    short, its = worker_with(1, lease_time="2 seconds")
    long, theirs = worker_with(1, lease_time="10 minutes")
    watch(5, short, long, every=1)
    clock.advance(seconds=4)  # longer than half the lease of the one, nothing to the other
    assert look() == 0
    graced = "select graced_at > started_at from holdfast.worker where id = %s"
    # Both were graced by the very first look; only one by this.
    newest = sql.one("select max(graced_at) from holdfast.worker")
    assert [id_ for (id_,) in sql("select id from holdfast.worker where graced_at = %s", newest)] == [short]
    assert sql.one(graced, short)
    assert watch(3, every=1) == 1
    assert (sql.state(its[0].id), sql.state(theirs[0].id)) == ("pending", "claimed")


def test_a_clock_that_jumps_judges_nobody(
    sql: Session, watch: Callable[..., int], clock: Clock, look: Callable[[], int], worker_with: WorkerWith
) -> None:
    _, jobs = worker_with(1)
    watch(10, jobs[0].worker)
    clock.advance(hours=-2)
    assert look() == 0
    clock.advance(hours=4)
    assert look() == 0
    sql.value("heartbeat", worker=jobs[0].worker)
    assert watch(20, jobs[0].worker) == 0
    assert sql.finish(jobs) == []


@pytest.mark.parametrize("every", [5, 60])
def test_a_worker_that_died_before_the_clock_was_set_back_loses_its_jobs_all_the_same(
    sql: Session, watch: Callable[..., int], clock: Clock, worker_with: WorkerWith, every: int
) -> None:
    dead, jobs = worker_with(1)
    alive, kept = worker_with(1)
    watch(4 * every, dead, alive, every=every)
    clock.advance(hours=-2)
    assert watch(LEASE - 5, alive) == 0
    assert watch(6 * every, alive, every=every) == 1
    assert sql.state(jobs[0].id) == "pending"
    assert sql.finish(kept) == []


def test_looks_from_cron_once_a_minute_recover_too(
    sql: Session, watch: Callable[..., int], worker_with: WorkerWith
) -> None:
    alive, kept = worker_with(1)
    dead, lost = worker_with(1)
    watch(180, alive, dead, every=60)
    assert watch(240, alive, every=60) == 1
    assert sql.state(lost[0].id) == "pending"
    assert sql.state(kept[0].id) == "claimed"


@pytest.mark.parametrize("began", [1, 20, 40, 55])
def test_an_outage_between_looks_from_cron_judges_nobody(
    sql: Session,
    clock: Clock,
    look: Callable[[], int],
    watch: Callable[..., int],
    worker_with: WorkerWith,
    began: int,
) -> None:
    # The database goes away `began` seconds after a look and is back just in time for the next one.
    alive, jobs = worker_with(1)
    watch(240, alive, every=60)
    clock.advance(seconds=began)
    if began > 5:
        sql.value("heartbeat", worker=alive)
    clock.advance(seconds=60 - began)
    assert look() == 0
    sql.value("heartbeat", worker=alive)
    assert watch(180, alive, every=60) == 0
    assert sql.finish(jobs) == []


def test_by_hand_there_is_a_timeout_and_no_grace(sql: Session, clock: Clock, worker_with: WorkerWith) -> None:
    worker, jobs = worker_with(5)
    clock.advance(seconds=10)
    assert sql.value("recover", timeout="11 seconds") == 0
    assert sql.value("recover", timeout="9 seconds") == 5
    assert {sql.state(job.id) for job in jobs} == {"pending"}
    assert status(sql, worker) == "lost"


def test_by_hand_everything_is_taken_back_in_one_call(sql: Session) -> None:
    worker = sql.value("register")
    sql.enqueue_many(6000)
    sql.claim_all(worker=worker)
    assert sql.lose(worker) == 6000
    assert sql.one("select count(*) from holdfast.job where state = 'pending' and attempt = 0") == 6000


def test_a_negative_timeout_is_refused(sql: Session, refused: Refused) -> None:
    with refused("HF008"):
        sql.value("recover", timeout="-1 second")


def test_a_look_beside_another_does_nothing(sql: Session, other: Session, worker_with: WorkerWith) -> None:
    worker, _ = worker_with(2)
    sql("update holdfast.worker set heartbeat_at = heartbeat_at - interval '10 days'")
    with sql.connection.transaction():
        assert sql.value("recover", timeout="9 days") == 2
        assert other.value("recover") == 0
    assert status(sql, worker) == "lost"


def test_recovered_jobs_keep_their_order_and_go_before_fresh_ones(
    sql: Session, worker_with: WorkerWith
) -> None:
    worker, jobs = worker_with(20)
    fresh = sql.enqueue()
    sql.lose(worker)
    order = []
    while taken := sql.claim_all():
        order += [job.id for job in taken]
        sql.finish(taken)
    assert order == [job.id for job in jobs] + [fresh]


def test_a_consumer_that_only_speaks_sql_is_recovered_and_can_renew(
    sql: Session, watch: Callable[..., int]
) -> None:
    sql.enqueue_many(2)
    silent, renewing = sql.claim_one(), sql.claim_one()
    assert watch(60, renewing.worker) == 1
    assert (sql.state(silent.id), sql.state(renewing.id)) == ("pending", "claimed")


def test_claiming_counts_as_a_sign_of_life(
    sql: Session, clock: Clock, look: Callable[[], int], worker_with: WorkerWith
) -> None:
    worker, _ = worker_with(1)
    for _ in range(30):
        clock.advance(seconds=11)
        sql.claim(worker=worker)
        assert look() == 0
    assert status(sql, worker) == "busy"


def test_jobs_of_a_worker_without_a_row_are_swept_by_upkeep(
    sql: Session, clock: Clock, worker_with: WorkerWith
) -> None:
    worker, jobs = worker_with(2, started=1)
    sql("delete from holdfast.worker where id = %s", worker)
    sql.value("upkeep")
    assert sql.live(jobs[0].id).state == "claimed", "its claim may have been made just now"
    clock.advance(seconds=31)
    sql.value("upkeep")
    assert [(sql.state(job.id), sql.job(job.id).attempt) for job in jobs] == [("pending", 0), ("pending", 0)]
    assert sql("select job_id, deaths from holdfast.death") == [(jobs[0].id, 1)]


def test_orphans_are_found_between_all_other_workers_and_these_are_left_alone(
    sql: Session, clock: Clock, worker_with: WorkerWith
) -> None:
    made = sorted(worker_with(1) for _ in range(7))
    orphans = [made[0], made[3], made[6]]
    sql("delete from holdfast.worker where id = any(%s)", [worker for worker, _ in orphans])
    clock.advance(seconds=31)
    sql.value("upkeep")
    states = [sql.live(job.id).state for _, (job,) in made]
    assert states == ["pending", "claimed", "claimed", "pending", "claimed", "claimed", "pending"]


def test_the_lease_time_is_the_workers_own(
    sql: Session, watch: Callable[..., int], worker_with: WorkerWith
) -> None:
    hasty, its = worker_with(1, lease_time=timedelta(seconds=10))
    slow, theirs = worker_with(1, lease_time=timedelta(minutes=5))
    watch(10, hasty, slow)
    watch(20)
    assert (sql.state(its[0].id), sql.state(theirs[0].id)) == ("pending", "claimed")
    watch(300)
    assert sql.state(theirs[0].id) == "pending"


def test_very_many_jobs_of_a_lost_worker_are_taken_back_in_one_look(
    sql: Session, watch: Callable[..., int], worker_with: WorkerWith
) -> None:
    worker_with(6000)
    assert watch(LEASE + 10) == 6000


@pytest.fixture
def claim_under_way(connect: Connect) -> ClaimUnderWay:
    """Claim a job in a transaction that stays open."""

    def claim(worker: UUID) -> tuple[Session, Any]:
        session = connect()
        session("set holdfast.notify = off")  # or it could not be prepared
        session("begin")
        (job,) = session.claim(1, worker=worker)
        return session, job

    return claim


def end(sql: Session, how: str, worker: UUID) -> None:
    """Let a worker end."""
    if how == "left":
        sql.value("leave", worker=worker)
    else:
        sql("update holdfast.worker set heartbeat_at = heartbeat_at - interval '1 day' where id = %s", worker)
        assert sql.value("recover", timeout="1 hour") == 0


ENDS = pytest.mark.parametrize("how", ["left", "lost"])


@ENDS
def test_a_claim_that_was_under_way_when_its_worker_ended_is_taken_back_whenever_it_commits(
    sql: Session, clock: Clock, look: Callable[[], int], claim_under_way: ClaimUnderWay, how: str
) -> None:
    sql.enqueue()
    worker = sql.value("register")
    claiming, job = claim_under_way(worker)
    end(sql, how, worker)
    for _ in range(5):
        clock.advance(hours=1)
        assert look() == 0
    claiming("commit")
    assert sql.live(job.id).state == "claimed"
    assert look() == 1
    assert (sql.state(job.id), sql.job(job.id).attempt) == ("pending", 0)


@ENDS
def test_such_a_claim_does_not_wait_for_others_that_stay_open(
    sql: Session, other: Session, look: Callable[[], int], claim_under_way: ClaimUnderWay, how: str
) -> None:
    sql.enqueue()
    worker = sql.value("register")
    other("begin")
    other.enqueue("other")
    claiming, job = claim_under_way(worker)
    end(sql, how, worker)
    assert [look(), look(), look()] == [0, 0, 0]
    claiming("commit")
    assert look() == 1
    assert sql.state(job.id) == "pending"
    other("rollback")


@ENDS
def test_what_was_claimed_just_before_the_first_look_is_found_beside_a_transaction_that_stays_open(
    sql: Session, other: Session, look: Callable[[], int], claim_under_way: ClaimUnderWay, how: str
) -> None:
    sql.enqueue()
    worker = sql.value("register")
    claiming, job = claim_under_way(worker)
    end(sql, how, worker)
    claiming("commit")
    other("begin")
    other.enqueue("other")
    assert look() + look() == 1
    assert sql.state(job.id) == "pending"
    other("rollback")


@ENDS
def test_a_prepared_claim_is_taken_back_too_although_a_restart_gives_it_another_name(
    sql: Session, look: Callable[[], int], claim_under_way: ClaimUnderWay, how: str
) -> None:
    sql.enqueue()
    worker = sql.value("register")
    claiming, job = claim_under_way(worker)
    claiming("prepare transaction 'claims'")
    end(sql, how, worker)
    assert [look(), look(), look()] == [0, 0, 0]
    # As a restart would: those who were awaited are known by no name.
    sql("update holdfast.worker set awaits = '{prepared -1/1}'")
    assert [look(), look(), look()] == [0, 0, 0]
    sql("commit prepared 'claims'")
    assert look() == 1
    assert sql.state(job.id) == "pending"


def test_a_job_of_a_lost_worker_that_somebody_has_locked_is_not_forgotten(
    sql: Session, other: Session, clock: Clock, look: Callable[[], int], worker_with: WorkerWith
) -> None:
    worker, (job,) = worker_with(1)
    with other.connection.transaction():
        other("select from holdfast.job where id = %s for update", job.id)
        assert sql.lose(worker) == 0
        for _ in range(5):
            clock.advance(hours=1)
            assert look() == 0
    assert look() == 1
    assert sql.state(job.id) == "pending"


def test_very_many_locked_jobs_do_not_stand_in_the_way_of_others(
    sql: Session, other: Session, look: Callable[[], int], worker_with: WorkerWith
) -> None:
    worker, _ = worker_with(5200)
    with other.connection.transaction():
        other("select from holdfast.job order by ctid limit 5100 for update")
        assert sql.lose(worker) == 100
    assert look() + look() == 5100  # a look ends after a second, and the next one goes on


def awaited(sql: Session, worker: UUID) -> list[str] | None:
    return sql.one("select awaits from holdfast.worker where id = %s", worker)


@ENDS
def test_those_who_come_after_the_end_are_not_awaited(
    sql: Session, other: Session, look: Callable[[], int], claim_under_way: ClaimUnderWay, how: str
) -> None:
    sql.enqueue()
    worker = sql.value("register")
    claiming, _ = claim_under_way(worker)
    end(sql, how, worker)
    look()
    other("begin")
    other.enqueue("other")
    claiming("commit")
    assert look() == 1
    assert awaited(sql, worker) == []
    other("rollback")


@ENDS
def test_a_long_transaction_is_awaited_without_looking_again_and_again(
    sql: Session, other: Session, look: Callable[[], int], how: str
) -> None:
    worker = sql.value("register")
    other("begin")
    other.enqueue("other")
    end(sql, how, worker)
    look()
    look()
    waited_for = awaited(sql, worker)
    assert waited_for
    (name,) = waited_for
    assert [look(), look()] == [0, 0]
    assert awaited(sql, worker) == [name]
    other("rollback")
    look()
    assert awaited(sql, worker) == []


@ENDS
def test_an_end_that_is_not_yet_committed_is_not_the_last_word(
    sql: Session, other: Session, look: Callable[[], int], how: str
) -> None:
    sql.enqueue()
    worker = sql.value("register")
    with sql.connection.transaction():
        if how == "left":
            sql.value("leave", worker=worker)
        else:
            sql.value("recover", timeout="0")
        sql.value("recover", timeout="1 hour")
        (job,) = other.claim(1, worker=worker)  # to others it is still there
    assert look() == 1
    assert sql.state(job.id) == "pending"


def test_a_claim_has_its_lock_before_it_asks_for_its_worker(
    sql: Session, other: Session, connect: Connect, background: Background, clock: Clock, refused: Refused
) -> None:
    """What the proof in look_after_gone() rests upon."""
    sql.enqueue()
    worker = sql.value("register")
    clock.advance(seconds=20)  # so that the claim renews the heartbeat, and waits for whoever has the row
    claiming = connect()
    with other.connection.transaction():
        other("update holdfast.worker set lost_at = holdfast.clock() where id = %s", worker)
        claimed = background(lambda: claiming.claim(1, worker=worker))
        sql.until(lambda: sql.is_waiting(claiming))
        writers = sql.one("select holdfast.writers()")
        assert [name for name in writers if name.endswith(f" {claiming.pid}")]
    with refused("HF006"):
        claimed()


def test_a_worker_that_was_gone_for_a_day_is_looked_after_once_more_before_it_is_forgotten(
    sql: Session, clock: Clock, worker_with: WorkerWith
) -> None:
    worker, (job,) = worker_with(1)
    sql("update holdfast.worker set left_at = holdfast.clock(), awaits = '{}' where id = %s", worker)
    clock.advance(hours=23)
    sql.value("upkeep")
    assert sql.live(job.id).state == "claimed"
    clock.advance(hours=2)
    sql.value("upkeep")
    assert sql.state(job.id) == "pending"
    assert sql("select from holdfast.worker where id = %s", worker) == []

"""Reports with `skip_locked` wait for no other transaction: locked jobs are left alone and named."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Connect, Refused, Session

OUTCOMES = ["completed", "cancelled", "failed", "snoozed", "released", "interrupted"]


def ids_of(rows: list[Any]) -> set[UUID]:
    return {row[0] for row in rows}


@pytest.fixture
def impatient(sql: Session) -> Iterator[Session]:
    """Whoever waits for a lock fails at once."""
    sql("set lock_timeout = '1ms'")
    yield sql
    sql("reset lock_timeout")


@pytest.fixture
def held(sql: Session, other: Session) -> Iterator[list[Any]]:
    """Six jobs that are held. The first two are being cancelled by another transaction."""
    sql.enqueue_many(6)
    jobs = sorted(sql.claim(), key=lambda job: job.id)
    with other.transaction():
        for job in jobs[:2]:
            assert other.value("cancel", id=job.id) == "requested"
        yield jobs


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_locked_jobs_are_returned_and_the_others_finished(
    impatient: Session, held: list[Any], outcome: str
) -> None:
    locked, free = held[:2], held[2:]
    refused = impatient.finish(held, outcome, skip_locked=True)
    assert {(row.id, row.sqlstate, row.state) for row in refused} == {
        (job.id, "55P03", "claimed") for job in locked
    }
    assert {impatient.state(job.id) for job in locked} == {"claimed"}
    assert "claimed" not in {impatient.state(job.id) for job in free}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_same_report_counts_once_the_lock_is_gone(sql: Session, other: Session, outcome: str) -> None:
    sql.enqueue()
    job = sql.claim_one()
    with other.transaction():
        other("select from holdfast.job where id = %s for update", job.id)
        (refusal,) = sql.finish([job], outcome, skip_locked=True)
        assert refusal.sqlstate == "55P03"
    assert sql.finish([job], outcome, skip_locked=True) == []
    assert sql.state(job.id) != "claimed"


def test_every_outcome_in_one_call_skips_what_is_locked(impatient: Session, held: list[Any]) -> None:
    refused = impatient.rows(
        "finish",
        ids=[job.id for job in reversed(held)],
        leases=[job.lease for job in reversed(held)],
        outcomes=OUTCOMES,
        skip_locked=True,
    )
    assert ids_of(refused) == {job.id for job in held[:2]}
    states = [impatient.state(job.id) for job in held]
    assert states[:2] == ["claimed", "claimed"]
    assert "claimed" not in states[2:]


def test_only_a_caller_that_asks_for_it_is_told_that_a_job_is_locked(
    sql: Session, other: Session, background: Background
) -> None:
    """A worker of 0.1.0 takes every row for a refusal, and would drop the report."""
    sql.enqueue()
    job = sql.claim_one()
    with sql.transaction():
        sql.value("cancel", id=job.id)
        late = background(lambda: other.finish([job], "completed"))
        sql.until(lambda: sql.is_waiting(other))
    assert late() == []
    assert sql.state(job.id) == "completed"


def test_a_report_that_lost_is_refused_beside_one_that_is_locked(
    impatient: Session, held: list[Any], new_lease: Callable[[], UUID]
) -> None:
    held[5] = held[5]._replace(lease=new_lease())
    refused = impatient.finish(held, "completed", skip_locked=True)
    assert [row.sqlstate for row in sorted(refused, key=lambda row: row.id)] == ["55P03", "55P03", "HF001"]


def test_a_job_that_another_holds_by_now_is_not_locked_by_a_late_report(
    sql: Session, other: Session, new_lease: Callable[[], UUID]
) -> None:
    sql.enqueue()
    job = sql.claim_one()
    late = job._replace(lease=new_lease())
    with other.transaction():
        assert [row.sqlstate for row in other.finish([late], "completed", skip_locked=True)] == ["HF001"]
        assert sql.finish([job], "completed", skip_locked=True) == []


def test_a_job_may_be_reported_only_once_in_a_call(sql: Session, refused: Refused) -> None:
    sql.enqueue()
    job = sql.claim_one()
    with refused("HF008"):
        sql.finish([job, job], "completed", skip_locked=True)


def test_starts_of_locked_jobs_are_not_written(
    impatient: Session, held: list[Any], new_lease: Callable[[], UUID]
) -> None:
    leases = [job.lease for job in held[:5]] + [new_lease()]
    rows = impatient.rows("start", ids=[job.id for job in held], leases=leases, skip_locked=True)
    assert sorted((row.start, row.locked) for row in rows) == [
        (held[0].id, True),
        (held[1].id, True),
        (held[5].id, False),
    ]
    written = impatient("select job_id from holdfast.running order by 1")
    assert written == [(job.id,) for job in held[2:5]]


def test_progress_of_locked_jobs_is_not_written(sql: Session, other: Session, impatient: Session) -> None:
    sql.enqueue_many(3)
    jobs = sql.claim()
    ids, leases = [job.id for job in jobs], [job.lease for job in jobs]
    sql.rows("start", ids=ids, leases=leases)
    words = {"stages": [None] * 3, "messages": [None] * 3, "states": ['{"at": 1}'] * 3}
    with other.transaction():
        other("select from holdfast.job where id = %s for update", ids[0])
        rows = impatient.rows(
            "progress_many", ids=ids, leases=leases, percents=[10] * 3, **words, skip_locked=True
        )
        assert [(row.progress_many, row.locked) for row in rows] == [(ids[0], True)]
    assert [sql.job(job_id).progress for job_id in ids] == [None, 10, 10]
    assert sql.one("select count(*) from holdfast.checkpoint") == 2


def test_events_of_locked_jobs_are_not_written_and_count_later(
    sql: Session, other: Session, impatient: Session
) -> None:
    sql.enqueue_many(2)
    jobs = sql.claim()
    said = {
        "ids": [job.id for job in jobs],
        "leases": [job.lease for job in jobs],
        "numbers": [1, 1],
        "names": ["a", "b"],
        "datas": [None, None],
    }
    with other.transaction():
        other.value("cancel", id=jobs[0].id)
        rows = impatient.rows("publish_many", **said, skip_locked=True)
        assert [(row.publish_many, row.locked) for row in rows] == [(jobs[0].id, True)]
    assert impatient.rows("publish_many", **said, skip_locked=True) == []
    assert impatient("select name from holdfast.event where name not like 'job.%%' order by 1") == [
        ("a",),
        ("b",),
    ]


@pytest.mark.parametrize("word", ["progress", "publish", "keep_step", "keep_checkpoint"])
def test_a_transaction_that_says_something_of_a_job_holds_up_no_report(
    impatient: Session, other: Session, word: str
) -> None:
    """Its rows beside the job's own are locked too, and none of them is waited for."""
    impatient.enqueue_many(2)
    first, second = impatient.claim()
    reports: dict[str, dict[str, Any]] = {
        "progress": {"percent": 10},
        "publish": {"name": "a"},
        "keep_step": {"name": "a"},
        "keep_checkpoint": {"state": "{}"},
    }
    said = reports[word]
    both = {"ids": [first.id, second.id], "leases": [first.lease, second.lease]}
    with other.transaction():
        other.rows(word, id=first.id, lease=first.lease, **said)
        assert ids_of(impatient.rows("start", **both, skip_locked=True)) == {first.id}
        words = {"percents": [5, 5], "stages": [None] * 2, "messages": [None] * 2}
        assert ids_of(impatient.rows("progress_many", **both, **words, skip_locked=True)) == {first.id}
        events = {"numbers": [1, 1], "names": ["b", "b"], "datas": [None, None]}
        assert ids_of(impatient.rows("publish_many", **both, **events, skip_locked=True)) == {first.id}
        assert ids_of(impatient.finish([first, second], "failed", skip_locked=True)) == {first.id}


def test_a_worker_disowns_what_nobody_has_locked(impatient: Session, other: Session, clock: Clock) -> None:
    worker = impatient.value("register")
    impatient.enqueue_many(3)
    jobs = impatient.claim(worker=worker)
    clock.advance(seconds=1)
    unknown = {
        "worker": worker,
        "held": [],
        "in_flight": [],
        "before": impatient.one("select holdfast.clock()"),
    }
    with other.transaction():
        other("select from holdfast.job where id = %s for update", jobs[0].id)
        assert impatient.value("disown", **unknown) == 2
        assert impatient.state(jobs[0].id) == "claimed"
    assert impatient.value("disown", **unknown) == 1


@pytest.mark.parametrize("outcome", ["failed", "snoozed", "released", "interrupted"])
def test_a_report_that_is_repeated_after_another_claim_took_the_job_is_accepted(
    sql: Session, outcome: str
) -> None:
    """Its reply was lost. Nobody has locked the job, so the worker must not try again until the job ends."""
    sql.enqueue()
    job = sql.claim_one()
    delays = {"delays": ["0 seconds"]} if outcome in {"failed", "snoozed"} else {}
    assert sql.finish([job], outcome, **delays, skip_locked=True) == []
    sql.value("promote")
    again = sql.claim_one()
    assert again.id == job.id
    assert sql.finish([job], outcome, **delays, skip_locked=True) == []
    assert sql.finish([again], skip_locked=True) == []


@pytest.mark.parametrize("skip_locked", [False, True])
@pytest.mark.parametrize("outcome", ["completed", "cancelled"])
def test_a_lost_lease_takes_no_event_from_the_other_jobs_of_its_batch(
    sql: Session, new_lease: Callable[[], UUID], outcome: str, skip_locked: bool
) -> None:
    sql.enqueue_many(4)
    assert sql.finish(sql.claim(), "failed", delays=["0 seconds"] * 4) == []
    sql.value("promote")
    *kept, lost = sorted(sql.claim(), key=lambda job: job.id)
    (refusal,) = sql.finish([*kept, lost._replace(lease=new_lease())], outcome, skip_locked=skip_locked)
    assert refusal.id == lost.id
    last = "select name from holdfast.event where job_id = %s order by id desc limit 1"
    assert {sql.one(last, job.id) for job in kept} == {f"job.{outcome}"}


@pytest.mark.parametrize("skip_locked", [False, True])
def test_an_event_that_comes_between_the_look_and_the_write_is_followed_by_the_end(
    sql: Session, other: Session, connect: Connect, background: Background, skip_locked: bool
) -> None:
    sql.enqueue()
    job = sql.claim_one()
    gate = connect()
    with gate.transaction():
        gate("lock table holdfast.finished in share mode")  # the report takes its lock after its look
        report = background(lambda: other.finish([job], skip_locked=skip_locked))
        sql.until(lambda: sql.is_waiting(other))
        sql.value("publish", id=job.id, lease=job.lease, name="mine", data="null")
    assert report() == []
    names = [event.name for event in sql.rows("read_events", job_id=job.id)]
    assert names == ["mine", "job.completed"]
    assert sql("select from holdfast.running") == []

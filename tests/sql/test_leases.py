"""A report counts only under the lease of the current claim; otherwise it changes nothing and says why."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.sql.sessions import Refused, Session

REPORTS: dict[str, dict[str, Any]] = {
    "complete": {},
    "fail": {"error": "no"},
    "snooze": {"delay": "1 minute"},
    "release": {},
    "progress": {"percent": 10},
}


def everything(sql: Session) -> list[Any]:
    """All that a refused report must leave as it is."""
    tables = ("job", "running", "finished", "dead_letter", "attempt_error")
    return [sql(f"select t.* from holdfast.{table} t order by 1") for table in tables]


@pytest.mark.parametrize("report", REPORTS)
def test_there_are_three_ways_to_be_refused(sql: Session, report: str, refused: Refused) -> None:
    waiting, taken = sql.enqueue(), sql.enqueue(priority=150)
    current = sql.claim_one()
    assert current.id == taken
    before, stranger = everything(sql), uuid4()

    def say(job_id: UUID) -> None:
        sql.value(report, id=job_id, lease=stranger, **REPORTS[report])

    with refused("HF002") as error:
        say(missing := uuid4())
    assert error.detail["id"] == str(missing)
    with refused("HF003") as error:
        say(waiting)
    assert error.detail == {"id": str(waiting), "shown": str(stranger), "current": None, "state": "pending"}
    with refused("HF001") as error:
        say(taken)
    assert error.detail == {
        "id": str(taken),
        "shown": str(stranger),
        "current": str(current.lease),
        "state": "claimed",
    }
    assert str(stranger) in error.message
    assert str(current.lease) in error.message
    assert "Stop working on it" in error.hint
    assert everything(sql) == before


@pytest.mark.parametrize("report", sorted(REPORTS))
def test_a_report_on_a_finished_job_is_told_that_it_is_finished(
    sql: Session, refused: Refused, report: str
) -> None:
    job = sql.enqueue()
    sql.value("cancel", id=job)
    with refused("HF003") as error:
        sql.value(report, id=job, lease=uuid4(), **REPORTS[report])
    assert error.message == f"job {job} is finished: it is cancelled"
    assert "Report nothing more" in error.hint
    assert "Claim" not in error.hint


def test_a_lease_of_null_is_no_lease(sql: Session, refused: Refused) -> None:
    sql.enqueue()
    job = sql.claim_one()
    with refused("HF001"):
        sql.value("complete", id=job.id, lease=None)


def test_refused_reports_do_not_affect_the_others_of_their_batch(sql: Session) -> None:
    sql.enqueue_many(4)
    jobs = sql.claim(3)
    waiting = sql.one("select id from holdfast.job where state = 'pending'")
    missing, stranger = uuid4(), uuid4()
    for outcomes, ends in [(["completed"] * 5, "completed"), (["failed"] * 5, "scheduled")]:
        good = jobs.pop()
        ids = [jobs[0].id, good.id, waiting, missing, good.id]
        refusals = sql.rows(
            "finish",
            ids=ids[:4],
            leases=[stranger, good.lease, stranger, stranger],
            outcomes=outcomes[:4],
        )
        found = {refusal.id: (refusal.sqlstate, refusal.state, refusal.lease) for refusal in refusals}
        assert found == {
            jobs[0].id: ("HF001", "claimed", jobs[0].lease),
            waiting: ("HF003", "pending", None),
            missing: ("HF002", None, None),
        }
        assert all(refusal.message for refusal in refusals)
        assert sql.state(good.id) == ends


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("completed", "completed"),
        ("cancelled", "cancelled"),
        ("failed", "scheduled"),
        ("failed", "dead"),
        ("snoozed", "scheduled"),
        ("released", "pending"),
        ("interrupted", "pending"),
        ("interrupted", "dead"),
    ],
)
def test_a_report_that_is_only_repeated_is_accepted_and_another_is_not(
    sql: Session, outcome: str, state: str
) -> None:
    job_id = sql.enqueue(max_attempts=1 if state == "dead" else 3)
    job = sql.claim_one()
    assert sql.finish([job], outcome) == []
    before = everything(sql)
    assert sql.state(job_id) == state
    assert sql.finish([job], outcome) == []
    for different in {"completed", "failed", "snoozed", "released", "interrupted", "cancelled"} - {outcome}:
        # Where a job has ended, how exactly it failed makes no difference.
        as_good = {
            "dead": {"failed", "interrupted"},
            "cancelled": {"failed", "interrupted", "released", "snoozed"},
        }
        refusals = [refusal.sqlstate for refusal in sql.finish([job], different)]
        assert refusals == ([] if different in as_good.get(state, ()) else ["HF003"])
    assert everything(sql) == before


@pytest.mark.parametrize("outcome", ["failed", "snoozed", "released", "interrupted"])
def test_a_repetition_is_known_after_the_job_went_on(sql: Session, outcome: str) -> None:
    # The reply was lost, and the worker asks again after the retry has begun.
    job_id = sql.enqueue()
    job = sql.claim_one()
    sql.finish([job], outcome, delays=["0"])
    sql.value("promote")
    assert sql.state(job_id) == "pending"
    assert sql.finish([job], outcome) == []
    sql.claim_one()
    before = everything(sql)
    assert sql.finish([job], outcome) == []
    assert [refusal.sqlstate for refusal in sql.finish([job], "completed")] == ["HF001"]
    assert everything(sql) == before


def test_single_reports_may_be_repeated_too(sql: Session) -> None:
    for report, arguments in REPORTS.items():
        sql.enqueue(report)
        job = sql.claim_one(tasks=[report])
        for _ in range(2):
            sql.value(report, id=job.id, lease=job.lease, **arguments)


@pytest.mark.parametrize("later", ["pending", "claimed", "scheduled", "completed", "dead", "cancelled"])
def test_a_zombie_is_told_that_its_lease_is_lost_whatever_became_of_the_job(
    sql: Session, later: str, refused: Refused
) -> None:
    worker = sql.value("register")
    job_id = sql.enqueue(max_attempts=3)
    zombie = sql.claim_one(worker=worker)
    assert sql.lose(worker) == 1
    if later == "cancelled":
        sql.value("cancel", id=job_id)
    elif later != "pending":
        again = sql.claim_one()
        assert again.id == job_id
        if later != "claimed":
            outcome = "completed" if later == "completed" else "failed"
            sql.finish([again], outcome, retries=[later == "scheduled"])
    assert sql.state(job_id) in (later, "running")
    before = everything(sql)
    for report, arguments in REPORTS.items():
        with refused("HF001") as error:
            sql.value(report, id=zombie.id, lease=zombie.lease, **arguments)
        assert error.detail["shown"] == str(zombie.lease)
    for outcome in ("completed", "failed", "snoozed", "released", "interrupted", "cancelled"):
        assert [refusal.sqlstate for refusal in sql.finish([zombie], outcome)] == ["HF001"]
    assert sql.rows("start", ids=[zombie.id], leases=[zombie.lease])[0][0] == zombie.id
    assert everything(sql) == before


@pytest.mark.parametrize("end", ["dead", "cancelled"])
def test_a_zombie_whose_job_ended_in_recovery_is_told_so(sql: Session, end: str, refused: Refused) -> None:
    worker = sql.value("register")
    job_id = sql.enqueue(max_attempts=1)
    zombie = sql.claim_one(worker=worker)
    sql.rows("start", ids=[zombie.id], leases=[zombie.lease], once=[True])
    if end == "cancelled":
        sql.value("cancel", id=job_id)
    sql.lose(worker)
    assert sql.state(job_id) == end
    with refused("HF001") as error:
        sql.value("complete", id=zombie.id, lease=zombie.lease)
    assert (error.detail["state"], error.detail["current"]) == (end, None)


def test_the_message_names_no_lease_when_nobody_holds_the_job(sql: Session, refused: Refused) -> None:
    worker = sql.value("register")
    sql.enqueue()
    zombie = sql.claim_one(worker=worker)
    sql.lose(worker)
    with refused("HF001") as error:
        sql.value("complete", id=zombie.id, lease=zombie.lease)
    assert error.message == f"the lease {zombie.lease} on job {zombie.id} is lost: the job is pending"


def test_an_old_lease_is_lost_after_the_next_claim_has_finished(sql: Session, refused: Refused) -> None:
    sql.enqueue()
    first = sql.claim_one()
    sql.value("release", id=first.id, lease=first.lease)
    second = sql.claim_one()
    sql.value("complete", id=second.id, lease=second.lease)
    with refused("HF001"):
        sql.value("complete", id=first.id, lease=first.lease)

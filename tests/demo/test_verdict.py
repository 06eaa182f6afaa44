"""The demo is strict: a job that did not go as planned is noticed."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from holdfast import JobSnapshot, JobState, NewJob
from holdfast.demo.picture import Picture
from holdfast.demo.plan import Planned
from holdfast.demo.throughput import Throughput
from holdfast.demo.verdict import Verdict, judge

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
MAIL = NewJob(task="mail")


def job(**fields: Any) -> JobSnapshot:
    usual: dict[str, Any] = {
        "id": uuid4(),
        "queue": "demo.mail",
        "task": "mail",
        "payload": {},
        "priority": 100,
        "state": JobState.COMPLETED,
        "attempt": 1,
        "max_attempts": 3,
        "created_at": NOON,
        "run_at": NOON,
        "claimed_at": NOON,
    }
    return JobSnapshot(**usual | fields)


def verdicts(kind: Planned, *jobs: JobSnapshot) -> list[Verdict]:
    picture = Picture(1.0, {job.id: kind for job in jobs}, {job.id: job for job in jobs})
    return list(judge([kind], picture, killed=None))


def verdict(kind: Planned, *jobs: JobSnapshot) -> Verdict:
    return verdicts(kind, *jobs)[0]


def test_a_job_that_ended_so_is_as_planned() -> None:
    assert verdict(Planned("mail", "is sent", [MAIL]), job()).as_planned


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"state": JobState.DEAD}, "1 dead"),
        ({"state": JobState.RUNNING}, "1 running"),
        ({"attempt": 2}, "1 completed, 2 attempts"),
        ({"claimed_at": NOON - timedelta(seconds=1)}, "1 completed"),
    ],
    ids=["another end", "no end", "too few attempts", "too early"],
)
def test_a_job_that_went_otherwise_is_not(fields: dict[str, Any], told: str) -> None:
    found = verdict(
        Planned("mail", "at the third attempt", [MAIL], attempts=3), job(**{"attempt": 3} | fields)
    )
    assert not found.as_planned
    assert found.happened.startswith(told)


def test_a_job_that_is_missing_is_not_as_planned() -> None:
    found = verdict(Planned("mails", "are sent", [MAIL, MAIL]), job())
    assert (found.happened, found.as_planned) == ("1 completed, 1 missing", False)


def test_a_job_that_was_rolled_back_must_not_exist() -> None:
    kind = Planned("mail", "is rolled back", [MAIL], end=None)
    assert verdict(kind).as_planned
    assert not verdict(kind, job()).as_planned


def test_a_worker_that_should_have_been_killed_must_have_been() -> None:
    kind = Planned("video", "loses its worker", [MAIL], loses_a_worker=True)
    assert not verdicts(kind, job())[1].as_planned


@pytest.mark.parametrize(("urgent_waits", "in_order"), [(1, True), (3, False)])
def test_urgent_jobs_that_waited_longer_are_noticed(urgent_waits: int, in_order: bool) -> None:
    urgent = job(priority=150, claimed_at=NOON + timedelta(seconds=urgent_waits))
    usual = job(claimed_at=NOON + timedelta(seconds=2))
    assert verdicts(Planned("mails", "are sent", [MAIL, MAIL]), urgent, usual)[1].as_planned is in_order


def test_throughput_is_that_of_the_last_two_seconds() -> None:
    throughput = Throughput()
    for tenths in range(51):
        throughput.note(tenths / 10, ended=min(tenths, 30))
    assert throughput.per_second == pytest.approx(0.0)
    for tenths in range(51, 71):
        throughput.note(tenths / 10, ended=30 + (tenths - 50) * 4)
    assert throughput.per_second == pytest.approx(40.0)
    assert len(throughput.line) == 14

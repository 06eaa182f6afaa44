"""What a running job tells about itself, under its lease and outside the job's own row."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Refused, Session


@pytest.fixture
def job(sql: Session) -> Any:
    sql.enqueue()
    return sql.claim_one()


@pytest.fixture
def say(sql: Session, job: Any) -> Callable[..., Any]:
    return lambda **words: sql.value("progress", id=job.id, lease=job.lease, **words)


def test_progress_makes_a_claimed_job_running_and_keeps_what_is_not_said(
    sql: Session, job: Any, say: Callable[..., Any]
) -> None:
    assert sql.state(job.id) == "claimed"
    say(percent=10, stage="render", message="page 1")
    say(percent=20)
    say(message="page 2")
    row = sql.job(job.id)
    assert (row.state, row.progress, row.stage, row.message) == ("running", 20, "render", "page 2")
    assert row.claimed_at <= row.started_at <= row.changed_at


def test_progress_never_writes_to_the_jobs_own_row(sql: Session, job: Any, say: Callable[..., Any]) -> None:
    before = sql("select xmin, ctid, t.* from holdfast.job t")
    say(percent=10)
    assert sql("select xmin, ctid, t.* from holdfast.job t") == before


def test_progress_has_bounds(sql: Session, say: Callable[..., Any], refused: Refused) -> None:
    for words in ({"percent": -1}, {"percent": 101}, {"stage": "s" * 101}):
        with refused("HF008") as error:
            say(**words)
        assert error.detail["field"] in words
    for percent in (0, 100):
        say(percent=percent, stage="s" * 100, message="m" * 5000)
    assert len(sql.one("select message from holdfast.running")) == 1000


def test_starts_are_written_for_many_at_once_and_those_no_longer_held_are_named(
    sql: Session, new_lease: Callable[[], UUID], clock: Clock
) -> None:
    sql.enqueue_many(3)
    jobs = sql.claim()
    leases = [jobs[0].lease, new_lease(), jobs[2].lease]
    clock.advance(seconds=30)
    gone = sql.rows("start", ids=[job.id for job in jobs], leases=leases, seconds=[1.5, 2.0, 1e300])
    assert [row[0] for row in gone] == [jobs[1].id]
    assert [sql.state(job.id) for job in jobs] == ["running", "claimed", "running"]
    started = sql.job(jobs[0].id).started_at
    sql.rows("start", ids=[jobs[0].id], leases=[jobs[0].lease])
    assert sql.job(jobs[0].id).started_at == started, "a start is written once"


def test_progress_of_many_is_one_call(sql: Session, new_lease: Callable[[], UUID]) -> None:
    sql.enqueue_many(3)
    jobs = sql.claim()
    gone = sql.rows(
        "progress_many",
        ids=[job.id for job in jobs],
        leases=[jobs[0].lease, jobs[1].lease, new_lease()],
        percents=[10, None, 30],
        stages=["a", "b" * 200, "c"],
        messages=[None, "m", None],
    )
    assert [row[0] for row in gone] == [jobs[2].id]
    rows = [sql.job(job.id) for job in jobs]
    assert [row.progress for row in rows] == [10, None, None]
    assert [row.stage for row in rows] == ["a", "b" * 100, None]


def test_a_new_claim_begins_with_no_progress(sql: Session, job: Any, say: Callable[..., Any]) -> None:
    say(percent=50, stage="half")
    sql.finish([job], "released")
    again = sql.claim_one()
    assert (sql.job(job.id).progress, sql.state(job.id)) == (None, "claimed")
    sql.value("progress", id=again.id, lease=again.lease, percent=1)
    assert (sql.job(job.id).progress, sql.job(job.id).stage) == (1, None)


def test_the_table_itself_holds_progress_within_bounds(
    sql: Session, job: Any, say: Callable[..., Any]
) -> None:
    say(percent=1)
    with pytest.raises(psycopg.errors.CheckViolation):
        sql("update holdfast.running set progress = 101")

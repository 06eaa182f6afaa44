"""Steps that are done once and for all, and checkpoints: under the lease, and longer than the attempt."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Refused, Session

Memory = Callable[[UUID], tuple[Any, dict[str, Any]] | None]


@pytest.fixture
def job(sql: Session) -> Any:
    sql.enqueue()
    return sql.claim_one()


@pytest.fixture
def keep(sql: Session) -> Callable[..., Any]:
    def keep(job: Any, name: str, result: str = "null", **more: Any) -> Any:
        return sql.value("keep_step", id=job.id, lease=job.lease, name=name, result=result, **more)

    return keep


@pytest.fixture
def memory(sql: Session) -> Memory:
    """What the next attempt of a job begins with."""

    def memory(job_id: UUID) -> tuple[Any, dict[str, Any]] | None:
        rows = sql.rows("memory", id=job_id)
        return (rows[0].state, dict(zip(rows[0].names, rows[0].results, strict=True))) if rows else None

    return memory


def fail(sql: Session, job: Any) -> None:
    sql.finish([job], "failed", errors=["no"], delays=["0 s"])
    sql.value("promote")


def test_a_step_is_kept_with_its_result_and_found_by_the_next_attempt(
    sql: Session, job: Any, keep: Callable[..., Any], memory: Memory
) -> None:
    assert keep(job, "fetch", '{"rows": 3}', duration=1.5) == {"rows": 3}
    assert keep(job, "render") is None
    fail(sql, job)
    again = sql.claim_one()
    assert (again.id, again.attempt) == (job.id, 2)
    assert memory(job.id) == (None, {"fetch": '{"rows": 3}', "render": "null"})
    first, second = sql.rows("job_steps", id=job.id)
    assert (first.name, first.result, first.attempt, first.worker) == ("fetch", {"rows": 3}, 1, job.worker)
    assert first.duration.total_seconds() == 1.5
    assert second.name == "render"


def test_the_first_to_finish_a_step_has_done_it(job: Any, keep: Callable[..., Any]) -> None:
    keep(job, "pay", '"first"')
    assert keep(job, "pay", '"second"') == "first"


def test_a_step_under_a_lost_lease_is_refused(
    sql: Session, job: Any, keep: Callable[..., Any], refused: Refused
) -> None:
    sql.lose(job.worker)
    with refused("HF001"):
        keep(job, "late")
    assert sql.rows("job_steps", id=job.id) == []


def test_a_step_of_a_job_that_is_over_is_refused(
    sql: Session, job: Any, keep: Callable[..., Any], refused: Refused
) -> None:
    sql.finish([job])
    with refused("HF003"):
        keep(job, "late")


def test_a_step_has_bounds(sql: Session, job: Any, keep: Callable[..., Any], refused: Refused) -> None:
    for name in ("", "s" * 101, None):
        with refused("HF008") as error:
            keep(job, name)
        assert error.detail["field"] == "name"
    with refused("HF008") as error:
        keep(job, "large", '"' + "x" * 524288 + '"')
    assert error.detail["field"] == "result"
    keep(job, "just", '"' + "x" * 524286 + '"')
    sql(
        "insert into holdfast.step (job_id, job_created_at, name, position, attempt, finished_at) "
        "select id, created_at, 'n' || n, n, 1, holdfast.clock() "
        "from holdfast.job, generate_series(2, 1000) n"
    )
    with refused("HF008") as error:
        keep(job, "one too many")
    assert "1000 steps" in error.message
    assert keep(job, "n500") is None, "one that is kept is still found"


def test_a_job_that_kept_a_step_has_started(sql: Session, job: Any, keep: Callable[..., Any]) -> None:
    # Else a worker could die within half a second over and over, and it would not be counted.
    keep(job, "first")
    assert sql.state(job.id) == "running"
    sql.lose(job.worker)
    assert sql("select job_id, deaths from holdfast.death") == [(job.id, 1)]


def test_the_current_step_is_a_field_of_the_job(sql: Session, job: Any, keep: Callable[..., Any]) -> None:
    sql.value("progress", id=job.id, lease=job.lease, percent=10, step="render")
    assert sql.job(job.id).step == "render"
    keep(job, "render")
    assert sql.job(job.id).step is None
    sql.rows(
        "progress_many",
        ids=[job.id],
        leases=[job.lease],
        percents=[None],
        stages=[None],
        messages=[None],
        steps=["pack"],
    )
    assert (sql.job(job.id).step, sql.job(job.id).progress) == ("pack", 10)
    sql.rows(
        "progress_many",
        ids=[job.id],
        leases=[job.lease],
        percents=[None],
        stages=[None],
        messages=[None],
        steps=[""],
    )
    assert sql.job(job.id).step is None


def test_a_checkpoint_is_the_newest_and_outlives_the_attempt(sql: Session, job: Any, memory: Memory) -> None:
    sql.value("keep_checkpoint", id=job.id, lease=job.lease, state='{"row": 1}')
    sql.value("keep_checkpoint", id=job.id, lease=job.lease, state='{"row": 2}')
    assert sql.value("job_checkpoint", id=job.id) == {"row": 2}
    fail(sql, job)
    sql.claim_one()
    assert memory(job.id) == ({"row": 2}, {})


def test_checkpoints_of_many_are_flushed_with_their_progress(
    sql: Session, new_lease: Callable[[], UUID]
) -> None:
    sql.enqueue_many(3)
    jobs = sql.claim()
    sql.rows(
        "progress_many",
        ids=[job.id for job in jobs],
        leases=[jobs[0].lease, jobs[1].lease, new_lease()],
        percents=[1, 2, 3],
        stages=[None] * 3,
        messages=[None] * 3,
        states=['{"n": 0}', None, '{"n": 2}'],
    )
    assert [sql.value("job_checkpoint", id=job.id) for job in jobs] == [{"n": 0}, None, None]


def test_a_checkpoint_has_bounds_and_a_lease(
    sql: Session, job: Any, refused: Refused, new_lease: Callable[[], UUID]
) -> None:
    for state in ("[1]", "null", '{"x": "' + "y" * 32768 + '"}'):
        with refused("HF008") as error:
            sql.value("keep_checkpoint", id=job.id, lease=job.lease, state=state)
        assert error.detail["field"] == "state"
    with refused("HF001"):
        sql.value("keep_checkpoint", id=job.id, lease=new_lease(), state="{}")


def test_a_replay_goes_on_after_the_steps_unless_it_starts_over(
    sql: Session, job: Any, keep: Callable[..., Any], memory: Memory
) -> None:
    keep(job, "fetch", "1")
    sql.value("keep_checkpoint", id=job.id, lease=job.lease, state='{"row": 7}')
    sql.finish([job], "failed", errors=["no"], retries=[False])
    assert [row.name for row in sql.rows("job_steps", id=job.id)] == ["fetch"], "kept with the dead letter"
    sql.value("replay", id=job.id)
    again = sql.claim_one()
    assert (again.attempt, again.headers) == (1, {"resumes": True})
    assert memory(job.id) == ({"row": 7}, {"fetch": "1"})
    sql.finish([again], "failed", errors=["no"], retries=[False])
    sql.value("replay", id=job.id, start_over=True)
    assert sql.claim_one().id == job.id
    assert memory(job.id) == (None, {})


def test_a_replay_of_many_can_start_over(sql: Session, keep: Callable[..., Any], memory: Memory) -> None:
    ids = sql.enqueue_many(2)
    jobs = sql.claim()
    for job in jobs:
        keep(job, "fetch")
    sql.finish(jobs, "failed", errors=["no"] * 2, retries=[False] * 2)
    assert sql.value("replay_many", start_over=True, everything=True) == 2
    assert [memory(job_id) for job_id in ids] == [(None, {})] * 2


def test_a_purge_takes_the_steps_along(sql: Session, job: Any, keep: Callable[..., Any]) -> None:
    keep(job, "fetch")
    sql.value("keep_checkpoint", id=job.id, lease=job.lease, state="{}")
    sql.finish([job], "failed", errors=["no"], retries=[False])
    sql.value("purge", id=job.id)
    assert sql("select from holdfast.step") == sql("select from holdfast.checkpoint") == []


def test_a_new_job_under_an_old_id_begins_anew(
    sql: Session, keep: Callable[..., Any], memory: Memory, clock: Clock
) -> None:
    job_id = sql.one("select gen_random_uuid()")
    sql.enqueue(id=job_id)
    job = sql.claim_one()
    keep(job, "pay", '"old"')
    sql.value("keep_checkpoint", id=job.id, lease=job.lease, state='{"row": 7}')
    sql.finish([job])
    clock.advance(days=8)
    sql.value("upkeep")
    sql.enqueue(id=job_id)
    new = sql.claim_one()
    assert memory(job_id) == (None, {})
    assert keep(new, "pay", '"new"') == "new"


def test_who_was_not_to_blame_for_a_death_goes_on_all_the_same(
    sql: Session, keep: Callable[..., Any], memory: Memory
) -> None:
    # Beside a suspect that had started, its attempt is refunded; what it kept must be looked for.
    sql.enqueue()
    first = sql.claim_one()
    sql.lose(first.worker)
    sql.enqueue()
    suspect = next(job for job in sql.claim() if job.suspect)
    (neighbour,) = sql.claim(worker=suspect.worker)
    assert suspect.id == first.id
    keep(neighbour, "charge")
    sql.lose(suspect.worker)
    again = next(job for job in [*sql.claim(), *sql.claim()] if job.id == neighbour.id)
    assert (again.attempt, again.headers) == (1, {"resumes": True})
    assert memory(neighbour.id) == (None, {"charge": "null"})


def test_steps_go_when_their_job_is_past_its_retention(
    sql: Session, keep: Callable[..., Any], clock: Clock
) -> None:
    sql.enqueue_many(3)
    done, dead, _live = jobs = sql.claim()
    for job in jobs:
        keep(job, "fetch")
        sql.value("keep_checkpoint", id=job.id, lease=job.lease, state="{}")
    sql.finish([done])
    sql.finish([dead], "failed", errors=["no"], retries=[False])
    clock.advance(days=31)
    sql("update holdfast.worker set heartbeat_at = holdfast.clock()")
    sql.value("upkeep")
    left = {job_id for (job_id,) in sql("select job_id from holdfast.step")}
    assert left == {job_id for (job_id,) in sql("select job_id from holdfast.checkpoint")}
    assert left == {job.id for job in jobs} - {done.id}

"""A known worker, and one lane that has work: a few are claimed by a short way, under the same rules."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tests.sql.sessions import Session

Claim = Callable[..., list[UUID]]


@pytest.fixture
def claim(sql: Session) -> Claim:
    """`claim(5)`: the ids of what a registered worker is given."""
    return partial(claim_as, sql, sql.value("register"))


@pytest.fixture(params=[100, 101], ids=["few", "many"])
def all_of_them(request: pytest.FixtureRequest) -> int:
    """Either way, more than there are."""
    return request.param


def claim_as(session: Session, worker: UUID, amount: int) -> list[UUID]:
    jobs = session.claim(amount, worker=worker)
    assert {(job.queue, job.priority, job.suspect, job.attempt) for job in jobs} <= {("q", 7, False, 1)}
    return [job.id for job in jobs]


def put(sql: Session, amount: int, **options: Any) -> list[UUID]:
    return [sql.enqueue(queue="q", priority=7, **options) for _ in range(amount)]


@pytest.mark.parametrize("moved", [0, 4, None])
def test_jobs_are_handed_out_in_their_order_and_counted(
    sql: Session, claim: Claim, all_of_them: int, moved: int | None
) -> None:
    ids = put(sql, 10)
    if moved is not None:  # now the last in the table
        sql("update holdfast.job set payload = payload where id = %s", ids[moved])
    assert claim(3) == ids[:3]
    assert claim(all_of_them) == ids[3:]
    assert claim(all_of_them) == []
    assert {(row.state, row.attempt) for row in map(sql.job, ids)} == {("claimed", 1)}


def test_what_another_claim_has_locked_is_stepped_over(sql: Session, other: Session, claim: Claim) -> None:
    ids, second = put(sql, 10), sql.value("register")
    with other.connection.transaction():
        assert claim_as(other, second, 4) == ids[:4]
        assert claim(4) == ids[4:8]
    assert claim(4) == ids[8:]


def test_a_job_without_attempts_left_is_not_handed_out(sql: Session, claim: Claim, all_of_them: int) -> None:
    spent, good = put(sql, 2)
    sql("update holdfast.job set attempt = max_attempts where id = %s", spent)
    assert claim(all_of_them) == [good]


def test_it_ends_at_sixteen_megabytes_but_never_below_one_job(
    sql: Session, claim: Claim, all_of_them: int
) -> None:
    sql("update holdfast.queue set payload_limit = 67108864")
    sql("alter table holdfast.job alter payload set storage external")  # no time lost on compression
    ids = [
        job_id
        for (job_id,) in sql(
            "select holdfast.enqueue('task', to_jsonb(repeat('x', size * 1024 * 1024)), 'q', 7) "
            "from unnest('{20,6,6,6,6}'::integer[]) size"
        )
    ]
    sql("alter table holdfast.job alter payload set storage extended")
    assert claim(all_of_them) == ids[:1]
    assert claim(all_of_them) == ids[1:3], "a third would be more than that"
    assert claim(all_of_them) == ids[3:]


@pytest.mark.parametrize(("size", "fit"), [(250_000, 67), (160_000, 90), (1_000, 90)])
def test_what_was_compressed_counts_as_what_is_sent(
    sql: Session, claim: Claim, all_of_them: int, size: int, fit: int
) -> None:
    payload = "to_jsonb(repeat('x', %s))"
    ids = [
        job_id
        for (job_id,) in sql(
            f"select holdfast.enqueue('task', {payload}, 'q', 7) from generate_series(1, 90)", size
        )
    ]
    assert sql.one("select max(pg_column_size(payload)) from holdfast.live") < 4_000
    assert claim(all_of_them) == ids[:fit]
    assert claim(all_of_them) == ids[fit:]


def test_whoever_has_work_in_two_lanes_gets_the_more_urgent_first(sql: Session) -> None:
    worker = sql.value("register")
    low, high = sql.enqueue(priority=1), sql.enqueue(priority=2)
    assert [job.id for job in sql.claim(10, worker=worker)] == [high, low]

"""Index entries that promote reads: those of the jobs that are due, not of all that ever were.

To record anew, write down what `pytest -s tests/counts/test_due.py` says, the largest of each.
"""

import pytest

from holdfast.testing import Clock
from tests.counts.counting import Entries
from tests.sql.sessions import Connect, Session

MANY = 100_000
BATCH = 500

# Of a batch of 500, and of an advance beside it. Caught: without `run_at >= due_from` in promote.sql (twice),
# or in due_from() of advance.sql.
PROMOTE = {"job_due": 1501, "job_pkey": 2500, "job_pending": 0, "state_pkey": 0}
ADVANCE = {"job_due": 1, "job_pending": 1}


def promoted(sql: Session, clock: Clock) -> None:
    """Very many jobs were due, and a few are now."""
    sql(
        "insert into holdfast.job (lane_id, task, run_at) "
        "select l, 'task', holdfast.clock() + interval '1 minute' "
        "from holdfast.lane('default', 100, 'task') l, generate_series(1, %s)",
        MANY,
    )
    clock.advance(minutes=2)
    assert sql.value("promote", amount=MANY) is None
    for _ in range(3):
        clock.advance(minutes=1)
        sql.value("advance")
    sql.enqueue_many(2 * BATCH, delays=["1 minute"] * 2 * BATCH)
    clock.advance(minutes=2)


@pytest.fixture
def entries(sql: Session) -> Entries:
    return Entries(sql)


def test_a_promotion_does_not_walk_over_what_was_promoted_since_a_snapshot(
    sql: Session, connect: Connect, clock: Clock, entries: Entries
) -> None:
    report = connect()
    report("begin isolation level repeatable read")
    report("select 1")
    promoted(sql, clock)
    entries.are_at_most(ADVANCE, entries.of("advance"))
    entries.are_at_most(PROMOTE, entries.of("promote", amount=BATCH))


def test_a_promotion_does_not_walk_over_what_was_promoted_beside_an_open_writer(
    sql: Session, connect: Connect, clock: Clock, entries: Entries
) -> None:
    writer = connect()
    writer("begin")
    writer.enqueue("other")
    promoted(sql, clock)
    entries.are_at_most(ADVANCE, entries.of("advance"))
    entries.are_at_most(PROMOTE, entries.of("promote", amount=BATCH))


def test_a_promotion_does_not_walk_over_what_was_promoted_beside_an_open_cancel(
    sql: Session, connect: Connect, clock: Clock, entries: Entries
) -> None:
    job_id = sql.enqueue(delay="1 s")
    writer = connect()
    writer("begin")
    writer.value("cancel", id=job_id)
    for _ in range(4):
        sql.value("advance")
        clock.advance(seconds=6)
    sql.value("advance")
    promoted(sql, clock)
    entries.are_at_most({**ADVANCE, "job_due": 2}, entries.of("advance"))
    entries.are_at_most(PROMOTE, entries.of("promote", amount=BATCH))

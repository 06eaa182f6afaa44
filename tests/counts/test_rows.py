"""Index entries and blocks that a claim, a finish and an advance read: as few behind 200,000 jobs as
behind none, whoever holds what open.

An entry counts whether its job lives or not: what is dead cannot be cleaned up while somebody holds an old
snapshot, and whoever reads from the beginning walks over all of it. EXPLAIN does not show those rows.

To record anew, write down what `pytest -s tests/counts/test_rows.py` says, the largest of each.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import psycopg
import pytest

from tests.counts.counting import Entries, blocks
from tests.sql.sessions import Session, copied_database, roll_back_prepared

MANY = 200_000
BATCH = 500

# Of a batch of 500. Caught by a claim: claim.sql without `seq >= head`, or without `limit l.share`; advance()
# without its call of advance_eager_heads.
CLAIM = {"job_pending": 501, "lane_pkey": 2}
# A job has two entries: as it waited, and as it is held. Caught: a second look by id in finish.sql, be it to
# lock beforehand or without `j.ctid = r.place`; a look at the lane for each job.
FINISH = {"job_pkey": 1000, "lane_pkey": 2}
# Caught: `l.safe_head` instead of `greatest(l.safe_head, from_seq)` in include_late_jobs.
ADVANCE = {"job_pending": 1, "job_due": 0}
# Of 21 workers that have left. A worker that leaves gets new entries, because `worker_registered` drops it.
# Caught: looking at tombstones for five minutes.
RECOVER = {"job_held": 0, "job_pkey": 0, "worker_pkey": 126, "worker_registered": 44, "worker": 63}
# Entries of those who never were, because their registration was undone here. Caught: looking for the jobs of
# all but the living; looking behind the heads each time.
UPKEEP = {"job_held": 2000, "job_pending": 0, "job_pkey": 0, "worker_pkey": 67}
# Among many entries; an index of few is less deep, and a claim touches a sixth less. Before PostgreSQL
# 17 a search for many ids begins at the root for each.
BLOCKS = {"claim": 7550, "finish": 4620}
BLOCKS_BEFORE_17 = {"claim": 7550, "finish": 7110}

Situation = Callable[[Session, Session], None]


def few_jobs(sql: Session, other: Session) -> None:
    """What all others are compared with."""


def many_waiting(sql: Session, other: Session) -> None:
    fill(sql)


def many_done_since_a_snapshot(sql: Session, other: Session) -> None:
    other("begin isolation level repeatable read")
    other("select 1")
    fill(sql)
    work_off(sql)
    # Half an hour of moving heads: a version of the lane each, which nobody may clean up.
    sql("do 'begin for n in 1..1000 loop update holdfast.lane set safe_head = safe_head; end loop; end'")


def many_done_beside_an_open_writer(sql: Session, other: Session) -> None:
    other("begin")
    other.enqueue("other")
    fill(sql)
    work_off(sql)


def many_done_beside_a_prepared_writer(sql: Session, other: Session) -> None:
    other("set holdfast.notify = off")
    other("begin")
    other.enqueue("other")
    other("prepare transaction 'stays'")
    fill(sql)
    work_off(sql)


def many_done_beside_an_open_cancel(sql: Session, other: Session) -> None:
    job_id = sql.enqueue()
    other("begin")
    other.value("cancel", id=job_id)
    fill(sql)
    work_off(sql)


def many_done_beside_an_open_claim(sql: Session, other: Session) -> None:
    sql.enqueue_many(20)
    other("begin")
    assert len(other.claim(20)) == 20
    fill(sql)
    work_off(sql)


def fill(sql: Session) -> None:
    sql(
        "insert into holdfast.job (lane_id, task) "
        "select l, 'task' from holdfast.lane('default', 100, 'task') l, generate_series(1, %s)",
        MANY,
    )


def work_off(sql: Session) -> None:
    """Claimed, and then finished: what one transaction does and undoes is soon cleaned up, whoever looks."""
    sql("""
        do $$
        declare
          held record;
        begin
          for batch in 1..20 loop
            select array_agg(c.id) as ids, array_agg(c.lease) as leases into held
            from holdfast.claim(amount => 10000) c;
            commit;
            perform holdfast.finish(held.ids, held.leases);
            commit;
          end loop;
        end $$
    """)
    assert sql.claim() == []


@pytest.fixture(
    scope="module",
    params=[
        few_jobs,
        many_waiting,
        many_done_since_a_snapshot,
        many_done_beside_an_open_writer,
        many_done_beside_a_prepared_writer,
        many_done_beside_an_open_cancel,
        many_done_beside_an_open_claim,
    ],
)
def holdfast_dsn(
    request: pytest.FixtureRequest, holdfast_server: str, holdfast_template: str
) -> Iterator[str]:
    """A database in each of these situations, with a thousand jobs waiting behind them."""
    situation: Situation = request.param
    with (
        copied_database(holdfast_server, holdfast_template) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        sql = Session(connection)
        situation(sql, Session(other))
        for _ in range(5):
            sql.value("advance")
            sql("select holdfast.test_advance(%s)", 3)
        sql.enqueue_many(2 * BATCH)
        yield dsn
        roll_back_prepared(connection)


@pytest.fixture
def entries(sql: Session) -> Iterator[Entries]:
    """What is read, by something that is then undone."""
    with sql.connection.transaction(force_rollback=True):
        yield Entries(sql)


@pytest.fixture
def worker(sql: Session) -> str:
    return str(sql.value("register"))


def held(sql: Session, worker: str) -> list[Any]:
    """A batch of jobs, in the order in which a worker reports on them."""
    return sorted(sql.claim(BATCH, worker=worker), key=attrgetter("id"))


# First: what the other tests undo leaves entries behind, which are then found by their ids.
def test_a_finish_reads_its_own_jobs(sql: Session, entries: Entries, worker: str) -> None:
    jobs = held(sql, worker)
    read = entries.of("finish", ids=[job.id for job in jobs], leases=[job.lease for job in jobs])
    assert entries.rows == []
    entries.are_at_most(FINISH, read)


def test_a_claim_and_a_finish_touch_as_many_blocks_as_anywhere(
    sql: Session, entries: Entries, worker: str
) -> None:
    touched = {"claim": blocks(sql, "claim", amount=BATCH, worker=worker)}
    jobs = held(sql, worker)
    ids, leases = [job.id for job in jobs], [job.lease for job in jobs]
    touched["finish"] = blocks(sql, "finish", ids=ids, leases=leases)
    version = sql.connection.info.server_version
    print("\n", touched)  # noqa: T201 - to be recorded
    for function, recorded in (BLOCKS if version >= 170_000 else BLOCKS_BEFORE_17).items():
        assert touched[function] <= 1.2 * recorded, function


def test_a_claim_reads_as_many_entries_as_it_takes_jobs(sql: Session, entries: Entries, worker: str) -> None:
    read = entries.of("claim", amount=BATCH, worker=worker)
    assert len(entries.rows) == BATCH
    entries.are_at_most(CLAIM, read)


def test_an_advance_does_not_walk_over_what_it_has_passed(sql: Session, entries: Entries) -> None:
    entries.are_at_most(ADVANCE, entries.of("advance"))


@pytest.fixture
def all_left(sql: Session) -> None:
    sql("update holdfast.worker set left_at = holdfast.clock()")
    for _ in range(2):  # those who write are noted; then there is a look
        sql.value("recover")


@pytest.mark.usefixtures("all_left")
def test_a_look_at_the_workers_does_not_walk_over_what_those_that_left_have_done(entries: Entries) -> None:
    entries.are_at_most(RECOVER, entries.of("recover"))


def test_upkeep_does_not_walk_over_what_known_workers_have_done(sql: Session, entries: Entries) -> None:
    # It has just looked behind the heads, and that took a while.
    sql(
        "update holdfast.duty set looks = array[holdfast.clock(), holdfast.clock() - interval '1 second'] "
        "where name = 'check_heads'"
    )
    entries.are_at_most(UPKEEP, entries.of("upkeep", rest="1 second"))

"""First come, first served: a claim takes the oldest of the most urgent jobs, whatever lanes they are in."""

import random
from operator import attrgetter

import pytest

from tests.sql.sessions import Connect, Session

PUT = """
insert into holdfast.live (id, lane_id, task, attempt, max_attempts)
select holdfast.new_id(), holdfast.lane('default', j.priority, j.task, j.kind), j.task, j.attempt, 3
from unnest(%s::integer[], %s::text[], %s::integer[], %s::integer[])
  with ordinality j (priority, task, kind, attempt, n)
order by j.n
"""
WAITING = """
select j.id, l.priority, l.kind, j.attempt, j.seq
from holdfast.live j join holdfast.lane l on l.id = j.lane_id
where j.state = 'pending'
order by l.priority desc, l.kind desc, j.seq
"""


def put(
    sql: Session,
    tasks: list[str],
    *,
    priorities: list[int] | int = 100,
    kinds: list[int] | int = 0,
    attempts: list[int] | int = 0,
) -> None:
    """Put jobs of these tasks into their lanes, in this order."""
    others = [one if isinstance(one, list) else [one] * len(tasks) for one in (priorities, kinds, attempts)]
    sql(PUT, others[0], tasks, others[1], others[2])


@pytest.mark.parametrize("newer_tasks", [2, 10, 30])
@pytest.mark.parametrize("amount", [10, 100, 500])
def test_a_backlog_of_one_task_is_served_before_newer_jobs_of_others(
    sql: Session, newer_tasks: int, amount: int
) -> None:
    put(sql, ["old"] * 2000)
    put(sql, [f"new{n % newer_tasks}" for n in range(600 * newer_tasks)])
    served = [job.task for _ in range(2000 // amount) for job in sql.claim(amount)]
    assert served == ["old"] * 2000
    assert "old" not in {job.task for job in sql.claim(amount)}


@pytest.mark.parametrize("seed", range(8))
def test_a_claim_takes_exactly_the_oldest_of_the_most_urgent(sql: Session, other: Session, seed: int) -> None:
    dice = random.Random(seed)
    # A few large lanes and many small ones, that come one after the other or mixed.
    tasks = [f"task{n}" for n in range(dice.randint(1, 40))]
    for _ in range(dice.randint(1, 6)):
        some = dice.sample(tasks, dice.randint(1, len(tasks)))
        jobs = dice.choices(some, [dice.random() ** 4 for _ in some], k=dice.randint(1, 700))
        put(
            sql,
            jobs,
            priorities=dice.choices([100, 200], [9, 1], k=len(jobs)),
            kinds=dice.choices([0, 1], [5, 1], k=len(jobs)),
            attempts=dice.choices([0, 3], [9, 1], k=len(jobs)),  # of 3
        )
    waiting = sql(WAITING)
    sizes = [1, 2, 10, 100, 500, 1000]
    with other.connection.transaction():
        # Either here and there, or all the oldest, as if by another claim.
        locked = dice.sample(waiting, len(waiting) // 5) if seed % 2 else waiting[: len(waiting) // 2]
        other("select from holdfast.live where id = any(%s) for update", [row[0] for row in locked])
        held = {row[0] for row in locked}
        free = [row[0] for row in waiting if row[0] not in held and row[3] < 3]
        while free:
            amount = dice.choice(sizes)
            assert [job.id for job in sql.claim(amount)] == free[:amount]
            free = free[amount:]
        assert sql.claim() == []
    left = [row[0] for row in waiting if row[0] in held and row[3] < 3]
    assert [job.id for job in sql.claim_all()] == left


@pytest.mark.parametrize("amount", [1, 50, 1000])
@pytest.mark.parametrize("mixture", [["a", "b", "c", "d"], ["a", "a", "a", "b"]])
def test_others_that_claim_meanwhile_get_the_next_ones(
    sql: Session, connect: Connect, mixture: list[str], amount: int
) -> None:
    put(sql, mixture * 1000)
    order = [row[0] for row in sorted(sql(WAITING), key=lambda row: row[4])]
    for number in range(4):
        session = connect()
        session("begin")  # and stays open: what it has claimed is locked, and still pending to the others
        jobs = session.claim(amount)
        assert list(map(attrgetter("id"), jobs)) == order[number * amount : (number + 1) * amount]


def test_many_locked_jobs_in_several_lanes_are_stepped_over(sql: Session, other: Session) -> None:
    put(sql, ["a", "b", "c"] * 1000)
    order = [row[0] for row in sql(WAITING)]
    with other.connection.transaction():
        other("select from holdfast.live where id = any(%s) for update", order[:2990])
        assert [job.id for job in sql.claim(1)] == order[2990:2991]
        assert [job.id for job in sql.claim(4)] == order[2991:2995]
        assert [job.id for job in sql.claim(100)] == order[2995:]


@pytest.mark.parametrize("amount", [1, 20, 300])
def test_a_claim_locks_only_what_it_takes(sql: Session, other: Session, amount: int) -> None:
    put(sql, ["a", "b", "b", "c", "c", "c", "c"] * 200)
    put(sql, [f"newer{n % 27}" for n in range(2700)])
    with sql.connection.transaction():
        assert len(sql.claim(amount)) == amount
        free = other("select id from holdfast.live for update skip locked")
        assert len(free) == 1400 + 2700 - amount

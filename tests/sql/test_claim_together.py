"""Many workers on one queue: no job is claimed twice, none is left, and each claim is in order."""

import random
from uuid import UUID

import pytest

from tests.sql.sessions import Connect, Session, Together


@pytest.mark.parametrize(("amount", "priorities"), [(20_000, 10), (5_000, 1_000)], ids=["ten", "a_thousand"])
def test_ten_workers_never_get_the_same_job(
    sql: Session, connect: Connect, together: Together, amount: int, priorities: int
) -> None:
    dice = random.Random(3)
    for _ in range(0, amount, 5000):
        sql.rows(
            "enqueue_many",
            tasks=[f"task{dice.randrange(3)}" for _ in range(5000)],
            priorities=[dice.randrange(priorities) for _ in range(5000)],
        )

    def work(session: Session, size: int) -> list[UUID]:
        worker = session.value("register")
        taken = []
        while jobs := session.claim(size, worker=worker):
            assert len(jobs) <= size
            order = [job.priority for job in jobs]
            assert order == sorted(order, reverse=True)
            taken += [job.id for job in jobs]
            assert session.finish(jobs) == []
            session.value("advance")
        return taken

    sessions = [connect() for _ in range(10)]
    sizes = [1 + 50 * n for n in range(10)] if priorities == 10 else [500] * 10
    claimed = together(*[lambda s=s, n=n: work(s, n) for s, n in zip(sessions, sizes, strict=True)])
    everything = [job_id for taken in claimed for job_id in taken]
    assert len(everything) == len(set(everything)) == amount
    assert sql.one("select count(*) from holdfast.finished where attempt = 1") == amount
    assert sum(1 for taken in claimed if taken) > 1, "one worker did it all: this proves nothing"

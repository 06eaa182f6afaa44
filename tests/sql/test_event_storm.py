"""Ten writers with long and short transactions, three readers that are cut off at random: each event once,
and the events of a job in the same order for everyone."""

import random
import threading
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.sql.sessions import Session

WRITERS = 10
EVENTS = 10_000
JOBS_EACH = 20


def write(dsn: str, jobs: list[Any], amount: int, seed: int) -> None:
    """Publish so many, now one at a time, now many in a transaction that stays open for a while."""
    chance = random.Random(seed)
    left = amount
    with psycopg.connect(dsn, autocommit=True) as connection:
        while left:
            some = min(left, chance.choice([1, 1, 1, 5, 50]))
            with connection.transaction():
                for _ in range(some):
                    job = chance.choice(jobs)
                    connection.execute(
                        "select holdfast.publish(%s, %s, 'said', %s)", [job.id, job.lease, str(left)]
                    )
                    left -= 1
                if some == 50:
                    connection.execute("select pg_sleep(%s)", [chance.random() / 20])


class Reader(threading.Thread):
    """Follows a queue, on a connection that is lost now and then, in pages of any size."""

    def __init__(self, dsn: str, seed: int, written: threading.Event) -> None:
        super().__init__()
        self.seen: list[tuple[int, UUID]] = []
        self.cuts = 0
        self._dsn, self._chance, self._written = dsn, random.Random(seed), written
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def _follow(self) -> None:
        cursor = None
        while True:
            over = self._written.is_set()
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while True:
                    page = connection.execute(
                        "select id, job_id, cursor "
                        "from holdfast.read_events(queue => 'default', after => %s, amount => %s)",
                        [cursor, self._chance.choice([1, 7, 1000])],
                    ).fetchall()
                    # Cut off in the middle of a page: only what was taken counts.
                    taken = (
                        page if self._chance.random() < 0.9 else page[: self._chance.randrange(len(page) + 1)]
                    )
                    self.seen += [(event_id, job_id) for event_id, job_id, _ in taken]
                    cursor = taken[-1][2] if taken else cursor
                    if len(taken) < len(page):
                        self.cuts += 1
                        break
                    if not page:
                        break
            if over and not page:
                return


def orders(seen: list[tuple[int, UUID]]) -> dict[UUID, list[int]]:
    per_job: dict[UUID, list[int]] = {}
    for event_id, job_id in seen:
        per_job.setdefault(job_id, []).append(event_id)
    return per_job


@pytest.mark.timeout(120)
def test_each_reader_sees_each_event_once_and_in_order(sql: Session, holdfast_dsn: str) -> None:
    sql.enqueue_many(WRITERS * JOBS_EACH)
    jobs = sql.claim_all()
    written = threading.Event()
    readers = [Reader(holdfast_dsn, seed, written) for seed in range(3)]
    writers = [
        threading.Thread(
            target=write,
            args=(holdfast_dsn, jobs[n * JOBS_EACH : (n + 1) * JOBS_EACH], EVENTS // WRITERS, n),
        )
        for n in range(WRITERS)
    ]
    for thread in [*readers, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    written.set()
    for reader in readers:
        reader.join()
        assert reader.error is None
        assert reader.cuts
    assert sql("select count(*) from holdfast.event") == [(EVENTS,)]
    order = orders(readers[0].seen)
    assert all(ids == sorted(ids) for ids in order.values())
    for reader in readers:
        assert len(reader.seen) == len(set(reader.seen)) == EVENTS
        assert orders(reader.seen) == order

"""PostgreSQL goes away and comes back, fast or in an instant: workers go on by themselves."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import DatabaseUnavailable, Holdfast, HoldfastError, embedded
from holdfast.testing.homes import temporary_home
from tests.fixtures import StartWorker, Until
from tests.waiting import Told

LEASE = 1.5
SETTINGS = {"fsync": "off", "full_page_writes": "off"}  # the machine stays up: what is written is written


class Database:
    """A server of the test's own, which it can stop and start."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._shares = [embedded.start(home, settings=SETTINGS)]
        self.dsn = self._shares[0].dsn

    def stop(self, how: signal.Signals) -> None:
        pid_file = self._home / "data" / "postmaster.pid"
        os.kill(int(pid_file.read_text().splitlines()[0]), how)

    def start(self) -> None:
        self._shares.append(embedded.start(self._home, settings=SETTINGS))

    def close(self) -> None:
        for share in self._shares:
            share.stop()

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(question).fetchall()


@pytest.fixture
def database() -> Iterator[Database]:
    with temporary_home() as home:
        database = Database(home)
        yield database
        database.close()


@pytest.fixture
def hf(database: Database) -> Iterator[Holdfast]:
    with Holdfast(database.dsn) as hf:
        hf.migrate()
        yield hf


class Producer:
    """Enqueues one job after another; each is enqueued for sure, whatever happens in between."""

    def __init__(self, holdfast: Holdfast) -> None:
        self.ids: set[UUID] = set()
        self._holdfast = holdfast
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        while not self._stop.is_set():
            chosen = uuid4()
            while True:
                try:
                    self._holdfast.enqueue("work", id=chosen)  # the same id again, if the answer was lost
                except HoldfastError:
                    if self._stop.wait(0.05):
                        return
                else:
                    break
            self.ids.add(chosen)

    def stop(self) -> set[UUID]:
        self._stop.set()
        self._thread.join()
        return self.ids


def test_restarts_under_load_lose_nothing_and_nobody(
    hf: Holdfast, database: Database, work: StartWorker, told: Told, until: Until
) -> None:
    ran: list[int] = []

    @hf.task(name="work")
    async def handler() -> None:
        ran.append(1)

    for _ in range(2):
        work(lease_time=LEASE)
    producer = Producer(Holdfast(hf.dsn))
    try:
        for how in (signal.SIGINT, signal.SIGQUIT):  # fast, immediate
            before = len(ran)
            until(lambda before=before: len(ran) > before + 50)
            failures = len(told.named("heartbeat.failed"))
            database.stop(how)
            told.wait_for("heartbeat.failed", failures + 1)
            database.start()
        before = len(ran)
        until(lambda before=before: len(ran) > before + 50, timeout=30)
    finally:
        ids = producer.stop()
        producer._holdfast.close()
    until(lambda: database.ask("select count(*) from holdfast.job") == [(0,)])
    finished = {row[0] for row in database.ask("select id from holdfast.finished where state = 'completed'")}
    assert ids <= finished
    assert database.ask("select count(*) - count(distinct id) from holdfast.finished") == [(0,)]
    assert database.ask("select count(*) from holdfast.worker where lost_at is not null") == [(0,)]
    assert told.named("worker.lost") == []


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_is_over(
    hf: Holdfast,
    database: Database,
    work: StartWorker,
    told: Told,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @hf.task(name="work")
    async def handler() -> None: ...

    caplog.set_level("INFO", "holdfast")
    work(lease_time=60)
    for number, how in enumerate((signal.SIGINT, signal.SIGQUIT), 1):
        caplog.clear()
        failures, lost = len(told.named("claimer.failed")), len(told.named("database.lost"))
        database.stop(how)
        told.wait_for("claimer.failed", failures + 2)
        told.wait_for("promote.failed", number)
        database.start()
        told.wait_for("database.back", number)
        # A report finds its connection broken only now, and that is no news.
        job = hf.enqueue("work")
        until(lambda job=job: job.refresh().state == "completed", timeout=30)
        assert [vars(record)["event"] for record in caplog.records] == ["database.lost", "database.back"]
        assert len(told.named("database.lost")) == lost + 1
        assert re.fullmatch(r"database.back worker=\S+ after=\d+\.\ds", caplog.messages[-1])


def test_a_single_connection_that_was_ended_is_soon_back(
    hf: Holdfast,
    database: Database,
    work: StartWorker,
    told: Told,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hf.task(name="work")(lambda: None)
    caplog.set_level("INFO", "holdfast")
    work(lease_time=60)
    told.wait_for("jobs.claimed")  # so the connection is open, and has been used
    caplog.clear()
    assert database.ask(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast claimer'"
    )
    told.wait_for("database.back")
    assert [vars(record)["event"] for record in caplog.records] == ["database.lost", "database.back"]


def test_an_outage_longer_than_the_lease_declares_nobody_dead(
    hf: Holdfast, database: Database, work: StartWorker, told: Told, until: Until
) -> None:
    gate = threading.Event()

    @hf.task(name="work")
    def handler() -> None:
        gate.wait()

    jobs = hf.enqueue_many(hf.tasks.get("work").call() for _ in range(4))
    for _ in range(2):
        work(lease_time=LEASE, concurrency=2)
    until(lambda: len(hf.jobs.list(state="running")) == 4)
    beats = database.ask("select min(heartbeat_at) from holdfast.worker")
    down_at = database.ask("select clock_timestamp()")[0][0]
    database.stop(signal.SIGINT)
    until(lambda: [event for event in told.named("heartbeat.failed") if event["failures"] == 16])
    with pytest.raises(DatabaseUnavailable):
        Holdfast(hf.dsn).enqueue("work")
    database.start()
    assert (database.ask("select clock_timestamp()")[0][0] - down_at).total_seconds() > LEASE
    until(lambda: database.ask("select min(heartbeat_at) from holdfast.worker") > beats)
    gate.set()
    until(lambda: {job.refresh().state for job in jobs} == {"completed"})
    assert {job.refresh().attempt for job in jobs} == {1}
    # For longer than a lease, nobody is declared lost afterwards either.
    until(
        lambda: (database.ask("select clock_timestamp()")[0][0] - down_at).total_seconds() > 3 * LEASE,
        timeout=30,
    )
    assert database.ask("select count(*) from holdfast.worker where lost_at is not null") == [(0,)]
    assert told.named("worker.lost") == []

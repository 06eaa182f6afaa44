"""No job is ever missed, however late its transaction commits and however fast the heads advance.

Inserters of every kind take places early and commit late, by as many places as it takes others to get
through; claimers clear what they can see, so that a head which just follows the first pending job would
pass the late ones. Nothing here calls upkeep: that would find and repair what was passed.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import embedded, schema
from holdfast.testing import SETTINGS
from tests.sql.sessions import PATIENCE, Connect, Session, copied_database

TASKS = ("a", "b", "c")


@pytest.fixture
def holdfast_dsn(holdfast_server: str, holdfast_template: str) -> Iterator[str]:
    with copied_database(holdfast_server, holdfast_template) as dsn:
        yield dsn


class Flood:
    """Jobs that are on their way in, how many are through, and who has to go on."""

    def __init__(self, connect: Connect, target: int, seed: int = 5) -> None:
        self.connect = connect
        self.target = target
        self.dice = random.Random(seed)
        self.committed: list[UUID] = []
        self.claimed: list[UUID] = []
        self.heads_moved = 0
        self.highest_safe_head = 0
        self.done = threading.Event()
        self.reset_at: int | None = None
        self._changed = threading.Condition()

    # Telling each other.

    def commit(self, ids: list[UUID]) -> None:
        with self._changed:
            self.committed += ids
            self._changed.notify_all()

    def take(self, ids: Iterable[UUID]) -> None:
        with self._changed:
            self.claimed += ids
            self._changed.notify_all()

    @property
    def going_on(self) -> bool:
        return len(self.committed) < self.target and not self.done.is_set()

    def let_others_pass(self, amount: float) -> None:
        """Stay as one is until this many jobs of others are through."""
        with self._changed:
            until = len(self.claimed) + amount
            self._changed.wait_for(lambda: len(self.claimed) >= until or not self.going_on, PATIENCE)

    def keep_the_queue_short(self) -> None:
        """So that the first pending job is always a young one."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.committed) - len(self.claimed) < 4000 or self.done.is_set(), PATIENCE
            )

    def enqueue(self, session: Session, amount: int) -> list[UUID]:
        tasks = [self.dice.choice(TASKS) for _ in range(amount)]
        priorities = [self.dice.choice([100, 150]) for _ in range(amount)]
        return [row[0] for row in session.rows("enqueue_many", tasks=tasks, priorities=priorities)]

    def end(self, session: Session, ids: list[UUID]) -> None:
        """Commit mostly, roll back now and then."""
        if self.dice.random() < 0.2:
            session("rollback")
        else:
            session("commit")
            self.commit(ids)

    # Those who bring jobs.

    def quick(self, session: Session) -> None:
        while self.going_on:
            self.keep_the_queue_short()
            self.commit(self.enqueue(session, 400))

    def slow(self, session: Session) -> None:
        while self.going_on:
            session("begin")
            ids = self.enqueue(session, 20)
            self.let_others_pass(2500)
            self.end(session, ids)

    def copying(self, session: Session) -> None:
        lanes = {task: session.value("lane", queue="default", priority=100, task=task) for task in TASKS}
        while self.going_on:
            ids = [uuid4() for _ in range(200)]
            session("begin")
            with session.connection.cursor().copy("copy holdfast.job (id, lane_id, task) from stdin") as copy:
                for number, job_id in enumerate(ids):
                    if number == 100:
                        self.let_others_pass(700)
                    task = self.dice.choice(TASKS)
                    copy.write_row((job_id, lanes[task], task))
            self.end(session, ids)

    def in_savepoints(self, session: Session) -> None:
        while self.going_on:
            session("begin")
            session("savepoint one")
            self.enqueue(session, 10)
            session("rollback to one")
            session("savepoint two")
            ids = self.enqueue(session, 10)
            session("release two")
            self.let_others_pass(900)
            session("savepoint three")
            self.enqueue(session, 10)
            session("rollback to three")
            self.end(session, ids)

    def in_two_phases(self, session: Session) -> None:
        session("set holdfast.notify = off")
        while self.going_on:
            name = uuid4().hex
            session("begin")
            ids = self.enqueue(session, 30)
            self.let_others_pass(100)
            session(f"prepare transaction '{name}'")
            self.let_others_pass(4000)  # longer than any of the others
            if self.dice.random() < 0.2:
                session(f"rollback prepared '{name}'")
            else:
                session(f"commit prepared '{name}'")
                self.commit(ids)
            # Prepared ones stop the heads altogether: let them move for a while.
            self.let_others_pass(4000)

    # Those who take them.

    def claiming(self, session: Session) -> None:
        worker = session.value("register")
        while not self.done.is_set():
            if jobs := session.claim(500, worker=worker):
                session.finish(jobs)
                self.take([job.id for job in jobs])

    def advancing(self, session: Session) -> None:
        while not self.done.is_set():
            self.heads_moved += session.value("advance")
            if self.going_on:
                safe = session.one("select max(safe_head) from holdfast.lane") or 0
                self.highest_safe_head = max(self.highest_safe_head, safe)

    def resetting(self, session: Session) -> None:
        self.let_others_pass(self.target // 2)
        self.reset_at = session.one("select last_value from holdfast.job_seq")
        session("select setval('holdfast.job_seq', 1, false)")

    # The whole.

    def run(self, *, reset: bool = False) -> set[UUID]:
        """Returns the jobs that were committed and could not be claimed."""
        bringing = [self.quick, self.quick, self.slow, self.slow, self.slow, self.copying]
        bringing += [self.in_savepoints, self.in_two_phases, *([self.resetting] if reset else [])]
        taking = [self.claiming, self.claiming, self.advancing, self.advancing]
        errors: list[BaseException] = []

        def work(role: Callable[[Session], None]) -> None:
            try:
                role(self.connect())
            except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
                errors.append(error)
                self.done.set()

        threads = [threading.Thread(target=work, args=[role], daemon=True) for role in (*bringing, *taking)]
        for thread in threads:
            thread.start()
        for thread in threads[: len(bringing)]:
            thread.join(90)
        self.done.set()
        for thread in threads[len(bringing) :]:
            thread.join(90)
        if errors:
            raise errors[0]
        self.drain(self.connect())
        assert len(self.claimed) == len(set(self.claimed))
        return set(self.committed) - set(self.claimed)

    def drain(self, session: Session) -> None:
        for _ in range(5):
            session.value("advance")
            while jobs := session.claim_all():
                session.finish(jobs)
                self.claimed += [job.id for job in jobs]


def test_late_commits_are_never_missed(sql: Session, connect: Connect) -> None:
    flood = Flood(connect, target=50_000)
    assert flood.run() == set()
    assert len(flood.committed) >= 50_000
    # Otherwise it would prove nothing.
    assert flood.heads_moved > 20
    assert flood.highest_safe_head > 25_000


def test_late_commits_are_never_missed_when_the_sequence_is_reset_meanwhile(
    sql: Session, connect: Connect
) -> None:
    flood = Flood(connect, target=20_000, seed=6)
    assert flood.run(reset=True) == set()
    assert flood.reset_at
    assert flood.reset_at > 5_000
    assert sql.one("select count(*) from holdfast.audit where target = 'job_seq'") >= 1
    assert sql.one("select last_value from holdfast.job_seq") > flood.reset_at


def test_this_test_can_fail(sql: Session, connect: Connect) -> None:
    """A head that waits for nobody, and just follows the first pending job, passes late ones."""
    blind = "returns text[] language sql as $$ select '{}'::text[] $$"
    sql(f"create or replace function holdfast.writers() {blind}")
    flood = Flood(connect, target=15_000)
    missed = flood.run()
    assert missed
    assert sql.value("check_heads") > 0, "the check once a minute finds them all the same"
    flood.drain(sql)
    assert set(flood.committed) == set(flood.claimed)


def test_a_prepared_transaction_survives_a_restart_and_its_jobs_are_not_missed(server_home: Path) -> None:
    def connect() -> Session:
        return Session(psycopg.connect(server.dsn, autocommit=True))

    def flow(session: Session, amount: int) -> None:
        for _ in range(0, amount, 1000):
            session.enqueue_many(1000)
            session.value("advance")
            while jobs := session.claim_all():
                session.finish(jobs)
            session.value("advance")

    with embedded.start(server_home, settings=SETTINGS) as server:
        sql, late = connect(), connect()
        schema.apply(sql.connection)
        late("set holdfast.notify = off")
        late("begin")
        ids = late.enqueue_many(10)
        place = late.one("select min(seq) from holdfast.job")
        flow(sql, 3000)
        assert sql.one("select writers from holdfast.writer_watch"), "the proof names the session"
        late("prepare transaction 'late'")
        flow(sql, 3000)
        for session in (sql, late):
            session.connection.close()

    # Now the holder has another virtual transaction and no process.
    with embedded.start(server_home, settings=SETTINGS) as server:
        sql = connect()
        flow(sql, 15_000)
        assert sql.one("select safe_head from holdfast.lane") <= place
        sql("commit prepared 'late'")
        sql.value("advance")
        assert [job.id for job in sql.claim()] == ids
        sql.value("advance")
        assert sql.one("select safe_head from holdfast.lane") > place
        sql.connection.close()

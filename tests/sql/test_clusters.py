"""Who follows events goes on exactly where they were, also after a dump and restore into another cluster."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, embedded
from holdfast.embedded.binaries import find_binaries
from holdfast.testing.homes import temporary_home
from tests.sql.sessions import PATIENCE, Background, Connect, Refused, Session, copied_database, sessions_on

Moved = Callable[[str | None], None]

NUMBERS = 30_000


@pytest.fixture
def clusters() -> Iterator[tuple[str, str]]:
    """The DSNs of two servers, of which a dump can be made."""
    client_programs()
    with ExitStack() as stack:
        homes = [stack.enter_context(temporary_home()) for _ in range(2)]
        quick = {"fsync": "off"}
        first, second = (stack.enter_context(embedded.start(home, settings=quick)).dsn for home in homes)
        yield first, second


@pytest.fixture
def holdfast_dsn(holdfast_server: str, holdfast_template: str) -> Iterator[str]:
    with copied_database(holdfast_server, holdfast_template) as dsn:
        yield dsn


def count_on(sql: Session, amount: int = NUMBERS) -> None:
    """Use up transaction numbers."""
    sql("set synchronous_commit = off")
    sql(f"do $$ begin for n in 1..{amount} loop perform pg_current_xact_id(); commit; end loop; end $$")
    sql("reset synchronous_commit")


def client_programs() -> Path:
    """Where pg_dump and psql of the server's version are: beside the server, or as the system has them."""
    beside = find_binaries()
    if (beside / "pg_dump").exists():
        return beside
    said = subprocess.run(
        [beside / "postgres", "--version"], check=True, capture_output=True, text=True
    ).stdout
    version = said.split()[2].split(".")[0]
    installed = Path("/usr/lib/postgresql", version, "bin")
    if not (installed / "pg_dump").exists():
        pytest.skip(f"there is no pg_dump {version} here")
    return installed


def copy(here: str, there: str) -> None:
    programs = client_programs()
    dump = subprocess.run([programs / "pg_dump", "--no-sync", here], check=True, capture_output=True)
    subprocess.run(
        [programs / "psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", there],
        input=dump.stdout,
        check=True,
        capture_output=True,
    )


def publish(sql: Session, job: Any, name: str) -> None:
    sql.value("publish", id=job.id, lease=job.lease, name=name, data=json.dumps(None))


class Reader:
    def __init__(self, cursor: str | None) -> None:
        self.cursor = cursor

    def read(self, sql: Session) -> list[str]:
        seen = []
        while page := sql.rows("read_events", queue="default", after=self.cursor, amount=1):
            seen.append(page[0].name)
            self.cursor = page[0].cursor
        return seen


@pytest.mark.parametrize("numbers_of_the_new_cluster", ["lower", "higher"])
def test_readers_go_on_in_another_cluster(clusters: tuple[str, str], numbers_of_the_new_cluster: str) -> None:
    here, there = clusters
    with Holdfast(here) as hf:
        hf.migrate()
    with sessions_on(here) as connect_here, sessions_on(there) as connect_there:
        old, new = connect_here(), connect_there()
        count_on(old if numbers_of_the_new_cluster == "lower" else new)
        old.enqueue_many(2)
        one, two = old.claim()
        publish(old, one, "first")
        early = Reader(None)
        assert early.read(old) == ["first"]
        publish(old, two, "second")
        up_to_date, idle = Reader(early.cursor), Reader(old.value("event_cursor"))
        assert up_to_date.read(old) == ["second"]
        copy(here, there)
        publish(old, one, "after.dump")
        ahead = Reader(up_to_date.cursor)
        assert ahead.read(old) == ["after.dump"]

        readers = {"second": early, "": up_to_date, " ": idle, "  ": ahead, "first second": Reader(None)}
        for expected, reader in readers.items():
            assert reader.read(new) == expected.split()
        for name in ("third", "fourth"):
            publish(new, two, name)
            for reader in readers.values():
                assert reader.read(new) == [name]
        readers["now"] = Reader(new.value("event_cursor"))
        count_on(new)  # past the numbers of the old cluster
        assert not any(reader.read(new) for reader in readers.values()), "an old one comes as a new one"
        publish(new, one, "fifth")
        assert [reader.read(new) for reader in readers.values()] == [["fifth"]] * len(readers)


def test_a_cursor_of_one_job_goes_on_in_another_cluster(clusters: tuple[str, str]) -> None:
    here, there = clusters
    with Holdfast(here) as hf:
        hf.migrate()
    with sessions_on(here) as connect_here, sessions_on(there) as connect_there:
        old, new = connect_here(), connect_there()
        old.enqueue()
        job = old.claim_one()
        publish(old, job, "first")
        copy(here, there)
        publish(old, job, "after.dump")
        cursor = old.value("event_cursor", job_id=job.id)
        publish(new, job, "first.here")
        publish(new, job, "second.here")
        names = [event.name for event in new.rows("read_events", job_id=job.id, after=cursor)]
        assert names == ["first.here", "second.here"]


@pytest.mark.parametrize("crashed", ["server", "backend"])
def test_no_event_is_missed_after_a_crash(server_home: Path, crashed: str) -> None:
    """Transactions whose log was not yet written are forgotten, and others get their numbers."""
    # The log writer stays asleep: what did not wait for the disk is not written.
    settings = {"fsync": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    shares = [embedded.start(server_home, settings=settings)]
    try:
        dsn = shares[0].dsn
        with Holdfast(dsn) as hf:
            hf.migrate()
        with sessions_on(dsn) as connect:
            sql, bystander = connect(), connect()
            sql.enqueue()
            job = sql.claim_one()
            publish(sql, job, "first")
            count_on(sql, 1000)
            reader = Reader(None)
            assert reader.read(sql) == ["first"]
            pid_file = server_home / "data" / "postmaster.pid"
            if crashed == "server":
                os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGQUIT)
                until(lambda: not pid_file.exists())
                shares.append(embedded.start(server_home, settings=settings))
            else:
                os.kill(sql.pid, signal.SIGKILL)
                until(lambda: not answers(bystander))
        with sessions_on(dsn) as connect:
            sql = reached(connect)
            publish(sql, job, "second")
            seen = reader.read(sql)
            count_on(sql, 2000)
            publish(sql, job, "third")
            assert seen + reader.read(sql) == ["second", "third"]
            assert Reader(None).read(sql) == ["first", "second", "third"]
    finally:
        for share in shares:
            share.stop()


def until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline


def answers(sql: Session) -> bool:
    try:
        sql("select 1")
    except psycopg.OperationalError:
        return False
    return True


def reached(connect: Connect) -> Session:
    """Return a session on a server that is about to be back."""
    sessions: list[Session] = []

    def connects() -> bool:
        with suppress(psycopg.OperationalError):
            sessions.append(connect())
        return bool(sessions)

    until(connects)
    return sessions[0]


# What decides, without a second cluster.


@pytest.fixture
def moved(sql: Session) -> Moved:
    """Let this server look like another one: `moved("b")`."""

    def move(mark: str | None) -> None:
        value = "null" if mark is None else f"'{mark}'"
        sql(
            "create or replace function holdfast.cluster_mark() returns text "
            f"language sql as $$ select {value}::text $$"
        )
        sql("update holdfast.cluster set seen_at = null")

    sql.value("tick")
    return move


@pytest.fixture
def job(sql: Session) -> Any:
    sql.enqueue()
    return sql.claim_one()


def known(sql: Session) -> tuple[Any, ...]:
    return sql("select epoch, shift, mark, seen_at = holdfast.server_start() from holdfast.cluster")[0]


def test_the_first_cluster_keeps_its_own_numbers(sql: Session, job: Any) -> None:
    publish(sql, job, "first")
    epoch, shift, mark, compared = known(sql)
    assert (epoch, shift, compared) == (0, 0, True)
    assert mark == sql.one("select holdfast.cluster_mark()")
    assert sql.one("select e.xid < pg_snapshot_xmax(pg_current_snapshot()) from holdfast.event e")


def test_an_orderly_restart_changes_no_number(sql: Session, job: Any) -> None:
    sql.value("tick")
    sql("update holdfast.cluster set seen_at = seen_at + interval '1 second'")
    publish(sql, job, "first")
    assert known(sql) == (0, 0, sql.one("select holdfast.cluster_mark()"), True)


def test_a_crash_is_counted_once(sql: Session, job: Any) -> None:
    sql.value("tick")
    crash(sql)
    publish(sql, job, "first")
    shift = known(sql)[1]
    assert shift > 0
    sql("update holdfast.cluster set seen_at = seen_at - interval '1 day'")
    publish(sql, job, "second")
    assert known(sql)[1] == shift


def test_no_event_is_missed_beside_a_reset_of_the_shared_statistics(
    sql: Session, other: Session, job: Any
) -> None:
    publish(sql, job, "first")
    other.enqueue(queue="elsewhere")
    late = other.claim_one(queues=["elsewhere"])
    with other.transaction():
        publish(other, late, "in.flight")
        sql("select pg_stat_reset_shared('bgwriter'), pg_stat_reset_shared('archiver')")
        cursor = sql.value("event_cursor")
    assert [event.name for event in sql.rows("read_events", after=cursor)] == ["in.flight"]


def crash(sql: Session) -> None:
    """Leave what a crash of the server leaves."""
    sql("update holdfast.cluster set seen_at = seen_at - interval '1 day'")
    sql("truncate holdfast.crash_watch")


def test_each_crash_of_the_same_cluster_goes_on_above_all_that_was_before(sql: Session, job: Any) -> None:
    sql.value("tick")
    names, reader = [], Reader(None)
    for number in range(3):
        publish(sql, job, f"event.{number}")
        names += reader.read(sql)
        assert (known(sql)[0], known(sql)[1] > 0, known(sql)[3]) == (0, number > 0, True)
        crash(sql)
        cursor = sql.value("event_cursor")
    assert names == ["event.0", "event.1", "event.2"]
    publish(sql, job, "event.3")
    assert Reader(cursor).read(sql) == ["event.3"]
    assert Reader(None).read(sql) == [*names, "event.3"]


def test_each_move_begins_above_all_that_was_before(sql: Session, job: Any, moved: Moved) -> None:
    shifts, names = [], []
    reader = Reader(None)
    for number, mark in enumerate("abacus"):
        moved(mark)
        publish(sql, job, f"event.{number}")
        names += reader.read(sql)
        shifts.append(known(sql)[1])
        assert known(sql)[0] == number + 1
    assert shifts == sorted(set(shifts))
    assert names == [f"event.{number}" for number in range(6)]
    assert sql.one("select count(*) from holdfast.audit where action = 'repair' and target = 'events'") == 6


def test_upkeep_finds_out_without_an_event(sql: Session, moved: Moved) -> None:
    moved("b")
    sql.value("upkeep")
    assert known(sql)[0] == 1


def test_who_reads_before_anybody_has_written_gets_the_numbers_of_the_new_cluster(
    sql: Session, job: Any, moved: Moved
) -> None:
    publish(sql, job, "first")
    moved("b")
    cursor = sql.value("event_cursor")
    assert known(sql)[0] == 0
    publish(sql, job, "second")
    assert Reader(cursor).read(sql) == ["second"]
    assert Reader(None).read(sql) == ["first", "second"]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_sessions_that_find_out_at_once_agree_without_waiting(
    sql: Session, connect: Connect, moved: Moved, isolation: str
) -> None:
    sql.enqueue_many(2)
    one, two = sql.claim()
    moved("b")
    first, second = connect(), connect()
    reader = Reader(sql.value("event_cursor"))
    with first.transaction(isolation):
        publish(first, one, "one")
        with second.transaction(isolation):
            second("set local lock_timeout = '100ms'")
            publish(second, two, "two")
        assert reader.read(sql) == ["two"]
    assert reader.read(sql) == ["one"]
    sql.value("upkeep")
    assert known(sql)[0] == 1
    publish(sql, one, "three")
    assert reader.read(sql) == ["three"]


def test_a_writer_that_began_to_compare_before_another_stored_agrees(
    sql: Session, other: Session, connect: Connect, background: Background
) -> None:
    """It read the row before, and the mark of a crash after."""
    sql.enqueue_many(2)
    one, two = sql.claim()
    sql.value("tick")
    sql(
        "create or replace function holdfast.server_start() returns timestamptz language plpgsql as $$ "
        "begin if current_setting('application_name') = 'slow' then "
        "perform pg_advisory_xact_lock_shared(1); end if; return pg_postmaster_start_time(); end $$"
    )
    crash(sql)
    other("set application_name = 'slow'")
    gate = connect()
    with gate.transaction():
        gate("select pg_advisory_xact_lock(1)")
        late = background(lambda: publish(other, one, "late"))
        sql.until(lambda: sql.is_waiting(other))
        publish(sql, two, "first")
        reader = Reader(sql.value("event_cursor"))
    late()
    assert known(sql)[1] == 2**24
    assert reader.read(sql) == ["late"]


def test_two_crashes_without_an_event_between_them_are_two(sql: Session, job: Any) -> None:
    for crashes in (1, 2):
        crash(sql)
        sql.value("recover")
        assert known(sql)[1] == crashes * 2**24


def test_an_old_snapshot_is_no_error_where_others_have_found_out_meanwhile(
    sql: Session, other: Session, moved: Moved
) -> None:
    sql.enqueue_many(2)
    one, two = sql.claim()
    moved("b")
    reader = Reader(sql.value("event_cursor"))
    with other.transaction("repeatable read"):
        other("select from holdfast.cluster")
        publish(sql, one, "one")
        publish(other, two, "two")
    assert reader.read(sql) == ["one", "two"]


def test_without_the_right_to_know_the_cluster_numbers_that_lie_ahead_give_it_away(
    sql: Session, job: Any, moved: Moved
) -> None:
    publish(sql, job, "first")
    cursor = sql.value("event_cursor")
    moved(None)
    sql("update holdfast.cluster set mark = null")
    publish(sql, job, "second")
    assert known(sql)[0] == 0
    sql("update holdfast.event set xid = '999999999' where name = 'first'")
    sql("update holdfast.cluster set seen_at = null")
    assert Reader(None).read(sql) == ["first", "second"]
    publish(sql, job, "third")
    assert known(sql)[0] == 1
    assert Reader("1000000000:1000000000:").read(sql) == ["third"]
    assert cursor


def test_a_cursor_of_two_restores_of_one_dump_is_refused_or_exact(
    sql: Session, job: Any, moved: Moved, refused: Refused
) -> None:
    moved("b")
    publish(sql, job, "in.b")
    cursors = [sql.value("event_cursor")]
    sql("update holdfast.cluster set epoch = 0, shift = 0, mark = 'a'")
    sql("delete from holdfast.event")
    moved("c")
    publish(sql, job, "in.c")
    b, c = (sql.one("select holdfast.cluster_shift(1, %s)", mark) for mark in "bc")
    if b > c:
        with refused("HF008") as error:
            Reader(cursors[0]).read(sql)
        assert "event_cursor" in error.message
    else:
        assert Reader(cursors[0]).read(sql) == ["in.c"]

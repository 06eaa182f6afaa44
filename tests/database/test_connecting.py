"""Databases that do not answer, have no Holdfast, or are asked from many threads and loops."""

import asyncio
import contextlib
import gc
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import BadPayload, BadValue, DatabaseUnavailable, Holdfast, Job, SchemaMissing
from holdfast.database import Session
from holdfast.operations import workers
from holdfast.operations.queues import Queues
from holdfast.values.call import Call
from holdfast.values.job import NewJob
from tests.fixtures import Ask, Counts, Drain, Until


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_dsn_that_does_not_answer_is_told_at_once_and_without_its_password(tmp_path: Path) -> None:
    for dsn in (
        f"host={tmp_path} dbname=jobs user=me password=hunter2",
        "postgresql://me:hunter2@127.0.0.1:1/jobs",
    ):
        with Holdfast(dsn) as hf:
            begun = time.monotonic()
            with pytest.raises(DatabaseUnavailable, match="does not answer") as refusal:
                hf.enqueue("noop")
            with pytest.raises(DatabaseUnavailable):
                asyncio.run(hf.aenqueue("noop"))
            with pytest.raises(DatabaseUnavailable):
                hf.worker()
            assert time.monotonic() - begun < 3
            assert "hunter2" not in f"{refusal.value} {refusal.value.dsn} {hf!r}"
            assert "*****" in (refusal.value.dsn or "")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("dbname", 'database "nowhere" does not exist. Create it with createdb nowhere, or'),
        ("user", 'role "nowhere" does not exist. Create it with createuser nowhere, or'),
    ],
)
def test_a_server_that_refuses_the_database_or_the_role_does_answer(
    holdfast_dsn: str, field: str, said: str
) -> None:
    with Holdfast(make_conninfo(holdfast_dsn, password="geheim", **{field: "nowhere"})) as hf:
        for attempt in (hf.queues.list, lambda: asyncio.run(hf.queues.alist()), hf.worker, hf.migrate):
            with pytest.raises(DatabaseUnavailable, match=r"^cannot connect to ") as refusal:
                attempt()
            assert said in str(refusal.value)
            assert "does not answer" not in str(refusal.value)
            assert "geheim" not in str(refusal.value)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
def test_a_url_of_sqlalchemys_is_a_dsn(
    holdfast_dsn: str, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    parts = conninfo_to_dict(holdfast_dsn)
    query = f"{parts['dbname']}?host={quote(str(parts['host']), safe='')}&port={parts.get('port', 5432)}"
    url = f"postgresql+{driver}://{parts['user']}:geheim@/{query}"
    with Holdfast(url) as hf:
        assert hf.dsn.startswith("postgresql://")
        assert "geheim" not in repr(hf)
        hf.enqueue("noop")
    monkeypatch.setenv("HOLDFAST_DSN", url)
    with Holdfast() as hf:
        assert "geheim" not in repr(hf)
        assert [row.name for row in hf.queues.list()] == ["default"]


def test_a_dsn_that_stays_silent_is_given_up(silent_port: int) -> None:
    with Holdfast(f"host=127.0.0.1 port={silent_port} dbname=jobs connect_timeout=2") as hf:
        begun = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            hf.enqueue("noop")
        assert time.monotonic() - begun < 5


def test_a_dsn_that_cannot_be_read_is_refused_without_showing_it() -> None:
    for dsn in ("hunter2", "postgresql://me:hunter2@[here/jobs", "password=hunter2 nonsense"):
        with Holdfast(dsn) as hf, pytest.raises(BadValue, match="the DSN cannot be read") as refusal:
            hf.enqueue("noop")
        assert "hunter2" not in str(refusal.value)
        assert refusal.value.__suppress_context__
        assert refusal.value.__cause__ is None


def test_a_database_without_holdfast_says_what_to_do(holdfast_server: str) -> None:
    with Holdfast(make_conninfo(holdfast_server, dbname="postgres")) as hf:
        for attempt in (lambda: hf.enqueue("noop"), hf.worker, hf.jobs.list, hf.job(uuid4()).refresh):
            with pytest.raises(SchemaMissing, match="holdfast migrate"):
                attempt()


def test_a_server_that_comes_back_is_found_again(hf: Holdfast, ask: Ask) -> None:
    hf.enqueue("noop")
    ask(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
    hf.enqueue("noop")
    assert len(hf.jobs.list()) == 2


KILL = (
    "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
    "where datname = current_database() and application_name = 'holdfast'"
)


@pytest.mark.parametrize("noticed", ["by looking", "by its farewell", "by a proof"])
def test_an_idle_connection_that_died_causes_no_error(
    hf: Holdfast, ask: Ask, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    if noticed == "by its farewell":  # it came after the look
        monkeypatch.setattr("holdfast.database.libpq.Wire.is_readable", lambda _: False)
    if noticed == "by a proof":
        monkeypatch.setattr("holdfast.database.pools.TRUSTED_SECONDS", 0)
    for number in range(5):
        hf.enqueue("noop", number)
        assert len(ask(KILL)) == 1
    assert len(hf.enqueue_many([NewJob(task="noop")] * 200)) == 200
    ask(KILL)
    assert len(hf.jobs.list(limit=500)) == 205  # each of them once


def test_an_idle_connection_of_a_loop_that_died_causes_no_error(
    hf: Holdfast, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        for number in range(4):
            await hf.aenqueue("noop", number)
            ask(KILL)
            if number == 2:
                monkeypatch.setattr("holdfast.database.libpq.Wire.is_readable", lambda _: False)
        await hf.aenqueue("noop")
        await hf.aclose()

    asyncio.run(main())
    assert len(hf.jobs.list()) == 5


def test_all_idle_connections_may_have_died(hf: Holdfast, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    with hf.database.pooled_connection(), hf.database.pooled_connection(), hf.database.pooled_connection():
        pass
    monkeypatch.setattr("holdfast.database.libpq.Wire.is_readable", lambda _: False)
    assert len(ask(KILL)) == 3
    hf.enqueue("noop")
    assert len(hf.jobs.list()) == 1


def test_a_session_that_was_wiped_is_not_used_again(hf: Holdfast) -> None:
    hf.enqueue("noop")
    with hf.database.pooled_connection() as connection:
        connection.execute("deallocate all")
    hf.enqueue("noop")
    assert len(hf.jobs.list()) == 2


def test_a_used_connection_is_not_proven_again_and_a_long_idle_one_is(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs: list[Any] = []
    execute = psycopg.Connection.execute

    def noted(*given: Any, **more: Any) -> Any:
        proofs.append(given[1])
        return execute(*given, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", noted)
    hf.enqueue("noop")
    proofs.clear()
    hf.enqueue("noop")
    assert proofs == []
    monkeypatch.setattr("holdfast.database.pools.TRUSTED_SECONDS", 0)
    hf.enqueue("noop")
    assert proofs == [""]


def test_a_large_payload_and_an_odd_one_take_the_short_way(hf: Holdfast) -> None:
    large = "ü🐘" * 20_000
    assert hf.enqueue("noop", large).refresh().payload == large
    for task, payload in [("no\0op", "{}"), ("noop", '"a\0b"'), ("noop", '"\ud800"')]:
        with pytest.raises(BadPayload):
            hf.enqueue(NewJob(task=task, payload=payload))
    assert asyncio.run(hf.aenqueue("noop", large)).refresh().payload == large
    assert len(hf.jobs.list()) == 2


def test_an_enqueue_that_is_cancelled_leaves_a_pool_that_works(hf: Holdfast, ask: Ask, until: Until) -> None:
    async def main() -> Job[Any]:
        async with await psycopg.AsyncConnection.connect(hf.dsn) as holder:
            await holder.execute("lock table holdfast.job in access exclusive mode")
            waiting = asyncio.create_task(hf.aenqueue("noop"))
            while not hf_waits(hf.dsn):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        job = await hf.aenqueue("after")
        await hf.aclose()
        return job

    assert asyncio.run(main()).refresh().task == "after"


def test_many_threads_share_one_pool(hf: Holdfast, ask: Ask) -> None:
    threads = [threading.Thread(target=hf.enqueue, args=("noop",)) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hf.jobs.list()) == 30
    assert ask("select count(*) <= 10 from pg_stat_activity where application_name = 'holdfast'") == [(True,)]


def test_one_loop_after_the_other_leaves_no_connection_behind(hf: Holdfast, ask: Ask, until: Until) -> None:
    async def main() -> int:
        await asyncio.gather(*(hf.aenqueue("noop") for _ in range(20)))
        return len(hf.database._apools)

    for _ in range(3):
        assert asyncio.run(main()) == 1
    hf.close()
    gc.collect()
    assert ask("select count(*) from holdfast.job") == [(60,)]
    ours = "select from pg_stat_activity where application_name = 'holdfast' and datname = current_database()"
    until(lambda: not ask(ours))


def test_a_pool_goes_with_its_loop(hf: Holdfast) -> None:
    pools = weakref.WeakSet[Any]()

    async def enqueue() -> None:
        await hf.aenqueue("task")
        pools.add(hf.database._apools[asyncio.get_running_loop()])

    for _ in range(5):
        asyncio.run(enqueue())
    gc.collect()
    assert len(pools) == 1, "that of the last loop"


def test_loops_in_several_threads_each_have_a_pool(hf: Holdfast) -> None:
    together = threading.Barrier(3, timeout=10)

    async def main() -> None:
        together.wait()
        await hf.aenqueue("noop")
        await hf.aenqueue("noop")
        await hf.aclose()

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hf.jobs.list()) == 6


def test_a_session_may_be_opened_before_its_first_call(hf: Holdfast) -> None:
    async def main() -> None:
        session = hf.database.session()
        await asyncio.gather(session.open(), session.open())
        before = session._connection
        assert before is not None
        assert await session.run(workers.channel("mail")) == "holdfast_mail"
        assert session._connection is before
        await session.close()

    asyncio.run(main())


def test_one_that_listens_hears_from_its_opening_on(hf: Holdfast) -> None:
    async def main() -> None:
        heard = asyncio.Event()
        session = hf.database.listening_session(
            deadline=10, channels=[workers.channel("mail")], heard=lambda _: heard.set(), lost=lambda _: None
        )
        await session.open()
        assert heard.is_set()  # it may have missed something before
        heard.clear()
        with psycopg.connect(hf.database.dsn, autocommit=True) as other:
            other.execute("notify holdfast_mail")
        await asyncio.wait_for(heard.wait(), 10)
        await session.close()

    asyncio.run(main())


def test_a_call_that_is_cancelled_leaves_a_session_that_works(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.database.session.ABANDON_SECONDS", 0.1)

    async def main() -> None:
        session = hf.database.session()
        async with asyncio.timeout(10):
            held = await psycopg.AsyncConnection.connect(hf.dsn)
            await held.execute("select holdfast.pause('mail')")
            waiting = asyncio.create_task(session.run(Queues.pause.build(None, "mail")))  # type: ignore[arg-type]
            while not hf_waits(hf.dsn):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await held.rollback()
            await held.close()
            assert await session.run(workers.channel("mail")) == "holdfast_mail"
        await session.close()

    asyncio.run(main())


@pytest.fixture
def sleeper(hf: Holdfast) -> tuple[Session, Call[Any], Call[Any]]:
    """A session, and a worker's words that it falls asleep and has work: each waits for the worker's row."""
    registration = workers.register(
        name=None,
        queues=None,
        tasks=None,
        lease_time=timedelta(hours=1),
        host="here",
        pid=1,
        version="1",
        channel=None,
    )
    worker = hf.carrier.run(registration)
    return hf.database.session(), workers.sleep(worker), workers.sleep(worker, above=0)


@contextlib.asynccontextmanager
async def locked_workers(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("select from holdfast.worker for update")
        yield connection


async def waiting(hf: Holdfast, session: Session, call: Call[Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(session.run(call))
    while not hf_waits(hf.dsn):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return task


@pytest.mark.parametrize("known", [True, False])
def test_a_plain_call_that_takes_too_long_is_cut_off(
    hf: Holdfast, sleeper: tuple[Session, Call[Any], Call[Any]], known: bool
) -> None:
    session, sleep, wake_up = sleeper

    async def main() -> None:
        await session.run(sleep if known else workers.channel("mail"))
        async with locked_workers(hf.dsn):
            with pytest.raises(DatabaseUnavailable, match=r"no answer within 0\.2 s"):
                await session.run(wake_up if known else sleep, deadline=0.2)
        assert await session.run(workers.channel("mail")) == "holdfast_mail"
        await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("nearly_done", [True, False])
def test_a_plain_call_that_is_cancelled_leaves_a_session_that_works(
    hf: Holdfast,
    sleeper: tuple[Session, Call[Any], Call[Any]],
    monkeypatch: pytest.MonkeyPatch,
    nearly_done: bool,
) -> None:
    session, sleep, wake_up = sleeper
    if not nearly_done:
        monkeypatch.setattr("holdfast.database.session.ABANDON_SECONDS", 0.1)

    async def main() -> None:
        await session.run(sleep)
        before = session._connection
        async with locked_workers(hf.dsn) as holder:
            task = await waiting(hf, session, wake_up)
            task.cancel()
            if nearly_done:
                await asyncio.sleep(0)
                await holder.rollback()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (session._connection is before) is nearly_done
        assert await session.run(workers.channel("mail")) == "holdfast_mail"
        await session.close()

    asyncio.run(main())


def hf_waits(dsn: str) -> bool:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return bool(connection.execute("select from pg_locks where not granted").fetchall())


def test_a_stricter_default_isolation_does_not_stop_a_worker(
    hf: Holdfast, drain: Drain, ask: Ask, counts: Counts, holdfast_dsn: str
) -> None:
    with psycopg.connect(holdfast_dsn, autocommit=True) as connection:
        connection.execute(
            f'alter database "{connection.info.dbname}" set default_transaction_isolation = serializable'
        )

    @hf.task(name="noop")
    async def noop() -> None: ...

    noop.enqueue()
    drain()
    assert counts() == {"completed": 1}


def test_a_pool_that_is_used_up_says_so(holdfast_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.database.pools.CONNECT_TIMEOUT", 0.1)
    with (
        Holdfast(holdfast_dsn, pool_size=1) as hf,
        hf.database.pooled_connection(),
        pytest.raises(DatabaseUnavailable, match="all 1 connections of the pool were in use"),
    ):
        hf.enqueue("noop")


def test_connections_that_nobody_needs_are_closed_after_a_while(
    hf: Holdfast, ask: Ask, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = [threading.Thread(target=hf.enqueue, args=("noop",)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.setattr("holdfast.database.pools.IDLE_SECONDS", 0)
    hf.enqueue("noop")
    ours = "select count(*) from pg_stat_activity where application_name = 'holdfast' and datname = %s"
    database = ask("select current_database()")[0][0]
    until(lambda: ask(ours, database) <= [(1,)])


def test_a_connection_left_in_a_transaction_is_not_used_again(hf: Holdfast) -> None:
    with hf.database.pooled_connection() as connection:
        connection.execute("begin")
    with hf.database.pooled_connection() as another:
        assert another is not connection
        assert connection.closed


def test_a_fork_uses_connections_of_its_own(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    with hf.database.pooled_connection() as before:
        pass
    monkeypatch.setattr("os.getpid", lambda: 0)
    with hf.database.pooled_connection() as after:
        assert after is not before
    before.close()


def test_a_database_without_an_encoding_of_its_own_will_do(holdfast_server: str) -> None:
    name = f"holdfast_ascii_{uuid4().hex[:8]}"
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute(f"create database {name} encoding 'SQL_ASCII' template template0 locale 'C'")
        try:
            with Holdfast(make_conninfo(holdfast_server, dbname=name)) as hf:
                hf.migrate()
                greet = hf.task(name="greet")(lambda who: f"good day, {who}")
                jobs = [greet.enqueue(who="Zoë"), *hf.enqueue_many(greet.call(who="Zoë") for _ in range(200))]
                hf.worker().run(drain=True)
                assert {job.refresh().result for job in jobs} == {"good day, Zoë"}
        finally:
            server.execute(f"drop database {name} with (force)")


def test_where_nobody_listens_the_error_says_who_named_the_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without = r"Without a DSN, Holdfast uses an embedded PostgreSQL\.$"
    for dsn in ("postgresql://me@127.0.0.1:1/jobs", "host=nowhere.invalid", f"host={tmp_path}"):
        monkeypatch.delenv("HOLDFAST_DSN", raising=False)
        with Holdfast(dsn) as hf, pytest.raises(DatabaseUnavailable, match=rf"Check the DSN\. {without}"):
            hf.enqueue("noop")
        monkeypatch.setenv("HOLDFAST_DSN", dsn)
        said = rf"HOLDFAST_DSN names this database\. {without}"
        with Holdfast() as hf, pytest.raises(DatabaseUnavailable, match=said):
            asyncio.run(hf.aenqueue("noop"))

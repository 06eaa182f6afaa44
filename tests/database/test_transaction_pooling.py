"""Behind PgBouncer in transaction mode, nothing may live in a session."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName

from holdfast import Context, DatabaseUnavailable, Holdfast, Retry
from holdfast.database import Database, pooler
from holdfast.database.translation import translated
from tests.fixtures import Ask, Counts, Drain, StartWorker, Until
from tests.waiting import Told

CHANGED = """
    select name, setting from pg_settings
    where name in ('synchronous_commit', 'lock_timeout', 'default_transaction_isolation') order by name
"""


@pytest.fixture
def pgbouncer(holdfast_dsn: str, until: Until) -> Iterator[str]:
    """The DSN of a PgBouncer in transaction mode, with two server connections that all have to share."""
    with pgbouncer_in("transaction", 2, holdfast_dsn, until) as dsn:
        yield dsn


@contextmanager
def pgbouncer_in(mode: str, size: int, holdfast_dsn: str, until: Until) -> Iterator[str]:
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if not binary:
        pytest.skip("PgBouncer is not installed")
    to = conninfo_to_dict(holdfast_dsn)
    with psycopg.connect(holdfast_dsn, autocommit=True) as connection:
        connection.execute(f'alter database "{to["dbname"]}" set synchronous_commit = on')
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        home = Path(name)
        (home / "users").write_text(f'"{to["user"]}" ""\n')
        (home / "ini").write_text(
            f"[databases]\n* = host={to['host']} port={to['port']}\n"
            f"[pgbouncer]\nlisten_addr =\nunix_socket_dir = {home}\nlisten_port = 6432\nauth_type = trust\n"
            f"auth_file = {home}/users\npool_mode = {mode}\ndefault_pool_size = {size}\n"
            f"logfile = {home}/log\nmax_client_conn = 100\n"
        )
        owner = Path(str(to["host"])).owner()  # only the server's own user may use its socket
        user = ["-u", owner] if os.geteuid() == 0 else []
        home.chmod(0o777)
        process = subprocess.Popen([binary, "-q", *user, str(home / "ini")], stderr=subprocess.DEVNULL)
        dsn = make_conninfo(holdfast_dsn, host=name, port=6432)
        try:
            until(lambda: answers(dsn), say=(home / "log").read_text)
            yield dsn
        finally:
            process.terminate()
            process.wait()


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_worker_runs_through_pgbouncer_and_leaves_its_sessions_as_they_were(
    pgbouncer: str, work: StartWorker, until: Until, counts: Counts
) -> None:
    with psycopg.connect(pgbouncer, autocommit=True, prepare_threshold=None) as stranger:
        before = stranger.execute(CHANGED).fetchall()
        with Holdfast(pgbouncer, transaction_pooling=True) as hf:

            @hf.task(name="twice")
            async def twice(ctx: Context) -> Retry | None:
                return Retry(after=0.05) if ctx.attempt == 1 else None

            worker = work(hf, poll_interval=0.1, lease_time=1)
            for _ in range(10):
                hf.enqueue_many(twice.call() for _ in range(10))
                twice.enqueue()
            until(lambda: counts() == {"completed": 110}, say=counts)
            for _ in range(20):
                assert stranger.execute(CHANGED).fetchall() == before
                assert stranger.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
                assert stranger.execute("select count(*) from pg_listening_channels()").fetchone() == (0,)
            worker.end()


def test_the_doctor_names_the_setting_for_a_pooler(pgbouncer: str) -> None:
    for said, severity, remedy in (
        (False, "critical", "Leave out transaction_pooling=False"),
        (None, "info", "transaction_pooling=True"),
    ):
        with Holdfast(pgbouncer, transaction_pooling=said) as hf:
            (finding,) = (found for found in hf.health.doctor() if found.name == "pooling")
            assert finding.severity == severity
            assert remedy in (finding.remedy or "")
    with Holdfast(pgbouncer, transaction_pooling=True) as hf:
        assert [found for found in hf.health.doctor() if found.name == "pooling"] == []


def test_the_doctor_needs_no_second_session(holdfast_dsn: str, until: Until) -> None:
    with (
        pgbouncer_in("transaction", 1, holdfast_dsn, until) as dsn,
        Holdfast(dsn, transaction_pooling=False) as hf,
    ):
        assert "pooling" in [found.name for found in hf.health.doctor()]


def test_a_pooler_that_nobody_has_told_of_is_found_and_nothing_is_left_in_its_sessions(
    pgbouncer: str, work: StartWorker, until: Until, counts: Counts, told: Told
) -> None:
    with psycopg.connect(pgbouncer, autocommit=True, prepare_threshold=None) as stranger:
        before = stranger.execute(CHANGED).fetchall()
        with Holdfast(pgbouncer) as hf, Holdfast(pgbouncer) as producer:

            @hf.task(name="twice")
            async def twice(ctx: Context) -> int | Retry:
                return Retry(after=0.05) if ctx.attempt == 1 else 2

            worker = work(hf, poll_interval=0.1, lease_time=1)
            for _ in range(10):
                hf.enqueue_many(twice.call() for _ in range(10))
                twice.enqueue()
            last = producer.enqueue("twice")
            assert asyncio.run(producer.aenqueue("twice")).result(timeout=15) == 2
            assert last.result(timeout=15) == 2
            until(lambda: counts() == {"completed": 112}, say=counts)
            for _ in range(20):
                assert stranger.execute(CHANGED).fetchall() == before
                assert stranger.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
                assert stranger.execute("select count(*) from pg_listening_channels()").fetchone() == (0,)
            worker.end()
            assert len(told.named("pooler.found")) == 2, "once for each Holdfast"


def test_a_process_that_only_waits_finds_the_pooler_too(pgbouncer: str, hf: Holdfast, drain: Drain) -> None:
    job = hf.enqueue("double", {"number": 21})

    @hf.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    with Holdfast(pgbouncer) as waiting:
        drain()
        assert waiting.job(job.id).result(timeout=15) == 42
        assert waiting.database.transaction_pooling is True


def test_the_command_line_works_through_a_pooler_that_nobody_has_told_of(
    pgbouncer: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(
        "from holdfast import Holdfast\nhf = Holdfast()\n@hf.task(name='tidy')\ndef tidy(): ...\n"
    )

    def holdfast(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments],
            cwd=tmp_path,
            env={**os.environ, "HOLDFAST_DSN": pgbouncer},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    with Holdfast(pgbouncer, transaction_pooling=False) as careless:
        for _ in range(3):
            holdfast("enqueue", "tidy")
        careless.enqueue("tidy")  # leaves a prepared statement where the next command may meet it
        holdfast("enqueue", "tidy")
        holdfast("worker", "app:hf", "--drain")
        assert '"completed"' in holdfast("jobs", "--json")
        assert [job.state for job in careless.jobs.list()] == ["completed"] * 5


def test_an_error_names_the_setting_where_sessions_are_kept_against_all_advice(pgbouncer: str) -> None:
    with (
        Holdfast(pgbouncer, transaction_pooling=False) as one,
        Holdfast(pgbouncer, transaction_pooling=False) as other,
    ):
        one.enqueue("tidy")
        with pytest.raises(DatabaseUnavailable, match="transaction_pooling=True"):
            other.enqueue("tidy")  # in the same session, where its statement is prepared already


@pytest.mark.parametrize("state", [InvalidSqlStatementName, DuplicatePreparedStatement])
def test_both_errors_of_a_lost_session_name_the_setting(state: type[Exception]) -> None:
    with pytest.raises(DatabaseUnavailable, match="transaction_pooling=True"), translated():
        raise state("prepared statement")


def test_sessions_that_are_kept_are_used_behind_a_pooler_in_session_mode(
    holdfast_dsn: str, until: Until, work: StartWorker, ask: Ask, told: Told
) -> None:
    with pgbouncer_in("session", 20, holdfast_dsn, until) as dsn, Holdfast(dsn) as hf:

        @hf.task(name="wake")
        async def wake() -> None: ...

        worker = work(hf, poll_interval=60)
        until(lambda: ask("select asleep from holdfast.worker where left_at is null") == [(True,)])
        wake.enqueue().result(timeout=15)
        worker.end()
        assert hf.database.transaction_pooling is False
        assert told.named("pooler.found") == []


def test_a_pool_that_has_no_session_left_is_not_waited_for(
    holdfast_dsn: str, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooler, "_PATIENCE_SECONDS", 0.1)
    with pgbouncer_in("session", 1, holdfast_dsn, until) as dsn, psycopg.connect(dsn) as all_there_is:
        all_there_is.execute("select 1")
        assert pooler.share_sessions(dsn) is False


def test_without_a_pooler_there_is_none(hf: Holdfast, told: Told) -> None:
    hf.enqueue("tidy")
    assert hf.database.transaction_pooling is False
    assert told.named("pooler.found") == []


def test_nothing_is_prepared_listened_for_or_set(
    hf: Holdfast,
    holdfast_dsn: str,
    work: StartWorker,
    until: Until,
    counts: Counts,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same without a PgBouncer, as far as the server can tell."""
    monkeypatch.delattr(Database, "listening_session")
    with Holdfast(holdfast_dsn, transaction_pooling=True) as pooled:

        @pooled.task(name="noop")
        async def noop() -> None: ...

        worker = work(pooled, poll_interval=0.05)
        for _ in range(12):
            noop.enqueue()
        until(lambda: counts() == {"completed": 12})
        names = {row[0] for row in ask("select application_name from pg_stat_activity where state = 'idle'")}
        assert not {name for name in names if name.startswith("holdfast ")}
        assert ask("select count(*) from holdfast.worker where asleep") == [(0,)]
        worker.end()


def test_all_that_the_guide_promises_works_through_pgbouncer(
    pgbouncer: str, holdfast_dsn: str, work: StartWorker, until: Until, ask: Ask, told: Told
) -> None:
    with Holdfast(pgbouncer, transaction_pooling=True) as pooled:
        ask("drop schema holdfast cascade")
        assert pooled.migrate()
        assert pooled.migrate() == []
        pooled.verify()
        ask("create table public.row (number integer)")

        @pooled.task(name="double")
        def double(number: int, ctx: Context) -> None:
            ctx.event("seen", {"number": number})
            with ctx.transaction() as connection:
                connection.execute("insert into public.row values (%s)", [number])
                ctx.set_result(2 * number)

        # A transaction, and what its handler says meanwhile, take both connections that there are.
        worker = work(pooled, poll_interval=0.1, concurrency=1)
        jobs = pooled.enqueue_many(double.call(number=it) for it in range(150))  # type: ignore[call-arg] # by COPY
        assert pooled.jobs.gather(jobs, timeout=15) == [2 * it for it in range(150)]
        assert ask("select count(*), count(distinct number) from public.row") == [(150, 150)]
        assert "seen" in [event.name for event in jobs[0].events(follow=False)]
        worker.end()

        with Holdfast(holdfast_dsn) as direct:  # a worker that listens hears of what is enqueued through it

            @direct.task(name="wake")
            async def wake() -> None: ...

            worker = work(direct, poll_interval=60)
            until(lambda: ask("select asleep from holdfast.worker where left_at is null") == [(True,)])
            pooled.enqueue("wake").result(timeout=15)
            worker.end()

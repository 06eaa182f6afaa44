"""Behind PgBouncer in transaction mode, nothing may live in a session."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import Context, Holdfast, Retry
from holdfast.database import Database

CHANGED = """
    select name, setting from pg_settings
    where name in ('synchronous_commit', 'lock_timeout', 'default_transaction_isolation') order by name
"""


@pytest.fixture
def pgbouncer(holdfast_dsn, until):
    """The DSN of a PgBouncer in transaction mode, with two server connections that all have to share."""
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
            f"auth_file = {home}/users\npool_mode = transaction\ndefault_pool_size = 2\n"
            f"logfile = {home}/log\nmax_client_conn = 100\n"
        )
        owner = Path(to["host"]).owner()  # only the server's own user may use its socket
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


def test_a_worker_runs_through_pgbouncer_and_leaves_its_sessions_as_they_were(pgbouncer, work, until, counts):
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


def test_a_pooler_that_nobody_has_told_of_is_found_by_the_doctor(pgbouncer):
    with Holdfast(pgbouncer) as unaware, Holdfast(pgbouncer, transaction_pooling=True) as aware:
        (finding,) = (found for found in unaware.doctor() if found.name == "pooling")
        assert finding.severity == "critical"
        assert "transaction_pooling=True" in (finding.remedy or "")
        assert [found for found in aware.doctor() if found.name == "pooling"] == []


def test_nothing_is_prepared_listened_for_or_set(
    hf: Holdfast, holdfast_dsn, work, until, counts, ask, monkeypatch
):
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


def test_all_that_the_guide_promises_works_through_pgbouncer(pgbouncer, holdfast_dsn, work, until, ask, told):
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
        jobs = pooled.enqueue_many(double.call(number=it) for it in range(150))  # by COPY
        assert pooled.gather(jobs, timeout=15) == [2 * it for it in range(150)]
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

"""pg_cron itself, where the PostgreSQL that the tests use has it: once a minute before 1.5, so be patient."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from holdfast import Holdfast, embedded
from holdfast.database.pg_cron import pg_cron_script
from tests.sql.sessions import sessions_on

A_MINUTE = 75.0  # and some seconds, for a machine that is busy
RUNS = "select status, return_message from cron.job_run_details"


@pytest.fixture
def server(server_home: Path) -> Iterator[str]:
    """The DSN of a server of its own, on which pg_cron runs."""
    # Background workers need no address: the server has only a socket.
    settings = {"fsync": "off", "cron.use_background_workers": "on", "cron.database_name": "postgres"}
    try:
        with embedded.start(
            server_home, settings=settings | {"shared_preload_libraries": "pg_cron"}
        ) as server:
            yield server.dsn
    except embedded.ServerNotStarted as error:
        if "pg_cron" not in str(error):
            raise
        pytest.skip("THIS PostgreSQL HAS NO pg_cron. Debian's has: let HOLDFAST_PG_BIN name it")


def test_the_lines_for_a_dba_bring_due_jobs_and_schedules(server: str) -> None:
    with Holdfast(server) as hf:
        hf.migrate()
        script = pg_cron_script(hf.database)
    with sessions_on(make_conninfo(server, dbname="postgres")) as connect:
        cron = connect()
        cron("create extension pg_cron")
        if cron.one("select extversion from pg_extension where extname = 'pg_cron'").startswith("1.4"):
            script = script.replace("'10 seconds'", "'* * * * *'")
        with sessions_on(server) as connect_to_holdfast:
            sql = connect_to_holdfast()
            delayed = sql.enqueue(delay="1 second")
            sql.value("add_schedule", name="beat", task="beat", every="1 second")
            worker = sql.value("register", lease_time="1 hour")
            sql(f"listen {sql.one('select quote_ident(holdfast.channel(%s))', '*')}")
            sql.value("sleep", worker=worker)
            sql.until(lambda: sql.one("select next_at <= now() from holdfast.list_schedules()"))
            cron(script)
            assert [*sql.connection.notifies(timeout=A_MINUTE, stop_after=1)], cron(RUNS)
            assert sql.state(delayed) == "pending", cron(RUNS)
            assert {job.task for job in sql.claim_all(worker=worker)} == {"task", "beat"}
        cron("select cron.unschedule(jobid) from cron.job")

"""A doctor who is silent on a healthy system, and finds each of these illnesses."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import schema
from tests.sql.sessions import Background, Connect, Session, sessions_on

Found = Callable[[str], list[Any]]
Undone = Callable[[], AbstractContextManager[Any]]

# How the server of the tests is set on purpose: found, and nothing else but that.
CARELESS = {"fsync": "critical", "full_page_writes": "critical", "synchronous_commit": "warning"}


@pytest.fixture
def found(sql: Session) -> Found:
    """What the doctor finds by that name: `found("indexes")`."""

    def find(name: str) -> list[Any]:
        return [row for row in sql.rows("doctor") if row.name == name]

    return find


@contextmanager
def later(sql: Session, seconds: float) -> Iterator[None]:
    """What the doctor would say then."""
    sql("select holdfast.test_advance(%s)", seconds)
    yield
    sql("select holdfast.test_advance(%s)", -seconds)


@pytest.fixture
def undone(sql: Session) -> Undone:
    """Whatever is done to the schema in here is undone: `with undone(): …`."""
    return lambda: sql.connection.transaction(force_rollback=True)


def one(findings: list[Any]) -> Any:
    (finding,) = findings
    return finding


# Health.


@pytest.fixture
def app(holdfast_server: str) -> Iterator[Session]:
    """A session of an ordinary role that owns a fresh database."""
    name = f"holdfast_doctor_{uuid4().hex[:8]}"
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute(f"create role {name} login")
        server.execute(f"create database {name} owner {name}")
        try:
            with sessions_on(make_conninfo(holdfast_server, dbname=name, user=name)) as connect:
                yield connect(application_name="holdfast")
        finally:
            server.execute(f"drop database {name} with (force)")
            server.execute(f"drop role {name}")


def test_a_healthy_system_with_a_worker_at_work_is_silent(app: Session) -> None:
    schema.apply(app.connection)
    worker = app.value("register", name="web-1")
    for number in range(20):
        app.enqueue("report", payload=f'{{"number": {number}}}')
    assert [row.error for row in app.rows("tick") if row.error] == []
    app.finish(app.claim(10, worker=worker))
    app.claim(5, worker=worker)
    app.enqueue("report", delay="1 hour")
    silent: list[Any] = []
    loud: list[Any] = []
    for row in app.rows("doctor", healthy=True):
        (silent if row.severity == "ok" else loud).append(row)
    assert {row.detail["setting"]: row.severity for row in loud} == CARELESS
    assert len(silent) >= 24
    assert app.rows("doctor") == loud


def test_a_check_that_fails_says_so_and_stops_no_other(sql: Session, found: Found, undone: Undone) -> None:
    with undone():
        sql(
            "create or replace function holdfast.doctor_version(now_at timestamptz) "
            "returns table (severity text, finding text, remedy text, detail jsonb) "
            "language plpgsql as $$ begin raise 'out of order'; end $$"
        )
        assert one(found("version")).severity == "info"
        assert one(found("version")).finding == "This check could not be made: out of order."
        assert found("test_clock")


# Illnesses of the server.


def test_settings_that_endanger_jobs_are_found(sql: Session, found: Found, undone: Undone) -> None:
    careless = {row.detail["setting"]: row.severity for row in found("settings")}
    assert careless == CARELESS
    with undone():
        sql(f"alter database {sql.connection.info.dbname} set default_transaction_isolation = 'serializable'")
        sql("alter table holdfast.finished_default set (autovacuum_enabled = off)")
        assert "HF009" in next(row for row in found("settings") if "isolation" in row.finding).finding
        assert [row.remedy for row in found("settings") if "Autovacuum" in row.finding] == [
            "alter table holdfast.finished_default reset (autovacuum_enabled);"
        ]


def test_timeouts_that_cut_workers_off_are_found(sql: Session, found: Found, undone: Undone) -> None:
    assert found("timeouts") == []
    with undone():
        sql(f"alter database {sql.connection.info.dbname} set statement_timeout = '5s'")
        assert "statement_timeout is 5 s for this database" in one(found("timeouts")).finding


def test_who_holds_an_old_snapshot_is_named(sql: Session, other: Session, found: Found) -> None:
    with other.transaction("repeatable read"):
        other("select 1")
        assert found("snapshots") == []
        with later(sql, 3600):
            finding = one(found("snapshots"))
        assert finding.severity == "warning"
        assert finding.detail["pid"] == other.pid
        assert f"pg_terminate_backend({other.pid})" in finding.remedy
        with later(sql, 86400):
            assert one(found("snapshots")).severity == "critical"


def test_a_prepared_transaction_is_found_and_a_transaction_that_enqueued_too(
    sql: Session, other: Session, found: Found
) -> None:
    other("set holdfast.notify = off")
    other("begin")
    other.enqueue()
    with later(sql, 120):
        finding = one(found("long_transactions"))
        assert finding.detail["pid"] == other.pid
        assert "live RowExclusiveLock" in finding.detail["locks"]
        assert found("snapshots") == []  # said once
    other("prepare transaction 'forgotten'")
    with later(sql, 120):
        finding = one(found("prepared"))
        assert "no head can be proven" in finding.finding
        assert "rollback prepared 'forgotten'" in finding.remedy
    other("rollback prepared 'forgotten'")
    assert found("prepared") == []


def test_who_waits_for_a_lock_on_our_tables_is_found(
    sql: Session, other: Session, connect: Connect, background: Background, found: Found
) -> None:
    with other.connection.transaction():
        other("lock table holdfast.finished in access exclusive mode")
        third = connect()
        done = background(lambda: third("select count(*) from holdfast.finished"))
        sql.until(lambda: sql.is_waiting(third))
        with later(sql, 10):
            (_, finding, _, detail) = one(sql("select * from holdfast.doctor_blocked(holdfast.clock())"))
        assert "holdfast.finished" in finding
        assert detail["blocked_by"] == [other.pid]
    done()


# Illnesses of the tables.


def test_missing_invalid_and_foreign_indexes_are_found(sql: Session, found: Found, undone: Undone) -> None:
    with undone():
        sql("drop index holdfast.job_due")
        sql("create index somebodys on holdfast.job (created_at)")
        sql("update pg_index set indisvalid = false where indexrelid = 'holdfast.dead_letter_time'::regclass")
        assert {(row.severity, row.detail["index"]) for row in found("indexes")} == {
            ("critical", "job_due"),
            ("critical", "dead_letter_time"),
            ("warning", "somebodys"),
        }
        (remedy,) = (row.remedy for row in found("indexes") if row.severity == "warning")
        sql(remedy.partition(";")[0])
        assert {row.severity for row in found("indexes")} == {"critical"}


def test_every_index_that_the_migrations_make_is_one_that_is_looked_for(sql: Session, found: Found) -> None:
    """What is looked for and not there is found; here is what is there and not looked for."""
    assert found("indexes") == []
    body = sql.one("select prosrc from pg_proc where oid = 'holdfast.doctor_indexes'::regproc")
    hot = "'live', 'lane', 'running', 'worker', 'finished', 'dead_letter', 'event', 'step', 'used_id'"
    names = sql(
        "select i.relname from pg_index x join pg_class i on i.oid = x.indexrelid "
        "join pg_class t on t.oid = x.indrelid where t.relnamespace = 'holdfast'::regnamespace "
        f"and t.relname in ({hot})"
    )
    assert [name for (name,) in names if f"'{name}'" not in body] == []


def test_triggers_that_are_off_and_those_of_others_are_found(
    sql: Session, found: Found, undone: Undone
) -> None:
    with undone():
        sql("alter table holdfast.job disable trigger job_guard")
        sql(
            "create function public.spy() returns trigger language plpgsql as $$ begin return null; end $$; "
            "create trigger spy after insert on holdfast.job for each row execute function public.spy()"
        )
        assert {(row.severity, row.detail["trigger"]) for row in found("triggers")} == {
            ("critical", "job_guard"),
            ("warning", "spy"),
        }


def test_sequences_at_their_end_or_with_a_cache_are_found(sql: Session, found: Found, undone: Undone) -> None:
    with undone():
        sql("alter sequence holdfast.event_seq restart 9000000000000000000")
        sql("select nextval('holdfast.event_seq')")
        sql("alter sequence holdfast.job_seq cache 20")
        assert [row.detail["sequence"] for row in found("sequences")] == ["event_seq", "job_seq"]


def test_missing_partitions_are_found(sql: Session, found: Found) -> None:
    assert found("partitions") == []
    with later(sql, 6.5 * 86400):
        assert found("partitions") == [], "nobody has begun"
    sql.value("upkeep")
    with later(sql, 6.5 * 86400):
        assert {row.severity for row in found("partitions")} == {"warning"}
    with later(sql, 20 * 86400):
        assert {row.severity for row in found("partitions")} == {"critical"}


# Illnesses of the work.


def test_duties_that_fail_or_that_nobody_does_are_found(sql: Session, found: Found) -> None:
    sql("select holdfast.note_duty('promote', 'disk full')")
    assert one(found("duties")).finding.endswith("disk full")
    sql("delete from holdfast.duty")
    assert found("duties") == []  # nothing is to be done
    sql.enqueue()
    assert one(found("duties")).severity == "critical"
    sql.rows("tick")
    assert found("duties") == []


def test_a_queue_that_has_nearly_all_its_lanes_is_found(sql: Session, found: Found) -> None:
    sql.rows("configure", queue="mail", settings='{"lane_limit": 5}')
    for task in ("a", "b", "c"):
        sql.enqueue(task, queue="mail")
    assert found("lanes") == []
    sql.enqueue("d", queue="mail")
    warning = one(found("lanes"))
    assert warning.severity == "warning"
    assert warning.detail == {"queue": "mail", "lanes": 4, "limit": 5}
    assert "lane_limit=10" in warning.remedy


def test_very_many_lanes_are_found(sql: Session, found: Found) -> None:
    sql(
        "insert into holdfast.lane (queue, priority, task) "
        "select 'q' || n % 10, 100, 't' || n from generate_series(1, 20001) n"
    )
    assert one(found("lanes")).detail == {"lanes": 20001}


def test_jobs_without_a_lane_are_found(sql: Session, found: Found) -> None:
    sql.enqueue("a")
    sql.enqueue("b", queue="q")
    assert found("lanes") == []
    sql("delete from holdfast.lane where queue = 'q'")
    critical = one(found("lanes"))
    assert critical.severity == "critical"
    assert "of task b" in critical.finding


def test_heads_that_do_not_move_and_jobs_behind_one_are_found(sql: Session, found: Found) -> None:
    sql.enqueue()
    sql("update holdfast.lane set head = 5000, safe_head = 5000")
    assert one(found("heads")).severity == "critical"
    sql("update holdfast.lane set head = 1, safe_head = 1")
    sql.finish(sql.claim_all())
    sql("select setval('holdfast.job_seq', 300000)")
    assert "do not move" in one(found("heads")).finding


def test_lost_and_silent_workers_are_found(sql: Session, found: Found) -> None:
    worker = sql.value("register", name="web-1", host="ship", pid=42)
    assert found("workers") == []
    with later(sql, 20):
        assert "web-1 (host ship, pid 42) has not been heard of for 20 s" in one(found("workers")).finding
    sql.lose(worker)
    assert one(found("workers")).finding.startswith("1 worker was lost in the last hour")


def test_who_claims_by_hand_and_leaves_nothing_behind_is_no_lost_worker(sql: Session, found: Found) -> None:
    sql.enqueue_many(2)
    done, left = sql.claim_one(), sql.claim_one()
    sql.finish([done])
    with later(sql, 20):
        assert str(left.worker)[:8] in one(found("workers")).finding
    sql.lose(done.worker)
    assert found("workers") == []
    sql.lose(left.worker)
    assert one(found("workers")).finding.startswith("1 worker was lost in the last hour, with 1 job")


def test_jobs_that_nobody_serves_are_found(sql: Session, found: Found) -> None:
    sql.enqueue("orphan", queue="mail")
    assert found("unserved") == []  # it came a moment ago
    with later(sql, 600):
        assert one(found("unserved")).severity == "critical"
        sql.value("register", queues=["mail"], tasks=["other"])
        finding = one(found("unserved"))
        assert finding.severity == "warning"
        assert "task orphan in queue mail has waited for 10 min" in finding.finding
        sql.value("pause", queue="mail")
        assert found("unserved") == []


def test_dead_letters_that_pile_up_are_found(sql: Session, found: Found) -> None:
    sql.enqueue_many(100, max_attempts=[1] * 100)
    sql.finish(sql.claim_all(), "failed", errors=["no"] * 100)
    assert one(found("dead_letters")).finding == "100 jobs died in the last hour."


def test_large_payloads_and_endless_attempts_are_found(sql: Session, found: Found) -> None:
    sql.enqueue("heavy", payload=f'{{"blob": "{"x" * 30000}"}}')
    sql.enqueue("endless", max_attempts=30000, queue="other")
    sql.value("set_retry_policy", task="stubborn", max_attempts=10000)
    assert "for task heavy" in one(found("payloads")).finding
    assert {row.detail["of"] for row in found("attempts")} == {
        "A waiting job of task endless",
        "Task stubborn",
    }


def test_rights_that_are_too_wide_are_found(sql: Session, found: Found) -> None:
    assert found("rights") == []
    sql("create role holdfast_meddler")
    try:
        with sql.connection.transaction(force_rollback=True):
            sql("grant usage on schema holdfast to public")
            sql("grant select on holdfast.job to public")
            sql("grant execute on function holdfast.tick() to public")
            sql("grant update on holdfast.job to holdfast_meddler")
            severities = [row.severity for row in found("rights")]
            assert severities == ["critical", "critical", "critical", "warning"]
            assert "holdfast_meddler may update on holdfast.job" in found("rights")[-1].finding
            sql("grant update on holdfast.live to holdfast_meddler")  # where nothing is checked
            assert [row.severity for row in found("rights")] == ["critical"] * 4
    finally:
        sql("drop role holdfast_meddler")


def test_a_superuser_at_work_is_mentioned_but_on_an_embedded_server(
    sql: Session, connect: Connect, found: Found
) -> None:
    connect(application_name="holdfast")
    assert found("rights") == []
    sql("set holdfast.embedded = off")
    assert one(found("rights")).severity == "info"


def test_advice_comes_with_a_volume_that_is_sustained(sql: Session, found: Found) -> None:
    assert found("volume") == []
    sql.enqueue_many(3000)
    sql.finish(sql.claim_all())
    sql("select holdfast.fold_stats()")
    assert found("volume") == [], "a burst of a moment is no volume"
    sql(
        "insert into holdfast.stat select 'minute', m, 'mail', 'mail', 90000, 0, 0, 0, 0, 0, '{}', '{}' "
        "from generate_series(date_trunc('hour', holdfast.clock()) - interval '2 hours', "
        "date_trunc('hour', holdfast.clock()) - interval '61 minutes', '1 minute') m"
    )
    advice = found("volume")
    assert advice
    assert {row.severity for row in advice} == {"info"}
    assert "About 1,500 jobs a second end here in the busiest hour." in advice[0].finding

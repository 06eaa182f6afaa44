"""The statements inside our functions use the indexes that were made for them, whatever the planner knows.

auto_explain shows the plan of every statement that runs inside a function, with what it really read.
"""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.sql.servers import server_with, template
from tests.sql.sessions import Session, copied_database, without_autovacuum

BACKLOG = 200_000
MANY = 20  # lanes


@pytest.fixture(scope="session")
def holdfast_server() -> Iterator[str]:
    with server_with("auto_explain") as server:
        yield server


@pytest.fixture(scope="session")
def holdfast_template(holdfast_server: str) -> str:
    return template(holdfast_server, "holdfast_plans")


@pytest.fixture(scope="module")
def holdfast_dsn(holdfast_server: str, holdfast_template: str) -> Iterator[str]:
    """A large backlog, in one lane and in many, that nothing has ever analyzed."""
    with copied_database(holdfast_server, holdfast_template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            without_autovacuum(connection)
            connection.execute(
                "insert into holdfast.job (lane_id, task) "
                "select l, 'one' from holdfast.lane('one', 100, 'one') l, generate_series(1, %s)",
                [BACKLOG // 2],
            )
            connection.execute(
                "insert into holdfast.job (lane_id, task) "
                "select l.id, l.task from generate_series(1, %s) n join ("
                "  select t, holdfast.lane('many', 100, 'many' || t) as id, 'many' || t as task "
                "  from generate_series(0, %s) t) l on l.t = n %% %s",
                [BACKLOG // 2, MANY - 1, MANY],
            )
        yield dsn


@pytest.fixture(scope="module", params=["never analyzed", "analyzed", "eager jit"])
def planner(request: pytest.FixtureRequest, holdfast_dsn: str) -> Iterator[str]:
    """What the planner knows and likes; one after the other, for the whole file."""
    with psycopg.connect(holdfast_dsn, autocommit=True) as connection:
        known = connection.execute(
            "select from pg_stats where schemaname = 'holdfast' and tablename = 'live'"
        )
        if request.param == "never analyzed":
            assert known.rowcount == 0
        elif request.param == "analyzed":
            connection.execute("analyze holdfast.live, holdfast.lane, holdfast.running, holdfast.worker")
        else:
            database = connection.info.dbname
            for setting in ("jit_above_cost = 0", "jit_inline_above_cost = 0", "jit_optimize_above_cost = 0"):
                connection.execute(f"alter database {database} set {setting}")
            connection.execute(f"alter database {database} set jit = on")
        yield request.param
        connection.execute(f"alter database {connection.info.dbname} reset all")


class Explained:
    """`explained(function, …)` calls it, undoes it, and returns the plans of the statements inside."""

    def __init__(self, sql: Session) -> None:
        self.rows: list[Any] = []  # what the last call returned
        self._sql = sql
        self._plans: list[dict[str, Any]] = []
        sql.connection.add_notice_handler(self._note)

    def __call__(self, function: str, **arguments: Any) -> list[dict[str, Any]]:
        self._plans.clear()
        self._sql("set auto_explain.log_min_duration = 0")
        try:
            self.rows = self._sql.rows(function, **arguments)
        finally:
            self._sql("set auto_explain.log_min_duration = -1")
        inside = [plan for plan in self._plans if f"from holdfast.{function}(" not in plan["Query Text"]]
        assert inside
        return inside

    def _note(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        text = diagnostic.message_primary
        if text and "plan:" in text:
            self._plans.append(json.loads(text[text.index("{") :]))


@pytest.fixture
def explained(planner: str, sql: Session) -> Explained:
    """What explains functions on a session that logs its plans."""
    sql("load 'auto_explain'")
    for setting, value in {
        "auto_explain.log_analyze": "on",
        "auto_explain.log_timing": "off",
        "auto_explain.log_nested_statements": "on",
        "auto_explain.log_format": "json",
        "auto_explain.log_level": "notice",
    }.items():
        sql(f"set {setting} = {value}")
    return Explained(sql)


def nodes(plans: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every node of these plans."""
    todo = [plan["Plan"] for plan in plans]
    while todo:
        node = todo.pop()
        todo += node.get("Plans", [])
        yield node


def scans(plans: Any, table: str) -> set[tuple[str, str | None]]:
    """How a table was read: the kind of each scan, and its index."""
    return {
        (
            node["Node Type"],
            (node["Plans"][0] if node["Node Type"] == "Bitmap Heap Scan" else node).get("Index Name"),
        )
        for node in nodes(plans)
        if node.get("Relation Name") == table and node["Node Type"] != "ModifyTable"
    }


def indexes(plans: Any, table: str) -> set[str | None]:
    """The indexes by which a table was read, but for rows whose place was known already."""
    return {index for kind, index in scans(plans, table) if kind != "Tid Scan"}


def rows_read(plans: Any, table: str) -> int:
    """How many rows came out of the scans of a table, kept or not."""
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes(plans)
        if node.get("Relation Name") == table and node["Node Type"] != "ModifyTable"
    )


DUE = {("Index Scan", "job_due"), ("Index Only Scan", "job_due")}
PENDING = {("Index Scan", "job_pending"), ("Index Only Scan", "job_pending"), ("Tid Scan", None)}


@pytest.mark.parametrize("queue", ["one", "many"])
def test_a_claim_reads_the_index_of_pending_jobs_and_only_as_far_as_it_must(
    sql: Session, explained: Explained, planner: str, queue: str
) -> None:
    with sql.connection.transaction(force_rollback=True):
        for _ in range(3):  # the first in a session, and with plans that are kept
            plans = explained("claim", amount=100, queues=[queue])
            assert len(explained.rows) == 100
            assert scans(plans, "live") <= PENDING
            lanes = 1 if queue == "one" else MANY
            looked_at = 100 * (1 + lanes if lanes > 1 else 1)  # to find the order between lanes
            # Once more to lock, once more to write, and a first look at each lane.
            assert rows_read(plans, "live") <= looked_at + 3 * 100 + lanes
            assert not any("JIT" in plan for plan in plans)
            assert not [node for node in nodes(plans) if node["Node Type"] in ("Hash Join", "Merge Join")]
    for node in nodes(plans):
        if node.get("Index Name") == "job_pending":
            assert "seq >= " in node["Index Cond"], "it reads from the head"


def test_a_claim_looks_at_lanes_by_their_index(sql: Session, explained: Explained, planner: str) -> None:
    with sql.connection.transaction(force_rollback=True):
        plans = explained("claim", amount=10)
    assert "Seq Scan" not in {kind for kind, _ in scans(plans, "lane")}


@pytest.mark.parametrize(
    "outcomes", [["completed"], ["failed", "released", "snoozed", "interrupted", "completed"]]
)
def test_a_finish_finds_its_jobs_by_their_primary_key(
    sql: Session, explained: Explained, planner: str, outcomes: list[str]
) -> None:
    with sql.connection.transaction(force_rollback=True):
        for _ in range(3):
            jobs = sql.claim(100, queues=["one"])
            ids, leases = [job.id for job in jobs], [job.lease for job in jobs]
            sql.rows("start", ids=ids[:50], leases=leases[:50])
            plans = explained(
                "finish", ids=ids, leases=leases, outcomes=(outcomes * 100)[:100], durations=[0.1] * 100
            )
            assert explained.rows == []
            assert indexes(plans, "live") == {"job_pkey"}
            assert indexes(plans, "running") == {"running_pkey"}
            assert rows_read(plans, "live") <= 100 * 10
            assert scans(plans, "finished") == set()
            assert not any("JIT" in plan for plan in plans)


def test_refused_reports_are_looked_up_by_index(sql: Session, explained: Explained, planner: str) -> None:
    ids = [uuid4() for _ in range(5)]
    plans = explained("finish", ids=ids, leases=ids)
    assert len(explained.rows) == 5
    looked_at = [node for node in nodes(plans) if node.get("Relation Name", "").startswith("finished_")]
    assert looked_at
    assert {node["Node Type"] for node in looked_at} <= {"Index Scan", "Bitmap Heap Scan", "Index Only Scan"}
    assert {index for _, index in scans(plans, "dead_letter")} == {"dead_letter_pkey"}


def test_the_duties_read_their_own_indexes(sql: Session, explained: Explained, planner: str) -> None:
    with sql.connection.transaction(force_rollback=True):
        worker = sql.value("register")
        sql.claim(100, worker=worker)
        sql("update holdfast.worker set heartbeat_at = heartbeat_at - interval '10 days'")
        plans = explained("recover", timeout="9 days")
        assert explained.rows[0][0] == 100
        assert indexes(plans, "live") == {"job_held", "job_pkey"}
    with sql.connection.transaction(force_rollback=True):
        sql.enqueue_many(50, delays=["1 hour"] * 50)
        sql("update holdfast.job set run_at = run_at - interval '1 day' where state = 'scheduled'")
        sql.value("check_heads")  # by hand: the low-water mark does not know of it
        plans = explained("promote")
        assert indexes(plans, "live") == {"job_due", "job_pkey"}
        assert rows_read(plans, "live") < 1000
    with sql.connection.transaction(force_rollback=True):
        plans = explained("advance")
        assert scans(plans, "live") <= PENDING | DUE
        assert rows_read(plans, "live") <= MANY + 2
    with sql.connection.transaction(force_rollback=True):
        plans = explained("check_heads")
        assert scans(plans, "live") <= PENDING | DUE


def test_an_enqueue_reads_no_jobs(sql: Session, explained: Explained, planner: str) -> None:
    with sql.connection.transaction(force_rollback=True):
        plans = explained("enqueue", task="one", queue="one", id=uuid4())
        assert scans(plans, "live") == set()
        assert {index for _, index in scans(plans, "used_id")} <= {"used_id_pkey"}


def test_a_heartbeat_touches_one_row(sql: Session, explained: Explained, planner: str) -> None:
    with sql.connection.transaction(force_rollback=True):
        plans = explained("heartbeat", worker=sql.value("register"))
        assert scans(plans, "live") == set()


def plan_of(sql: Session, query: str) -> list[dict[str, Any]]:
    return sql.one(f"explain (format json) {query}")


@pytest.mark.parametrize(
    "where",
    [
        "queue = 'one'",
        "queue = 'many' and state = 'pending'",
        "state = 'running'",
        "state = 'running' and queue = 'many'",
        "task = 'many1' and priority > 50",
        "true",
    ],
)
def test_the_jobs_view_never_reads_a_table_once_for_each_row_of_another(
    sql: Session, planner: str, where: str
) -> None:
    plans = plan_of(sql, f"select * from holdfast.jobs where {where}")
    for node in nodes(plans):
        if node["Node Type"] == "Nested Loop":
            for inner in nodes([{"Plan": node["Plans"][1]}]):
                large = inner.get("Relation Name", "").startswith(("live", "finished", "dead_letter"))
                assert not large or inner["Node Type"] != "Seq Scan", where


def test_the_jobs_view_reads_only_held_jobs_to_list_the_running_ones(sql: Session, planner: str) -> None:
    plans = plan_of(sql, "select * from holdfast.jobs where state = 'running'")
    assert indexes(plans, "live") == {"job_held"}


def test_one_job_is_found_by_its_id_wherever_it_is(sql: Session, planner: str) -> None:
    job_id = sql.one("select id from holdfast.job limit 1")
    plans = plan_of(sql, f"select * from holdfast.jobs where id = '{job_id}'")
    read = [
        node
        for node in nodes(plans)
        if node.get("Relation Name", "") not in ("", "worker", "lane", "running")
    ]
    assert {node["Node Type"] for node in read} <= {"Index Scan", "Bitmap Heap Scan"}


@pytest.fixture
def tombstones(sql: Session) -> Iterator[None]:
    """Workers that have left. They stay for a day."""
    sql(
        "insert into holdfast.worker (id, name, started_at, heartbeat_at, left_at) "
        "select gen_random_uuid(), 'gone', now(), now(), now() from generate_series(1, 5000)"
    )
    yield
    sql("delete from holdfast.worker where name = 'gone'")


@pytest.mark.usefixtures("tombstones")
def test_workers_are_counted_past_those_that_have_left(sql: Session, explained: Explained) -> None:
    sql.rows("do_duties")
    plans = explained("do_duties")
    assert len(explained.rows) == 1, "no duty was due"
    assert indexes(plans, "worker") == {"worker_registered"}
    assert rows_read(plans, "worker") < 100


@pytest.mark.usefixtures("tombstones")
def test_a_passed_wake_up_reads_one_job_of_each_lane(sql: Session, explained: Explained) -> None:
    worker = sql.value("register", queues=["many"], tasks=[f"many{lane}" for lane in range(MANY)])
    plans = explained("pass_on", worker=worker)
    assert scans(plans, "live") <= PENDING
    assert 0 < rows_read(plans, "live") <= MANY
    assert rows_read(plans, "worker") < 100


@pytest.mark.usefixtures("tombstones")
def test_the_search_for_missed_wake_ups_reads_a_job_of_ten_lanes(sql: Session, explained: Explained) -> None:
    worker = sql.value("register", queues=["many"], tasks=[f"many{lane}" for lane in range(MANY)])
    sql.value("sleep", worker=worker)
    plans = explained("wake_missed")
    assert scans(plans, "live") <= PENDING
    assert 0 < rows_read(plans, "live") <= 10
    sql.value("leave", worker=worker)

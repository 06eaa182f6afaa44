"""What the catalog says about our functions: they are described, safe to call, and as Python believes."""

import pytest

from holdfast.values import call
from tests.sql.sessions import Refused, Session

OURS = "p.pronamespace = 'holdfast'::regnamespace"


def test_every_function_has_a_comment(sql: Session) -> None:
    undescribed = sql(
        f"select p.oid::regprocedure::text from pg_proc p where {OURS} "
        "and nullif(obj_description(p.oid, 'pg_proc'), '') is null"
    )
    assert undescribed == []


def test_every_table_view_and_type_has_a_comment(sql: Session) -> None:
    undescribed = sql(
        "select c.relname from pg_class c where c.relnamespace = 'holdfast'::regnamespace "
        "and c.relkind in ('r', 'p', 'v', 'c') and c.relname <> 'test_clock' and not c.relispartition "
        "and nullif(obj_description(c.oid, 'pg_class'), '') is null "
        "and (c.relkind <> 'c' or obj_description(c.reltype, 'pg_type') is null)"
    )
    assert undescribed == []


def test_functions_with_the_owners_rights_pin_their_search_path(sql: Session) -> None:
    definers = sql(
        f"select p.oid::regprocedure::text, p.proconfig from pg_proc p where {OURS} and p.prosecdef"
    )
    assert len(definers) > 30
    pinned = "search_path=pg_catalog, pg_temp"
    assert [name for name, settings in definers if pinned not in (settings or [])] == []


def test_nothing_may_be_called_by_everybody(sql: Session) -> None:
    # The clock is the tests' own here, and open.
    open_to_all = sql(
        f"select p.oid::regprocedure::text from pg_proc p where {OURS} and p.proname <> 'clock' "
        "and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0))"
    )
    assert open_to_all == []


def test_no_table_is_open_to_everybody(sql: Session) -> None:
    open_to_all = sql(
        "select c.relname from pg_class c, aclexplode(c.relacl) a "
        "where c.relnamespace = 'holdfast'::regnamespace and a.grantee = 0"
    )
    assert open_to_all == []
    assert sql.one("select has_schema_privilege('public', 'holdfast', 'usage')") is False


def test_a_role_with_no_rights_can_call_and_read_nothing(sql: Session, refused: Refused) -> None:
    sql("create role holdfast_nobody")
    try:
        with sql.connection.transaction(force_rollback=True):
            sql("set local role holdfast_nobody")
            for query in (
                "select holdfast.enqueue('task')",
                "select from holdfast.jobs",
                "select holdfast.tick()",
            ):
                with refused("42501"), sql.connection.transaction():
                    sql(query)
    finally:
        sql("drop role holdfast_nobody")


def test_a_role_that_may_call_a_function_needs_no_right_on_any_table(sql: Session) -> None:
    """The whole life of a job, for a role that may only execute the interface."""
    sql("create role holdfast_caller")
    try:
        with sql.connection.transaction(force_rollback=True):
            sql("grant usage on schema holdfast to holdfast_caller")
            interface = (
                "enqueue enqueue_many claim claimed finish complete fail snooze release start progress "
            )
            interface += "register heartbeat sleep leave disown promote recover advance upkeep tick cancel "
            interface += "run_now pause resume job list_jobs stats lane is_terminal retry_delay channel"
            for name in interface.split():
                sql(f"grant execute on function holdfast.{name} to holdfast_caller")
            sql("set local role holdfast_caller")
            sql("create temp table state (name text, terminal boolean)")  # nobody may put a table in our way
            worker = sql.value("register")
            job_id = sql.enqueue("task", id="7b0b9f1c-9f0f-4b3c-8f1e-1d4b6a3c2d11")
            later = sql.enqueue_many(1, delays=["1 hour"])[0]
            sql.value("sleep", worker=worker)
            job = sql.claim_one(worker=worker)
            assert sql.rows("claimed", worker=worker, lease=job.lease) == [job]
            sql.value("progress", id=job.id, lease=job.lease, percent=10)
            sql.value("release", id=job.id, lease=job.lease)
            job = sql.claim_one(worker=worker)
            sql.value("fail", id=job.id, lease=job.lease, error="no")
            assert sql.value("run_now", id=job_id) == "pending"
            job = sql.claim_one(worker=worker)
            sql.value("complete", id=job.id, lease=job.lease)
            assert sql.value("cancel", id=later) == "cancelled"
            assert sql.value("is_terminal", state="dead") is True
            sql.value("pause", queue="default")
            sql.value("resume", queue="default")
            assert [error for _, error in sql.rows("tick") if error] == []
            assert sql.value("leave", worker=worker) == 0
            assert len(sql.rows("list_jobs")) == 2
    finally:
        sql("drop role holdfast_caller")


@pytest.mark.parametrize("name", sorted(call.FUNCTIONS))
def test_python_believes_of_a_function_what_the_catalog_says(sql: Session, name: str) -> None:
    function = call.FUNCTIONS[name]
    ((names, types),) = sql(
        "select coalesce(p.proargnames[1:p.pronargs], '{}'), "
        "array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a (t, n) order by n) "
        f"from pg_proc p where {OURS} and p.proname = %s",
        name,
    )
    known = dict(zip(names, types, strict=True))
    believed = {
        parameter: sql.one("select format_type(%s::regtype, null)", kind)
        for parameter, kind in function.parameters.items()
    }
    assert believed == known
    arguments = ", ".join(f"null::{kind}" for kind in function.parameters.values())
    # Parsed and planned, never run: the columns exist.
    sql(f"explain select {function.columns} from holdfast.{name}({arguments})")


def test_parameters_can_be_named_in_sql(sql: Session) -> None:
    """A name that is also a keyword could not be written before `=>`."""
    assert sql("select holdfast.retry_delay(task => 't', attempt => 2) is not null") == [(True,)]
    assert sql(
        "select count(*) from holdfast.claim(worker => null, lease => null, queues => '{x}', amount => 1)"
    )


def test_who_forbids_sequential_scans_forbids_jit_too(sql: Session) -> None:
    """Before PostgreSQL 18, one that is made all the same is taken for so expensive that it is compiled."""
    found = sql(
        "select proname from pg_proc where pronamespace = 'holdfast'::regnamespace "
        "and 'enable_seqscan=off' = any(proconfig) and not 'jit=off' = any(proconfig)"
    )
    assert found == []

"""Every role may do what the guide says, and nothing else; everybody sees what they may."""

import re
import runpy
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import schema
from tests.sql.roles import KINDS, let_in, login
from tests.sql.sessions import Refused, Session, Together, copied_database

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "operations" / "security.md"
# They put statements together of parts, each made with %I and %L or of names that PostgreSQL writes itself.
PUT_TOGETHER = {
    "forget_old",
    "grant_rights",
    "configure",
    "count_ended",
    "last_finished",
    "make_archive",
    "sweep_blocks",
    "doctor_statements",
    "replace_function",  # the text of a regprocedure is quoted
}
COPIED = {"id", "lane_id", "task", "payload", "headers", "max_attempts", "run_at"}


def promised() -> dict[str, set[str]]:
    """What the table of the guide says: for each function and view, the roles that may use it."""
    lines = GUIDE.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| to |"))
    rights: dict[str, set[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        _, names, *answers = [cell.strip() for cell in line.strip("|").split("|")]
        assert set(answers) <= {"yes", ""}, line
        allowed = {kind for kind, answer in zip(KINDS, answers, strict=True) if answer}
        for name in re.findall(r"`(\w+)`", names):
            assert name not in rights, f"{name} is there twice"
            rights[name] = allowed
    return rights


@pytest.fixture(scope="module")
def with_roles(database: tuple[str, psycopg.Connection[Any]]) -> Iterator[dict[str, str]]:
    """The DSN of a login of each kind, and of a stranger."""
    dsn, connection = database
    let_in(dsn)
    connection.execute("revoke execute on function holdfast.clock() from public")  # as it is outside tests
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(login(dsn, *([kind] if kind in KINDS else [])))
            for kind in (*KINDS, "none")
        }


@pytest.fixture
def connected(with_roles: dict[str, str], sql: Session) -> Iterator[dict[str, Session]]:
    """A session of each kind."""
    with ExitStack() as stack:
        yield {
            kind: Session(stack.enter_context(psycopg.connect(dsn, autocommit=True)))
            for kind, dsn in with_roles.items()
        }


FUNCTIONS = """
select p.proname, p.oid::regprocedure::text, p.proisstrict,
  array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a (t, n) order by n)
from pg_proc p
where p.pronamespace = 'holdfast'::regnamespace and p.prorettype <> 'trigger'::regtype
order by p.proname
"""


def is_refused(session: Session, query: str) -> bool:
    """Whether PostgreSQL refuses it for lack of rights; whatever else comes of it is undone."""
    try:
        with session.connection.transaction(force_rollback=True):
            session("set local statement_timeout = '10s'")
            session(query)
    except psycopg.errors.InsufficientPrivilege:
        return True
    except psycopg.Error:
        return False
    return False


def test_every_role_can_call_what_the_guide_says_and_no_other_function(
    sql: Session, connected: dict[str, Session]
) -> None:
    rights = promised()
    functions = sql(FUNCTIONS)
    wrong = []
    for name, signature, is_strict, types in functions:
        call = f"select * from holdfast.{name}({', '.join(f'null::{kind}' for kind in types)})"
        for kind, session in connected.items():
            allowed = kind in rights.get(name, set())
            # One that is strict is not even called with nulls.
            may = (
                sql.one(
                    "select has_function_privilege(%s, %s, 'execute')",
                    session.connection.info.user,
                    signature,
                )
                if is_strict
                else not is_refused(session, call)
            )
            if may is not allowed:
                wrong.append(f"{kind} {'may not' if allowed else 'may'} call {signature}")
    assert wrong == []
    views = {name for (name,) in sql("select viewname from pg_views where schemaname = 'holdfast'")}
    assert rights.keys() <= {name for name, *_ in functions} | views


def test_every_role_can_read_what_the_guide_says_and_no_table(
    sql: Session, connected: dict[str, Session]
) -> None:
    rights = promised()
    relations = sql(
        "select relname, relkind = 'v' from pg_class "
        "where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'p', 'v')"
    )
    wrong = []
    for name, is_view in relations:
        for kind, session in connected.items():
            allowed = is_view and kind in rights.get(name, set())
            if is_refused(session, f"select * from holdfast.{name}") is allowed:
                wrong.append((kind, name))
    assert wrong == []


def test_no_role_has_a_right_on_a_table_but_a_producer_on_the_columns_that_a_copy_names(
    sql: Session, with_roles: dict[str, str]
) -> None:
    found = sql(
        "select r.rolname, c.relname, a.attname, p.privilege "
        "from pg_roles r, pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0, "
        "  unnest('{select,insert,update,references}'::text[]) p (privilege) "
        "where r.rolname like 'holdfast\\_%%' and r.rolname = any(%s) "
        "  and c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') "
        "  and has_column_privilege(r.oid, c.oid, a.attnum, p.privilege)",
        [f"holdfast_{kind}" for kind in KINDS],
    )
    assert set(found) == {("holdfast_producer", "job", column, "insert") for column in COPIED}
    others = sql(
        "select r.rolname, c.relname from pg_roles r, pg_class c where r.rolname = any(%s) "
        "and c.relnamespace = 'holdfast'::regnamespace and ("
        "  c.relkind in ('r', 'p') and has_table_privilege(r.oid, c.oid, 'delete, truncate, trigger') "
        "  or c.relkind = 'S' and has_sequence_privilege(r.oid, c.oid, 'usage, select, update'))",
        [f"holdfast_{kind}" for kind in KINDS],
    )
    assert others == [("holdfast_producer", "job_seq")]


def test_every_public_function_is_somebodys_and_the_guide_and_the_data_say_the_same(sql: Session) -> None:
    groups = runpy.run_path(str(ROOT / "docs" / "generate_reference.py"))["groups"]()
    public = {name for names in groups.values() for name in names}
    written = {name for (name,) in sql("select name from holdfast.role_rights() where kind = 'function'")}
    assert sorted(public - written) == []
    assert sorted(written - public) == []
    rights = promised()
    data: dict[str, set[str]] = {}
    for name, role in sql("select name, role from holdfast.role_rights() where kind in ('function', 'view')"):
        data.setdefault(name, set()).update({role} - {"owner"})
    assert rights == data


def test_every_function_is_the_owners_and_safe_to_call(sql: Session) -> None:
    owner = sql.one("select relowner from pg_class where oid = 'holdfast.job'::regclass")
    wrong = sql(
        "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'holdfast'::regnamespace "
        "and (p.proowner <> %s or p.prosecdef "
        "  and not coalesce('search_path=pg_catalog, pg_temp' = any(p.proconfig), false))",
        owner,
    )
    assert wrong == []
    # Whoever may call a function of ours gets there with the owner's rights, or with none that matter.
    open_to_roles = sql(
        "select distinct p.proname from pg_proc p join holdfast.role_rights() r on r.name = p.proname "
        "where p.pronamespace = 'holdfast'::regnamespace and r.kind = 'function' and r.role <> 'owner' "
        "and not p.prosecdef order by 1"
    )
    assert {name for (name,) in open_to_roles} <= {"clock", "new_id", "channel", "stat_bounds"}


def test_no_statement_is_made_of_names_that_are_not_quoted(sql: Session) -> None:
    bodies = sql(
        "select p.proname, p.prosrc from pg_proc p "
        "where p.pronamespace = 'holdfast'::regnamespace and p.prosrc ~* '\\mexecute\\M'"
    )
    assert bodies, "partitions are made by statements that are put together"
    for name, body in bodies:
        for statement in re.findall(r"\bexecute\s+([^;]*)", body, flags=re.IGNORECASE):
            if name not in PUT_TOGETHER:
                template = re.match(r"format\(\s*('(?:[^']|'')*')\s*[,)]", statement)
                assert template, f"{name}: execute {statement}"
                assert re.fullmatch(r"(?:[^%]|%(?:\d\$)?[IL])*", template[1]), f"{name}: {template[1]}"


def test_a_producer_enqueues_in_bulk_by_copy_and_only_what_it_may_say(
    sql: Session, connected: dict[str, Session], refused: Refused
) -> None:
    producer = connected["producer"]
    ((lane_id, _, may_copy, _),) = producer("select * from holdfast.places('{t}', '{bulk}', '{100}')")
    assert may_copy
    with (
        producer.connection.cursor() as cursor,
        cursor.copy("copy holdfast.job (lane_id, task) from stdin") as copy,
    ):
        for _ in range(3):
            copy.write_row((lane_id, "t"))
    assert sql.one("select count(*) from holdfast.job") == 3
    for column, value in [
        ("state", "'claimed'"),
        ("attempt", "5"),
        ("lease", "gen_random_uuid()"),
        ("seq", "1"),
    ]:
        with refused("42501"):
            producer(f"insert into holdfast.job (lane_id, task, {column}) values ({lane_id}, 't', {value})")


def test_a_worker_declares_what_its_code_says_and_does_not_undo_an_operator(
    connected: dict[str, Session], refused: Refused
) -> None:
    worker, operator = connected["worker"], connected["operator"]
    worker.value("declare_retry_policy", task="t", max_attempts=7)
    operator.value("set_retry_policy", task="t", max_attempts=2)
    worker.value("declare_retry_policy", task="t", max_attempts=9)
    assert [row.max_attempts for row in operator.rows("list_retry_policies")] == [2]
    with refused("42501"):
        worker.value("set_retry_policy", task="t", max_attempts=9)


def test_what_is_made_anew_keeps_its_rights_and_strange_ones_go(
    database: tuple[str, psycopg.Connection[Any]], sql: Session, with_roles: dict[str, str]
) -> None:
    _, connection = database
    signature = sql.one("select 'holdfast.stats'::regproc::regprocedure::text")
    sql(f"revoke execute on function {signature} from holdfast_viewer")
    sql("grant execute on function holdfast.door(boolean) to holdfast_viewer")
    sql("grant select on holdfast.job to holdfast_viewer")
    sql("grant insert (state) on holdfast.job to holdfast_producer")
    sql("update holdfast.migration set checksum = 'old' where name = 'state'")
    assert schema.apply(connection) == ["state"]
    assert sql.one("select has_function_privilege('holdfast_viewer', %s, 'execute')", signature)
    assert not sql.one(
        "select has_function_privilege('holdfast_viewer', 'holdfast.door(boolean)', 'execute')"
    )
    assert not sql.one("select has_table_privilege('holdfast_viewer', 'holdfast.job', 'select')")
    assert not sql.one("select has_column_privilege('holdfast_producer', 'holdfast.job', 'state', 'insert')")


def test_roles_are_only_let_in_where_that_was_asked_for(
    holdfast_server: str, holdfast_template: str, with_roles: dict[str, str]
) -> None:
    with (
        copied_database(holdfast_server, holdfast_template) as dsn,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        other.execute("update holdfast.migration set checksum = 'old' where name = 'roles'")
        assert schema.apply(other) == ["roles"]
        ((allowed,),) = other.execute(
            "select count(*) from pg_proc p where p.pronamespace = 'holdfast'::regnamespace "
            "and has_function_privilege('holdfast_worker', p.oid, 'execute') and p.proname <> 'clock'"
        ).fetchall()
        assert allowed == 0


def test_several_databases_may_make_the_roles_at_the_same_time(
    sql: Session, holdfast_server: str, holdfast_template: str, together: Together
) -> None:
    """Roles that the cluster does not have yet, made by three databases at once, again and again."""
    body = sql.one("select prosrc from pg_proc where proname = 'create_roles'")
    prefixes = [f"hf_{sql.pid}_{number}_" for number in range(5)]

    def create(dsn: str, prefix: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            text = body.replace("holdfast_", prefix)
            connection.execute(f"do $body${text}$body$")

    with ExitStack() as stack:
        stack.callback(lambda: [sql(f"drop role {prefix}{kind}") for prefix in prefixes for kind in KINDS])
        databases = [
            stack.enter_context(copied_database(holdfast_server, holdfast_template)) for _ in range(3)
        ]
        for prefix in prefixes:
            together(*[partial(create, dsn, prefix) for dsn in databases])
        assert sql.one("select count(*) from pg_roles where rolname like %s", f"hf_{sql.pid}_%") == 20


def test_an_owner_who_may_not_create_roles_is_told_what_a_dba_must_run(
    sql: Session, refused: Refused
) -> None:
    body = sql.one("select prosrc from pg_proc where proname = 'create_roles'")
    name = f"hf_test_{sql.pid}"
    sql(f"create role {name}")
    try:
        with sql.connection.transaction(force_rollback=True):
            # As if the cluster had none of them.
            sql(
                "create function pg_temp.create_some() returns void language plpgsql as "
                f"$body${body.replace('holdfast_producer', 'hf_missing_producer')}$body$"
            )
            sql(f"set local role {name}")
            with refused("42501") as error, sql.connection.transaction():
                sql("select pg_temp.create_some()")
        assert error.message == f"there is no role hf_missing_producer, and {name} may not create roles"
        assert "create role hf_missing_producer nologin;" in error.hint
        assert "holdfast migrate --roles" in error.hint
    finally:
        sql(f"drop role {name}")

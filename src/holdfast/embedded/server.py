"""Starts the server for its first user, and stops it after its last."""

import atexit
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import psycopg
from psycopg import pq, sql

from holdfast.embedded.errors import ServerNotStarted
from holdfast.embedded.home import SOCKET, Home, exclusive_lock, is_held, open_home, shared_lock
from holdfast.embedded.launch import launch, read_text

_PATIENCE = 30.0  # seconds for a server to start (perhaps from a crash) or to stop


class Server:
    """A share in a running server, which runs until the last share is returned.

    Use it as a context manager, or call `stop`, or let the process end.
    """

    def __init__(self, home: Home, database: str, membership: int, *, launched: bool) -> None:
        self.dsn: str = home.dsn(database)
        self.launched: bool = launched  # False if the server was running already
        self.data_directory: Path = home.data
        self._home = home
        self._membership: int | None = membership
        atexit.register(self.stop)

    def stop(self) -> None:
        """Return the share. The last one stops the server; a second call does nothing."""
        membership, self._membership = self._membership, None
        if membership is not None:
            atexit.unregister(self.stop)
            with exclusive_lock(self._home.start_lock):
                _leave(self._home, membership)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    home: Path | None = None,
    *,
    bin_directory: Path | None = None,
    settings: Mapping[str, str] | None = None,
    database: str = "holdfast",
) -> Server:
    """Start or share a private PostgreSQL. It takes a tenth of a second, and the first time about one second.

    All callers with the same home share one server, with the `settings` of the first. The default home is
    HOLDFAST_HOME. Without that it is the project's: `holdfast/projects/NAME-HASH` in the user's data
    directory (root: in /var/lib).

    Raises `BinariesNotFound`, `HomeUnusable`, `WrongVersion` or `ServerNotStarted`, all `EmbeddedError`.
    """
    place, launched = open_home(home), False
    with exclusive_lock(place.start_lock):
        membership = shared_lock(place.users_lock)
        try:
            while not _has_database(place, database):
                if not _answers(place):
                    launched = True
                    launch(place, bin_directory, settings or {})
                    _require_answer(place)
        except BaseException:
            _leave(place, membership)
            raise
    return Server(place, database, membership, launched=launched)


def _has_database(home: Home, name: str) -> bool:
    """Create the database if necessary. Return False if the server is down or has stopped meanwhile."""
    if not _ping(home):
        return False
    try:
        with psycopg.connect(home.dsn("postgres"), autocommit=True) as connection:
            if not connection.execute("select from pg_database where datname = %s", [name]).rowcount:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    except psycopg.OperationalError:
        if _ping(home):
            raise
        return False
    return True


def _answers(home: Home) -> bool:
    """Return whether a server answers. A server that is just starting or stopping gets time."""
    deadline = time.monotonic() + _PATIENCE
    while not _ping(home):
        if not is_held(home.server_lock):
            return False
        if time.monotonic() > deadline:
            raise _not_started(home, f"the server in {home.data} did not answer for {_PATIENCE:.0f} s")
        time.sleep(0.005)
    return True


def _ping(home: Home) -> bool:
    try:  # a short socket directory is in /tmp, where any user can take its name after a reboot
        ours = home.socket.stat().st_uid == home.data.stat().st_uid
    except OSError:
        return False
    address = f"{home.dsn('postgres')} connect_timeout=2".encode()
    return ours and pq.PGconn.ping(address) == pq.Ping.OK


def _require_answer(home: Home) -> None:
    if not _answers(home):
        raise _not_started(home, f"PostgreSQL did not start in {home.data}")


def _not_started(home: Home, what: str) -> ServerNotStarted:
    tail = "\n".join(read_text(home.log).splitlines()[-20:])
    return ServerNotStarted(f"{what}. The end of {home.log}:\n{tail}")


def _leave(home: Home, membership: int) -> None:
    os.close(membership)
    if is_held(home.users_lock):
        return
    for request in (signal.SIGINT, signal.SIGQUIT):  # fast shutdown, then immediate: the next start recovers
        if pid := _listener(home):
            with suppress(ProcessLookupError):
                os.kill(pid, request)
            deadline = time.monotonic() + _PATIENCE
            while is_held(home.server_lock) and time.monotonic() < deadline:
                time.sleep(0.005)
    if home.socket.is_symlink():
        with suppress(OSError):
            home.socket.resolve().rmdir()
            home.socket.unlink()


def _listener(home: Home) -> int:
    """Return the pid of the server that listens on our socket, as reported by the kernel; 0 if there is none.

    It is also 0 for a server in another container, which can be used but not stopped from here.
    """
    # On macOS: SOL_LOCAL and LOCAL_PEERPID. Elsewhere the answer is a struct that begins with the pid.
    level, option = (0, 2) if sys.platform == "darwin" else (socket.SOL_SOCKET, socket.SO_PEERCRED)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_PATIENCE)
        try:
            client.connect(str(home.socket.resolve() / SOCKET))
        except OSError:
            return 0
        pid: int = struct.unpack_from("i", client.getsockopt(level, option, 12))[0]
        return pid

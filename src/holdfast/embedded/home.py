"""Where an embedded server lives, and the locks that tell who is in."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import conninfo

from holdfast.embedded.errors import HomeUnusable

# Not "holdfast": a user's own schema comes first in its search path, and tables made without a schema
# would land in ours.
SUPERUSER = "postgres"
PORT = 5432  # it only names the socket's file
SOCKET = f".s.PGSQL.{PORT}"


class Home:
    """The names of everything in a home."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.socket = path / "socket"
        self.log = path / "server.log"
        self.start_lock = path / "start.lock"
        self.users_lock = path / "users.lock"
        self.server_lock = path / "server.lock"

    def dsn(self, database: str) -> str:
        host = str(self.socket.resolve())
        return conninfo.make_conninfo(host=host, port=PORT, dbname=database, user=SUPERUSER)


def open_home(path: Path | None) -> Home:
    """The home at this path or, if none is named, where the user's data belongs; made if need be."""
    try:
        path = (path or _default()).expanduser().resolve()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0 and not any(path.iterdir()):
            path.chmod(0o711)  # the server's user passes through; what is private inside has its own guard
        facts = path.stat()
    except (OSError, RuntimeError) as error:
        hint = "Set HOLDFAST_HOME to a directory of yours."
        raise HomeUnusable(f"the embedded server has no home: {error}", hint=hint) from error
    if facts.st_uid != os.geteuid() or facts.st_mode & stat.S_IWOTH:
        raise HomeUnusable(
            f"{path} is not safe to run in: it belongs to user {facts.st_uid} or is open to everyone",
            hint=f"Set HOLDFAST_HOME to a directory that belongs to user {os.geteuid()} alone.",
        )
    return Home(path)


def _default() -> Path:
    data = "/var/lib" if os.geteuid() == 0 else os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(os.environ.get("HOLDFAST_HOME") or f"{data}/holdfast")


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock that has one holder at a time."""
    descriptor = _open(lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        _release(descriptor)


def share(lock: Path) -> int:
    """Hold a lock together with others, until the descriptor is closed here and in every fork.

    Close it, never unlock it: that would unlock it for the forks (or for the server) as well.
    """
    descriptor = _open(lock)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def is_held(lock: Path) -> bool:
    """Whether anyone holds or shares this lock."""
    descriptor = _open(lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        _release(descriptor)
    return False


def _open(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)


def _release(descriptor: int) -> None:
    # Unlocked, not only closed: a process forked by another thread meanwhile has a copy of it.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)

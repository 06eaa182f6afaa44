"""The directory of an embedded server, and the locks of the processes that use it.

    ~/.local/share/holdfast/projects/shop-3f9c01ab/     the home of the project in /home/me/shop

Each project directory has its own home, so that no worker runs another project's jobs. The home is outside
the project, so that the database is not committed, or deleted by `git clean`.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from psycopg import conninfo

from holdfast.embedded.errors import EmbeddedError, HomeUnusable

# Not "holdfast": a schema with the user's name comes first in the search path. Tables that are made without a
# schema would land in Holdfast's.
SUPERUSER = "postgres"
PORT = 5432  # only part of the name of the socket's file
SOCKET = f".s.PGSQL.{PORT}"
_MARKS = ("pyproject.toml", "manage.py", ".git")


class Home:
    """The paths of the files and directories in a home."""

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
    """Return the home at this path, or the project's home; create it if necessary."""
    if os.name == "nt":
        raise EmbeddedError(
            "the embedded PostgreSQL does not run on Windows", hint="Set HOLDFAST_DSN to your own database."
        )
    try:
        path = (path or default_home()).expanduser().resolve()
        _make(path)
        if os.geteuid() == 0 and not any(path.iterdir()):
            path.chmod(0o711)  # the server's user must pass through; the contents are private
        facts = path.stat()
    except (OSError, RuntimeError) as error:
        hint = "Set HOLDFAST_HOME to your own directory."
        raise HomeUnusable(f"the embedded server has no home: {error}", hint=hint) from error
    if facts.st_uid != os.geteuid() or facts.st_mode & stat.S_IWOTH:
        raise HomeUnusable(
            f"{path} is not safe to run in: it belongs to user {facts.st_uid} or is open to everyone",
            hint=f"Set HOLDFAST_HOME to a directory that belongs only to user {os.geteuid()}.",
        )
    return Home(path)


def default_home() -> Path:
    """Return HOLDFAST_HOME, or the home of the project that the current directory belongs to."""
    if named := os.environ.get("HOLDFAST_HOME"):
        return Path(named)
    project = project_directory()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", project.name)[:24].strip(".-") or "project"
    digest = hashlib.sha256(os.fsencode(project)).hexdigest()[:8]
    return user_data() / "projects" / f"{name}-{digest}"


def project_directory() -> Path:
    """Return the nearest directory from here upwards that looks like a project, or the current one."""
    here = Path.cwd()
    marked = (each for each in (here, *here.parents) if any((each / mark).exists() for mark in _MARKS))
    return next(marked, here)


def user_data() -> Path:
    """Return the directory of all homes of this user. Up to release 0.1.0 it was itself the home."""
    data = "/var/lib" if os.geteuid() == 0 else os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data, "holdfast").expanduser()


def _make(path: Path) -> None:
    if path.exists():
        return
    _make(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        path.chmod(0o711)  # despite the umask: the server of root runs as another user


@contextmanager
def exclusive_lock(lock: Path) -> Iterator[None]:
    """Hold a lock exclusively."""
    descriptor = _open(lock)
    try:
        _flock(descriptor, "LOCK_EX")
        yield
    finally:
        _release(descriptor)


def shared_lock(lock: Path) -> int:
    """Hold a lock together with other processes, until the descriptor is closed here and in every fork.

    Close it, and never unlock it: unlocking would release it for the forks (or for the server) too.
    """
    descriptor = _open(lock)
    _flock(descriptor, "LOCK_SH")
    return descriptor


def is_held(lock: Path) -> bool:
    """Return whether any process holds or shares this lock."""
    descriptor = _open(lock)
    try:
        _flock(descriptor, "LOCK_EX", "LOCK_NB")
    except BlockingIOError:
        return True
    finally:
        _release(descriptor)
    return False


def _open(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)


def _release(descriptor: int) -> None:
    # Unlock it before closing: a process that another thread has just forked has a copy of it.
    _flock(descriptor, "LOCK_UN")
    os.close(descriptor)


def _flock(descriptor: int, *operations: Literal["LOCK_EX", "LOCK_NB", "LOCK_SH", "LOCK_UN"]) -> None:
    import fcntl  # noqa: PLC0415 - Windows has no such module

    fcntl.flock(descriptor, sum(getattr(fcntl, operation) for operation in operations))

"""Real servers in directories of their own; none is left behind."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import embedded
from tests.embedded.watching import QUICK, Sharer, end_server


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everyone can pass through (pytest's tmp_path is closed to root's server)."""
    path = Path(tempfile.mkdtemp(prefix="hfe-"))
    path.chmod(0o755)
    yield path
    for lock in path.rglob("server.lock"):
        end_server(lock.parent)
    shutil.rmtree(path)


@pytest.fixture
def new_home(place: Path) -> Path:
    """Where no server has ever been."""
    return place / "home"


@pytest.fixture
def home(new_home: Path, spare: Path) -> Iterator[Path]:
    """A home with a cluster in it, which one test after the other uses: making one takes half a second."""
    if not (spare / "data").exists():
        embedded.start(spare, settings=QUICK).stop()
    new_home.mkdir()
    new_home.chmod(0o711)
    (spare / "data").rename(new_home / "data")
    yield new_home
    if new_home.exists():
        end_server(new_home)
        (new_home / "data").rename(spare / "data")


@pytest.fixture(scope="session")
def spare() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hfe-") as path:
        yield Path(path)


@pytest.fixture
def sharer() -> Iterator[Callable[..., Sharer]]:
    """Starts other processes that use a server; who is still there at the end is killed."""
    started: list[Sharer] = []

    def join(home: Path, *bin_directory: Path) -> Sharer:
        started.append(Sharer(home, *bin_directory))
        return started[-1]

    yield join
    for each in started:
        each.kill()


@pytest.fixture
def server_user() -> dict[str, Any]:
    """How to start a process as the user that a new server runs as."""
    if os.geteuid() != 0:
        return {}
    names = {user.pw_name for user in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

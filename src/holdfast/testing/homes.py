"""A home for a server that is thrown away: in memory, where there is plenty of it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
ROOM = 4 * 1024**3


@contextmanager
def temporary_home() -> Iterator[Path]:
    """An empty directory that root's server can reach too; gone afterwards.

    To copy a database for a test takes 30 ms in memory, and on a disk 190 ms or, beside other writers, 700.
    """
    with tempfile.TemporaryDirectory(prefix="hf-", dir=_memory(), ignore_cleanup_errors=True) as home:
        Path(home).chmod(0o755)
        yield Path(home)


def _memory() -> Path | None:
    """Not where somebody has said where temporary files go, nor in a container's 64 MB."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    facts = os.statvfs(MEMORY)
    runs_programs = not facts.f_flag & os.ST_NOEXEC  # root's server may have to be copied there
    return MEMORY if runs_programs and facts.f_bavail * facts.f_frsize >= ROOM else None

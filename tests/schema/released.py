"""Databases and workers of earlier releases."""

import io
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[2]
SCHEMAS = Path(__file__).parent / "released"


def releases() -> list[str]:
    """Those whose schema is stored, the oldest first."""
    return sorted(
        (file.stem for file in SCHEMAS.glob("*.sql")), key=lambda it: [int(n) for n in it.split(".")]
    )


def text(release: str) -> str:
    """The stored schema of this release."""
    return (SCHEMAS / f"{release}.sql").read_text(encoding="utf-8")


def install(release: str, dsn: str) -> None:
    """Install the schema of this release, as a DBA would have done it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(text(release))


def commit(release: str) -> str:
    """Return the commit of this release. The commit that makes a release cannot name itself."""
    return tomllib.loads((SCHEMAS / "commits.toml").read_text(encoding="utf-8")).get(release, "HEAD")


def source(release: str, directory: Path) -> Path | None:
    """Where to import the code of this release from; nothing if this checkout does not have its history."""
    command = ["git", "-C", str(ROOT), "archive", commit(release), "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        # Python 3.11.3 and older have no filter.
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(directory, **safely)
    return directory / "src"


class OldWorker:
    """`holdfast worker app:hf` of another release, in a process of its own."""

    def __init__(self, code: Path, app: Path, dsn: str) -> None:
        self._log = (app / f"worker-{id(self)}.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", "app:hf"],
            cwd=app,
            env={**os.environ, "PYTHONPATH": str(code), "HOLDFAST_DSN": dsn},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def said(self) -> str:
        return Path(self._log.name).read_text()

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> int:
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Until it has ended; its exit code."""
        try:
            return self._process.wait(20)
        finally:
            self._process.kill()
            self._log.close()

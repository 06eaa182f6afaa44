"""Starts, kills and stops the demo's workers, each a process of its own."""

import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO, Self

# A worker without a heartbeat for this long is declared lost, and its jobs are taken back. The default is
# half a minute, too long for a demo.
LEASE_TIME = 2.0
CONCURRENCY = 6
PATIENCE = 5.0


class WorkerFailed(Exception):  # noqa: N818 - the name says what went wrong
    """A worker ended without being stopped."""


class Crew:
    """Workers by name. All of them have ended when the context ends."""

    def __init__(self) -> None:
        self.killed: str | None = None
        self.pids: set[int | None] = set()
        self._at_work: dict[str, subprocess.Popen[bytes]] = {}
        self._said: dict[str, IO[bytes]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._at_work)

    def start(self, name: str) -> None:
        output = self._said[name] = tempfile.TemporaryFile()  # noqa: SIM115 - read when the worker fails
        self._at_work[name] = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "holdfast.demo.worker", name],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which then stops its workers
        )
        self.pids.add(self._at_work[name].pid)

    def kill(self, name: str) -> None:
        """Kill a worker as `kill -9` or the kernel out of memory would: it cannot report anything."""
        with self._at_work.pop(name) as worker:
            worker.kill()
        self.killed = name

    def check(self) -> None:
        """Raise if a worker has ended by itself."""
        for name, worker in self._at_work.items():
            code = worker.poll()
            if code is not None:
                raise WorkerFailed(f"worker {name} ended with code {code}:\n{self._last_words(name)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._at_work.values():
            worker.terminate()
        for worker in self._at_work.values():
            with worker:
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(PATIENCE)
                worker.kill()
        for output in self._said.values():
            output.close()

    def _last_words(self, name: str) -> str:
        self._said[name].seek(0)
        return "\n".join(self._said[name].read().decode(errors="replace").splitlines()[-10:])

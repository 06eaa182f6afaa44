"""Starts, kills and stops the workers of the demo. Each is a process that runs `worker.py`."""

import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO, Self

# A worker without a heartbeat for this long is declared lost. The default, half a minute, is too long here.
LEASE_TIME = 2.0
CONCURRENCY = 6
STOP_SECONDS = 5.0


class WorkerFailed(Exception):  # noqa: N818 - the name says what went wrong
    """A worker ended without being stopped."""


class WorkerProcesses:
    """The workers by name. All of them end with the context."""

    def __init__(self) -> None:
        self.killed: str | None = None
        self.pids: set[int | None] = set()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._outputs: dict[str, IO[bytes]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._running)

    def start(self, name: str) -> None:
        output = self._outputs[name] = tempfile.TemporaryFile()  # noqa: SIM115 - read when the worker fails
        self._running[name] = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "holdfast.demo.worker", name],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which then stops its workers
        )
        self.pids.add(self._running[name].pid)

    def kill(self, name: str) -> None:
        """Kill a worker as `kill -9` does. It cannot report anything."""
        with self._running.pop(name) as worker:
            worker.kill()
        self.killed = name

    def check(self) -> None:
        """Raise if a worker has ended by itself."""
        for name, worker in self._running.items():
            code = worker.poll()
            if code is not None:
                raise WorkerFailed(f"worker {name} ended with code {code}:\n{self._end_of_output(name)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._running.values():
            worker.terminate()
        for worker in self._running.values():
            with worker:
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(STOP_SECONDS)
                worker.kill()
        for output in self._outputs.values():
            output.close()

    def _end_of_output(self, name: str) -> str:
        self._outputs[name].seek(0)
        return "\n".join(self._outputs[name].read().decode(errors="replace").splitlines()[-10:])

"""Several worker processes under one parent, which passes signals on and restarts processes that died.

    terminal ── SIGINT ──► supervisor ── SIGTERM ──► N children, each in its own session
                               └──────── pipe ─────► closes when the supervisor ends

The children have their own sessions because Ctrl-C reaches the whole foreground group. Otherwise they would
get the signal twice, from the terminal and from the supervisor, and a second signal ends the grace. The
kernel closes the pipe however the supervisor dies, so even a kill -9 leaves no children behind.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from holdfast.telemetry import emit

Command = Callable[[int], Sequence[str]]

# A child that ran for this long was healthy, and is restarted at once.
HEALTHY_SECONDS = 10.0
LONGEST_PAUSE = 30.0
DEFAULT_GRACE = timedelta(seconds=30)
KILL_AFTER_SECONDS = 30.0


class Supervisor:
    """A parent that keeps `processes` children running; `command(number)` returns the command of each.

    A child that exits with 0 has finished and is not restarted. The first signal asks the children to stop.
    The second ends their grace, and the third kills them.
    """

    def __init__(self, command: Command, processes: int) -> None:
        self._command = command
        self._processes = processes
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._requests = 0  # how often the children were asked to stop
        self._failed = False

    def run(self) -> int:
        """Run until all children have ended, and return the exit code."""
        with _pipe() as lifeline:
            return asyncio.run(self._run(lifeline))

    async def _run(self, lifeline: int) -> int:
        self._stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, self._signalled)
        async with asyncio.TaskGroup() as group:
            for number in range(1, self._processes + 1):
                group.create_task(self._keep_running(number, lifeline))
        return 1 if self._failed else 0

    async def _keep_running(self, number: int, lifeline: int) -> None:
        failures = 0
        while not self._stop.is_set():
            started = time.monotonic()
            code = await self._run_child(number, lifeline)
            if code == 0 or self._stop.is_set():
                self._note_end(code)
                return
            failures = 1 if time.monotonic() - started >= HEALTHY_SECONDS else failures + 1
            pause = min(0.1 * 2**failures, LONGEST_PAUSE) if failures > 1 else 0.0
            emit("process.died", process=number, exit=exit_text(code), restart_in=pause)
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _run_child(self, number: int, lifeline: int) -> int:
        """Run a child until it ends, and return its exit code."""
        child = await asyncio.create_subprocess_exec(
            *self._command(number), stdin=lifeline, start_new_session=True
        )
        self._children[number] = child
        emit("process.started", process=number, pid=child.pid)
        try:
            for _ in range(self._requests):  # those that came while it was being started
                self._signal_child(child)
            return await child.wait()
        finally:
            del self._children[number]

    def _note_end(self, code: int) -> None:
        # A child may get the signal while it is still loading. That is not a failure.
        self._failed = self._failed or code not in {0, -signal.SIGTERM}

    def _signalled(self) -> None:
        self._stop.set()
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        self._requests += 1
        for child in self._children.values():
            self._signal_child(child)

    def _signal_child(self, child: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._requests > 2:  # noqa: PLR2004 - two signals did not end it
                child.kill()
            else:
                child.terminate()


def exit_with_supervisor(grace: timedelta | None = None) -> None:
    """Stop this child gracefully when the supervisor has ended, and kill it if that takes too long."""
    lifeline = os.dup(0)
    with open(os.devnull) as nothing:  # noqa: PTH123 - a handler that reads standard input finds it empty
        os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep((grace or DEFAULT_GRACE).total_seconds() + KILL_AFTER_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="holdfast-lifeline", daemon=True).start()


@contextlib.contextmanager
def _pipe() -> Iterator[int]:
    """Yield the reading end. Only this process holds the other end, and writes nothing to it."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def exit_text(code: int) -> str:
    if code >= 0:
        return str(code)
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"

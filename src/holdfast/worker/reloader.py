"""A worker for development: it starts again when a file of the app has changed.

    a file changes ──► reloader ── SIGTERM ──► child: running jobs finish with the old code
                          └───── starts ─────► child with the new code

The child is one `holdfast worker`, which may be a supervisor itself.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

from holdfast.telemetry import emit
from holdfast.worker.file_changes import Times, changed_files, modification_times
from holdfast.worker.supervisor import Command, Supervisor, exit_text


class Reloader(Supervisor):
    """A supervisor of one child, which it restarts when a Python file in the directories has changed.

    A child that fails is started again at the next change.
    """

    def __init__(self, command: Command, directories: Sequence[Path]) -> None:
        super().__init__(command, processes=1)
        self._directories = directories
        self._changed = asyncio.Event()  # the child is asked to stop, and another one follows

    async def _keep_running(self, number: int, lifeline: int) -> None:
        emit("app.watched", directories=[str(directory) for directory in self._directories])
        before = modification_times(self._directories)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._restart_on_changes(before))
            while not self._stop.is_set():
                self._changed.clear()
                self._requests = 0
                code = await self._run_child(number, lifeline)
                if self._stop.is_set():
                    self._note_end(code)
                elif not self._changed.is_set():
                    await self._ended_by_itself(number, code)

    async def _restart_on_changes(self, before: Times) -> None:
        try:
            async for files in changed_files(self._directories, before, self._stop):
                for file in files:
                    _remove_bytecode(file)
                if not self._changed.is_set() and not self._stop.is_set():
                    emit("app.changed", file=_shown(files[0]), others=len(files) - 1)
                    self._changed.set()
                    self._ask_to_stop()
        finally:
            self._changed.set()  # end a wait for the next change

    async def _ended_by_itself(self, number: int, code: int) -> None:
        if code == 0:
            self._stop.set()
        else:
            emit("process.died", process=number, exit=exit_text(code))
            await self._changed.wait()

    def _signalled(self) -> None:
        if self._changed.is_set() and not self._stop.is_set():
            # The child has been asked to stop. A second request would end its grace.
            emit("restart.cancelled")
            self._stop.set()
        else:
            super()._signalled()


def _remove_bytecode(file: Path) -> None:
    """Remove the compiled file, which Python would take for current after two changes within a second."""
    with suppress(OSError, NotImplementedError):
        Path(cache_from_source(file)).unlink()


def _shown(file: Path) -> str:
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)

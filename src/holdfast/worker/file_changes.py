"""Changed Python files of directories, for `holdfast worker --reload`.

Modification times tell which files have changed. They are compared twice a second, or as soon as watchfiles
notices something if it is installed: `pip install 'holdfast[reload]'`.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.5
# Compare after this time even if watchfiles has noticed nothing: not every file system sends notifications.
LONGEST_QUIET_MILLISECONDS = 5_000
# Environments and caches change without a change of the app. Hidden directories are skipped too.
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})

Times = dict[Path, int]


def modification_times(directories: Sequence[Path]) -> Times:
    """Return the modification time of each Python file in the directories and below them."""
    times: Times = {}
    for path in _python_files(directories):
        with suppress(OSError):  # it has just been removed
            times[path] = path.stat().st_mtime_ns
    return times


def _python_files(directories: Sequence[Path]) -> Iterator[Path]:
    walked = set()
    for directory in directories:
        for folder, subfolders, files in os.walk(directory):
            if folder in walked:  # one directory may be inside another
                subfolders.clear()
                continue
            walked.add(folder)
            subfolders[:] = [name for name in subfolders if not name.startswith(".") and name not in SKIPPED]
            yield from (Path(folder, name) for name in files if _is_python(name))


def _is_python(name: str) -> bool:
    # Editors write hidden files beside the real one.
    return name.endswith(".py") and not name.startswith(".")


async def changed_files(
    directories: Sequence[Path], before: Times, stop: asyncio.Event
) -> AsyncIterator[list[Path]]:
    """Yield the files that were changed, added or removed since `before`, until `stop` is set."""
    async for _ in _moments_to_look(directories, stop):
        now = await asyncio.to_thread(modification_times, directories)
        if changed := sorted({path for path, _ in before.items() ^ now.items()}):
            yield changed
        before = now


async def _moments_to_look(directories: Sequence[Path], stop: asyncio.Event) -> AsyncIterator[None]:
    # Poll if it is not installed, or if the system has no watches left for all the directories.
    with suppress(ImportError, OSError):
        from watchfiles import awatch  # noqa: PLC0415 - an extra

        async for _ in awatch(
            *directories,
            watch_filter=lambda _change, path: _is_python(Path(path).name),
            stop_event=stop,
            rust_timeout=LONGEST_QUIET_MILLISECONDS,
            yield_on_timeout=True,
        ):
            yield None
    while not await _is_set_within(POLL_SECONDS, stop):
        yield None


async def _is_set_within(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()

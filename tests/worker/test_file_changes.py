"""Files whose change restarts a worker with `--reload`."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.worker import file_changes
from holdfast.worker.file_changes import changed_files, modification_times


def _write(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_only_python_files_of_the_app_are_watched(tmp_path: Path) -> None:
    watched = [tmp_path / "app.py", tmp_path / "shop" / "jobs.py"]
    skipped = ["__pycache__", "node_modules", "site-packages", "venv", ".venv", ".git", "shop/.idea"]
    ignored = [tmp_path / "notes.txt", tmp_path / ".#app.py", *(tmp_path / name / "a.py" for name in skipped)]
    _write(*watched, *ignored)
    assert sorted(modification_times([tmp_path, tmp_path / "shop"])) == watched


def test_a_directory_that_was_named_is_watched_even_inside_one_that_is_skipped(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "library"
    _write(library / "code.py")
    assert list(modification_times([tmp_path, library])) == [library / "code.py"]


def _poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)  # as if it were not installed
    monkeypatch.setattr(file_changes, "POLL_SECONDS", 0.01)


def _listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_changes, "LONGEST_QUIET_MILLISECONDS", 0)  # notifications only


@pytest.mark.parametrize("notice", [_poll, _listen])
def test_added_changed_and_removed_files_are_yielded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notice: Callable[[pytest.MonkeyPatch], None]
) -> None:
    notice(monkeypatch)
    added, changed, kept, removed = (
        tmp_path / f"{name}.py" for name in ("added", "changed", "kept", "removed")
    )
    _write(changed, kept, removed)
    before = modification_times([tmp_path])
    _write(added)
    removed.unlink()

    async def first() -> list[Path]:
        stop = asyncio.Event()
        changes = changed_files([tmp_path], before, stop)
        found = asyncio.ensure_future(anext(changes))
        while not found.done():
            changed.touch()  # again, because the first time may be before the directory is watched
            await asyncio.wait({found}, timeout=0.2)
        stop.set()
        assert [files async for files in changes] == []
        return found.result()

    assert asyncio.run(asyncio.wait_for(first(), 20)) == [added, changed, removed]

"""Servers that are thrown away live in memory, but only where that is safe."""

import os
import tempfile
from pathlib import Path

import pytest

from holdfast.testing import homes
from holdfast.testing.homes import temporary_home


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for the memory; there is always room for a byte."""
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(homes, "MEMORY", tmp_path)
    monkeypatch.setattr(homes, "ROOM", 1)
    return tmp_path


def test_a_home_is_in_memory_open_to_all_and_gone_afterwards(memory: Path) -> None:
    with temporary_home() as home:
        assert home.parent == memory
        assert home.stat().st_mode & 0o777 == 0o755
        (home / "data").mkdir()
    assert not list(memory.iterdir())


def test_it_is_on_disk_where_memory_is_scarce(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "ROOM", 2**80)
    with temporary_home() as home:
        assert home.parent == Path(tempfile.gettempdir())


def test_it_is_on_disk_where_memory_runs_no_programs(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = os.statvfs(memory)
    closed = os.statvfs_result([*facts[:8], facts.f_flag | os.ST_NOEXEC, *facts[9:]])
    monkeypatch.setattr(os, "statvfs", lambda _: closed)
    with temporary_home() as home:
        assert home.parent == Path(tempfile.gettempdir())


def test_it_is_on_disk_where_there_is_no_such_memory(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "MEMORY", memory / "none")
    with temporary_home() as home:
        assert home.parent == Path(tempfile.gettempdir())


def test_it_is_where_temporary_files_are_said_to_go(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    with temporary_home() as home:
        assert home.parent == Path(tempfile.gettempdir())

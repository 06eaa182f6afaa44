"""Fixtures for tests in which something breaks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.process import Process, StartProcess
from tests.faults.proxy import Proxy


@pytest.fixture
def crew(holdfast_dsn: str) -> Iterator[StartProcess]:
    """`crew(concurrency=5)`: another worker process; all are gone after the test."""
    started: list[Process] = []

    def crew(**options: Any) -> Process:
        started.append(Process(holdfast_dsn, options))
        return started[-1].wait_until_started()

    yield crew
    for process in started:
        process.end()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What `hold` waits for: `gate.touch()`."""
    return tmp_path / "gate"


@pytest.fixture
def proxy(holdfast_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Stands between a worker and the test's database; `proxy.dsn` leads through it."""
    with Proxy(holdfast_dsn) as proxy:
        yield proxy

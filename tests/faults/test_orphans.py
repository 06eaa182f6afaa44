"""A worker that is killed takes its children with it: nobody goes on with a job that others are given."""

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, JobState
from tests.faults.process import StartProcess
from tests.fixtures import Until
from tests.waiting import PATIENCE


class Pipe:
    """A named pipe that children hold open: it ends when the last of them is gone."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def lines(self, amount: int) -> list[str]:
        text = b""
        while text.count(b"\n") < amount:
            text += self._read()
        return text.decode().split()

    def has_ended(self) -> bool:
        return self._read() == b""

    def close(self) -> None:
        os.close(self._end)

    def _read(self) -> bytes:
        ready, _, _ = select.select([self._end], [], [], PATIENCE)
        assert ready, "whoever holds the pipe lives, and says nothing"
        return os.read(self._end, 1000)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    pipe = Pipe(tmp_path / "pipe")
    yield pipe
    pipe.close()


@pytest.mark.parametrize("how", ["waits", "burns"])
def test_children_do_not_outlive_a_worker_that_was_killed(
    hf: Holdfast, crew: StartProcess, pipe: Pipe, how: str
) -> None:
    worker = crew(concurrency=3, max_isolated=3)
    for _ in range(3):
        hf.enqueue("alone", {"pipe": pipe.path, "how": how})
    pids = set(pipe.lines(3))
    assert len(pids) == 3
    assert str(worker.pid) not in pids
    worker.signal(signal.SIGKILL)
    assert pipe.has_ended()


def test_nor_if_a_fork_of_the_worker_goes_on(
    hf: Holdfast, crew: StartProcess, pipe: Pipe, tmp_path: Path, until: Until
) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    worker = crew(concurrency=2)
    hf.enqueue("alone", {"pipe": pipe.path, "how": "waits"})
    pipe.lines(1)
    fork = hf.enqueue("fork", {"pipe": str(gate)})
    with gate.open("wb"):
        until(lambda: fork.refresh().state is JobState.COMPLETED)
        worker.signal(signal.SIGKILL)
        assert pipe.has_ended()
        os.kill(fork.refresh().result, 0)  # it still holds what it had from the worker

"""More workers start than the server has connections for: those that get one work, and the others wait."""

import signal
import threading
from collections.abc import Iterator

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.task import named_job
from tests.cli.programs import Program
from tests.faults.fleet import HERE
from tests.faults.small_server import small_server
from tests.fixtures import Until

WORKERS = 12
MOST = 20


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with small_server(MOST) as hf:
        yield hf


class Load:
    """A thread that enqueues jobs until it is stopped."""

    def __init__(self, hf: Holdfast) -> None:
        self.enqueued = 0
        self._hf = hf
        # These connections are made before the workers take the others.
        self._watcher = psycopg.connect(hf.dsn, autocommit=True)
        hf.enqueue("noop").cancel()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._enqueue)
        self._thread.start()

    def _enqueue(self) -> None:
        while not self._stop.wait(0.02):
            self._hf.enqueue_many(named_job("work", {"seconds": 0.01}) for _ in range(10))
            self.enqueued += 10

    def completed(self) -> int:
        found = self._watcher.execute("select count(*) from holdfast.finished where state = 'completed'")
        return int(found.fetchall()[0][0])

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def close(self) -> None:
        self.stop()
        self._watcher.close()


@pytest.fixture
def load(hf: Holdfast) -> Iterator[Load]:
    load = Load(hf)
    yield load
    load.close()


@pytest.fixture
def programs(hf: Holdfast, load: Load) -> Iterator[list[Program]]:
    programs = [Program("worker", "app:hf", cwd=HERE, dsn=hf.dsn) for _ in range(WORKERS)]
    yield programs
    for program in programs:
        program.close()


def test_workers_without_a_connection_join_when_others_leave(
    load: Load, programs: list[Program], until: Until
) -> None:
    def started() -> set[Program]:
        return {it for it in programs if "worker.started" in it.said}

    def refused(program: Program) -> int:
        return program.said.count("connections.refused")

    until(lambda: all(it in started() or refused(it) for it in programs))
    before = load.completed()
    until(lambda: load.completed() > before + 200)
    left = set[Program]()
    while len(joined := started()) < WORKERS:
        for program in joined - left:
            program.signal(signal.SIGTERM)
        left |= joined
        until(lambda joined=joined: started() > joined)
    load.stop()
    until(lambda: load.completed() == load.enqueued)
    for program in set(programs) - left:
        program.signal(signal.SIGTERM)
    assert [program.exit_code() for program in programs] == [0] * WORKERS
    assert max(refused(program) for program in programs) == 1
    assert not any("Traceback" in program.said for program in programs)

"""What the harness asks of a peer: install it, give it a place, enqueue, work, and tell when all is done.

The files in `peers/` declare it; the agents in `agents/` do it, each in its peer's own environment.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from bench.environments import Environment
from bench.processes import AGENTS, Producer, Worker, Workers
from bench.server import Server

Done = Callable[[], bool]
Tasks = tuple[str, ...]


class Place(Protocol):
    """Where the jobs of a cell are."""

    def uri(self, authority: str = "") -> str: ...


class Peer(ABC):
    """A queue under test."""

    name: ClassVar[str]
    # The documented best settings, and where they are documented.
    settings: ClassVar[str]
    source: ClassVar[str]
    agent: ClassVar[str]
    # How many jobs at once a worker runs where they do nothing; the realistic job asks for its own number.
    concurrency: ClassVar[int]
    broker: ClassVar[str] = "PostgreSQL"
    # It is judged by what the targets name: it gets as many jobs as they say, however long that takes.
    judged: ClassVar[bool] = False
    # What a program imports to declare a task.
    loading: ClassVar[str]
    # Variables for the agent's process.
    environ: ClassVar[Mapping[str, str]] = {}
    # The measures that cannot be made of it, and why.
    cannot: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._environment = Environment(self.name)

    @property
    def version(self) -> str:
        return self._environment.version

    def install(self) -> None:
        """Raises `NotInstalled`."""
        self._environment.install()

    @property
    def interpreter(self) -> Path:
        return self._environment.interpreter

    @property
    def import_command(self) -> list[str | Path]:
        """A process that does nothing but load the peer."""
        return [self.interpreter, "-c", self.loading]

    @property
    def idle_command(self) -> list[str | Path]:
        """The same process without the peer."""
        return [self.interpreter, "-c", "pass"]

    def producer(self, place: Place, *, environ: Mapping[str, str] | None = None) -> Producer:
        return Producer(self._command(place, "produce"), {**self._environ(), **(environ or {})})

    def workers(
        self, place: Place, *, processes: int = 1, concurrency: int | None = None, notify: bool = True
    ) -> Workers:
        each = range(processes)
        return Workers([self.worker(place, concurrency=concurrency, notify=notify) for _ in each])

    def worker(self, place: Place, *, concurrency: int | None = None, notify: bool = True) -> Worker:
        options = [f"--concurrency={concurrency or self.concurrency}", *([] if notify else ["--no-notify"])]
        return Worker(self._command(place, "work", *options), self._environ())

    def _command(self, place: Place, role: str, *options: str) -> list[str | Path]:
        return [self.interpreter, AGENTS / self.agent, role, self.address(place), *options]

    def _environ(self) -> dict[str, str]:
        return {"BENCH_ENVIRONMENT": str(self._environment.path), **self.environ}

    def address(self, place: Place) -> str:
        return place.uri()

    @abstractmethod
    def empty(self, server: Server) -> AbstractContextManager[Any]:
        """A place where nothing waits, but which has been in service."""

    @abstractmethod
    def burst(self, server: Server, amount: int, tasks: Tasks) -> AbstractContextManager[Any]:
        """A place where so many jobs were enqueued just now; `tasks` is the cycle that they go through."""

    @abstractmethod
    def settled(
        self, server: Server, amount: int, tasks: Tasks, *, upon: tuple[int, str] | None = None
    ) -> AbstractContextManager[Any]:
        """A place where they have waited for long: vacuumed and analyzed.

        `upon` lays them on top of so many of another task. The first one is kept for the run and copied.
        """

    @abstractmethod
    def goal(
        self, place: Any, amount: int, workers: Workers, *, newest: bool = False
    ) -> AbstractContextManager[Done]:
        """Asks whether the first `amount` of the jobs that wait now and are not strangers are finished.

        Or the newest: where those before them cannot be cleaned up, to look for the first takes a second, and
        leaves nothing else in the server's memory.
        """

    def forget(self, server: Server) -> None:  # noqa: B027 - most keep nothing
        """Give back what was kept for the run."""

"""Peers that keep their jobs in Redis."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from bench.environments import NotInstalled
from bench.in_postgres import PATIENCE
from bench.peer import Done, Peer, Tasks
from bench.processes import Workers
from bench.redis import HOST, PORT, Redis, free_database
from bench.server import Server


class RedisPlace:
    """A numbered database that was empty."""

    def __init__(self, number: int) -> None:
        self.number = number

    def uri(self, authority: str = "") -> str:  # noqa: ARG002 - it always has one
        return f"redis://{HOST}:{PORT}/{self.number}"


class RedisPeer(Peer):
    """A peer that keeps its jobs in Redis."""

    broker = "Redis"

    @abstractmethod
    def left(self, redis: Redis) -> int:
        """How many messages wait in the broker."""

    def install(self) -> None:
        if free_database() is None:
            raise NotInstalled(f"no Redis answers at {HOST}:{PORT} with an empty database")
        super().install()

    @contextmanager
    def empty(self, server: Server) -> Iterator[RedisPlace]:  # noqa: ARG002 - Redis is not on it
        number = free_database()
        if number is None:
            raise NotInstalled("Redis has no empty database any more")
        try:
            yield RedisPlace(number)
        finally:
            with Redis() as redis:
                redis.ask("select", number)
                redis.ask("flushdb")

    @contextmanager
    def burst(self, server: Server, amount: int, tasks: Tasks) -> Iterator[RedisPlace]:
        with self.empty(server) as place:
            with self.producer(place) as producer:
                producer.ask("bulk", amount=amount, tasks=list(tasks), patience=PATIENCE)
            yield place

    @contextmanager
    def settled(
        self, server: Server, amount: int, tasks: Tasks, *, upon: tuple[int, str] | None = None
    ) -> Iterator[RedisPlace]:
        """Nothing settles in Redis, and no backlog is measured there."""
        assert upon is None
        with self.burst(server, amount, tasks) as place:
            yield place

    @contextmanager
    def goal(
        self,
        place: RedisPlace,
        amount: int,
        workers: Workers,
        *,
        newest: bool = False,  # noqa: ARG002
    ) -> Iterator[Done]:
        """All handlers were called and nothing waits: Redis keeps no record of what is finished.

        That is generous. Acknowledgements may still be on their way, at dramatiq for seconds.
        """
        with Redis() as redis:
            redis.ask("select", place.number)
            yield lambda: workers.ran >= amount and self.left(redis) == 0

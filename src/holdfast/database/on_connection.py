"""Runs calls on a connection of the caller, inside the transaction that is open there."""

from collections.abc import Iterable
from typing import Any, TypeVar

from holdfast.database.copy_in import aload_on, load_on
from holdfast.database.statements import arun_on, run_on
from holdfast.values.call import Call
from holdfast.values.job import JobId, NewJob

T = TypeVar("T")


class OnConnection:
    """A carrier that runs calls on a psycopg connection or cursor. `Database` runs them through its pools."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def run(self, call: Call[T]) -> T:
        return run_on(self.connection, call)

    async def arun(self, call: Call[T]) -> T:
        return await arun_on(self.connection, call)

    def load(self, jobs: Iterable[NewJob]) -> list[JobId]:
        return load_on(self.connection, jobs)

    async def aload(self, jobs: Iterable[NewJob]) -> list[JobId]:
        return await aload_on(self.connection, jobs)

"""Carrying calls: what every part of a Holdfast has at hand."""

from typing import Any, TypeVar

from holdfast.calls import Call
from holdfast.database import Database, arun_on, run_on
from holdfast.values import limits
from holdfast.values.errors import suggest
from holdfast.values.job import JobState

T = TypeVar("T")


class Asking:
    """Asks the database, on a connection of its own or of the caller's."""

    @property
    def database(self) -> Database:
        raise NotImplementedError

    def run(self, call: Call[T], *, conn: Any = None) -> T:
        """Carry a call: on the caller's own connection, else through the pool."""
        return self.database.run(call) if conn is None else run_on(conn, call)

    async def arun(self, call: Call[T], *, conn: Any = None) -> T:
        return await self.database.arun(call) if conn is None else await arun_on(conn, call)


def known_state(state: JobState | str | None) -> JobState | None:
    """One of ours; raises `BadInput` with the nearest one."""
    if state is None:
        return None
    try:
        return JobState(state)
    except ValueError:
        raise limits.refused(
            "state", state, "is not a state", hint=suggest(str(state), [known.value for known in JobState])
        ) from None

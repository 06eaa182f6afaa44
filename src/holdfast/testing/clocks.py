"""Moves the time of a test database by hand. Its SQL functions are in `sql/testing.sql`."""

from datetime import UTC, datetime, timedelta

import psycopg

from holdfast.database import arun_on, run_on
from holdfast.values import limits
from holdfast.values.call import Call, Function, Rows
from holdfast.values.errors import UnknownOption

PARTS = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds")

# Not in `operations`, because only test databases have these functions.
_now = Function("clock", {})
_advance = Function("test_advance", {"seconds": "double precision"})
_set = Function("test_set", {"at": "timestamptz"})


class Clock:
    """The time of one test database. It continues by itself, and workers read it at their next call."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def now(self) -> datetime:
        """Return the time in that database, in UTC. Holdfast takes every time from it."""
        return self._run(_now(_time))

    async def anow(self) -> datetime:
        return await self._arun(_now(_time))

    def advance(self, by: timedelta | None = None, **parts: float) -> datetime:
        """Move the clock by a timedelta or `hours=3, minutes=30`, and return the new time."""
        return self._run(advance_clock(_length(by, parts)))

    async def aadvance(self, by: timedelta | None = None, **parts: float) -> datetime:
        return await self._arun(advance_clock(_length(by, parts)))

    def set(self, at: datetime) -> datetime:
        """Set the clock to this time, from which it continues."""
        return self._run(_set(_time, limits.moment("at", at)))

    async def aset(self, at: datetime) -> datetime:
        return await self._arun(_set(_time, limits.moment("at", at)))

    def _run(self, call: Call[datetime]) -> datetime:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            return run_on(connection, call)

    async def _arun(self, call: Call[datetime]) -> datetime:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            return await arun_on(connection, call)


def advance_clock(by: timedelta) -> Call[datetime]:
    return _advance(_time, by.total_seconds())


def _time(rows: Rows) -> datetime:
    found: datetime = rows[0][0]
    return found.astimezone(UTC)


def _length(by: timedelta | None, parts: dict[str, float]) -> timedelta:
    for part, value in parts.items():
        if part not in PARTS:
            raise UnknownOption.among(part, PARTS, owner="clock.advance")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise limits.refused(part, value, "must be a number")
    if by is None and not parts:
        raise limits.refused("by", by, "must be given", hint="Write clock.advance(hours=1).")
    if by is not None and parts:
        raise limits.refused("by", by, "give either a timedelta or parts of one, not both")
    if by is not None and not isinstance(by, timedelta):
        raise limits.refused("by", by, "must be a timedelta", hint="Write clock.advance(seconds=…).")
    try:
        length = timedelta(**parts) if by is None else by
    except (OverflowError, ValueError) as error:
        raise limits.refused("by", parts, f"is no length of time: {error}") from None
    if abs(length) > limits.CENTURY:
        raise limits.refused("by", length, "must be at most 100 years")
    return length

"""The same expressions, times and zones as cronsim, which follows Debian's cron: both say the same.

Where they do not, it is on purpose, and for one of the reasons in DIFFERENCES.
"""

import os
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from cronsim import CronSim, CronSimError

EXAMPLES = int(os.environ.get("HOLDFAST_FUZZ", "2000"))

DIFFERENCES = {
    "a range of one": "cronsim takes 5-5/2 for 5/2, all the way to the end; here it is 5.",
    "a range to Sunday": "fri-sun is refused by cronsim, since Sunday is 0 there; here it is 5-7.",
    "a name before L": "friL is refused by cronsim; here it is 5L.",
    "a change of clocks": "Near one, cronsim sets minutes and hours back on the clock before it goes on, and "
    "so misses times. Here every moment counts at which the clocks show a matching time.",
}
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "America/Havana",
    "America/St_Johns",
    "Pacific/Apia",
    "Pacific/Chatham",
]
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
CHANGES = [
    datetime(2026, month, day, tzinfo=UTC)
    for month, day in [(3, 8), (3, 29), (4, 5), (10, 4), (10, 25), (11, 1)]
]


class Chance(random.Random):
    """Makes up expressions, times and zones. Not hypothesis: it took seven eighths of the time."""

    def expression(self) -> str:
        parts = [
            self.choice(["", "", self.field(0, 59)]),
            self.field(0, 59),
            self.field(0, 23),
            self.field(1, 31, special=["L"]),
            self.choice(["*", "*", self.field(1, 12, MONTHS)]),
            self.field(
                0, 7, WEEKDAYS, special=[f"{self.randint(0, 7)}L", self.nth_weekday(), "fri-sun", "friL"]
            ),
        ]
        return " ".join(filter(None, parts))

    def field(self, low: int, high: int, names: Sequence[str] = (), special: Sequence[str] = ()) -> str:
        def term() -> str:
            return self.choice(special) if special and self.random() < 0.3 else self.term(low, high, names)

        return self.choice(["*", term(), ",".join(term() for _ in range(self.randint(2, 3)))])

    def term(self, low: int, high: int, names: Sequence[str]) -> str:
        first, last = sorted(self.randint(low, high) for _ in range(2))
        number = self.choice(names) if names and self.random() < 0.5 else str(self.randint(low, high))
        base = self.choice(["*", number, f"{first}-{last}"])
        return base + self.choice(["", "", f"/{self.randint(1, high + 2)}"])

    def last_weekday(self) -> str:
        return f"{self.randint(0, 7)}L"

    def nth_weekday(self) -> str:
        return f"{self.randint(0, 7)}#{self.randint(1, 5)}"

    def time(self) -> datetime:
        """Any, or one around the last Sundays of March and October, and the first of April and November."""
        if self.random() < 0.5:
            return datetime(2001, 1, 1, tzinfo=UTC) + timedelta(seconds=self.randint(0, 60 * 365 * 86400))
        return self.choice(CHANGES) + timedelta(seconds=self.randint(-36 * 3600, 36 * 3600))


@pytest.fixture(scope="module")
def ours(database: tuple[str, psycopg.Connection[Any]]) -> Callable[[str, datetime, str], datetime | None]:
    """Our answer; nothing if the expression is refused."""
    _, connection = database

    def ours(cron: str, after: datetime, zone: str) -> datetime | None:
        try:
            with connection.transaction():
                found = connection.execute("select holdfast.next_occurrence(%s, %s, %s)", [cron, after, zone])
                return found.fetchall()[0][0]
        except psycopg.Error as error:
            if error.sqlstate != "HF008":
                raise
            return None

    return ours


def theirs(cron: str, after: datetime, zone: str) -> datetime | None:
    """Cronsim's answer: the first that is not past, for it may name a moment that has been."""
    try:
        simulated = CronSim(cron, after.astimezone(ZoneInfo(zone)))
        return next(found for found in (at.astimezone(UTC) for at in simulated) if found > after)
    except (CronSimError, StopIteration):
        return None


def test_as_cronsim_says(ours: Callable[[str, datetime, str], datetime | None]) -> None:
    chance = Chance(2026)
    for _ in range(EXAMPLES):
        cron, after, zone = chance.expression(), chance.time(), chance.choice(ZONES)
        found, expected = ours(cron, after, zone), theirs(cron, after, zone)
        if found != expected:
            reason = difference(cron, after, zone, found)
            assert reason in DIFFERENCES, (cron, after, zone, found, expected)


def difference(cron: str, after: datetime, zone: str, found: datetime | None) -> str | None:
    """Why cronsim says something else, if we know."""
    if "fri-sun" in cron:
        return "a range to Sunday"
    if "friL" in cron:
        return "a name before L"
    if any(_is_range_of_one(term) for field in cron.split() for term in field.split(",")):
        return "a range of one"
    if found is not None and _clocks_change(after, zone, found) and _is_first(cron, after, zone, found):
        return "a change of clocks"
    return None


def _is_range_of_one(term: str) -> bool:
    bounds, step, _ = term.partition("/")
    first, to, last = bounds.partition("-")
    return bool(step and to and first == last)


def _clocks_change(after: datetime, zone: str, found: datetime) -> bool:
    there, hour = ZoneInfo(zone), timedelta(hours=1)
    around = [moment + n * hour for moment in (after, found) for n in range(-30, 31)]
    offsets = {moment.astimezone(there).utcoffset() for moment in around}
    return len(offsets) > 1


def _is_first(cron: str, after: datetime, zone: str, found: datetime) -> bool:
    """Whether the clocks show a matching time then, and at no moment before; by looking at each."""
    there = ZoneInfo(zone)
    parts = cron.split()
    step = timedelta(seconds=1 if len(parts) == 6 and found - after < timedelta(hours=3) else 60)

    def matches(moment: datetime) -> bool:
        # As a wall clock that runs evenly: cronsim's own rules, without any zone.
        wall = moment.astimezone(there).replace(tzinfo=None)
        return next(CronSim(cron, wall - timedelta(seconds=1))) == wall

    if not matches(found):
        return False
    moment = found - step
    while moment > after and found - moment < timedelta(hours=30):
        if matches(moment):
            return False
        moment -= step
    return True

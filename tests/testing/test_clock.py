"""The clock of a test database: it tells the time, moves, and refuses what it does not understand."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from holdfast import BadValue, UnknownOption
from holdfast.testing import Clock
from tests.fixtures import Ask

MOMENT = timedelta(seconds=10)


def test_it_tells_the_time_of_the_database(clock: Clock, ask: Ask) -> None:
    before, now = ask("select holdfast.clock()")[0][0], clock.now()
    assert now.tzinfo is UTC
    assert before <= now <= ask("select holdfast.clock()")[0][0]


def test_it_moves_by_a_timedelta_or_by_parts_of_one(clock: Clock) -> None:
    begun = clock.now()
    assert clock.advance(timedelta(hours=1)) - begun - timedelta(hours=1) < MOMENT
    assert clock.advance(days=1, minutes=1.5) - begun - timedelta(hours=25, seconds=90) < MOMENT
    assert clock.advance(timedelta(0)) - begun - timedelta(hours=25, seconds=90) < MOMENT


def test_it_moves_back(clock: Clock) -> None:
    begun = clock.now()
    assert abs(begun - clock.advance(hours=-1) - timedelta(hours=1)) < MOMENT


def test_it_is_set_and_goes_on_from_there(clock: Clock) -> None:
    new_year = datetime(2040, 1, 1, tzinfo=UTC)
    assert new_year <= clock.set(new_year) < new_year + MOMENT
    assert new_year < clock.now() < new_year + MOMENT


def test_a_day_has_24_hours_also_where_the_clocks_change(clock: Clock, holdfast_dsn: str) -> None:
    clock.set(datetime(2030, 3, 30, 12, tzinfo=UTC))
    clock.advance(days=1)
    with psycopg.connect(holdfast_dsn, options="-c TimeZone=Europe/Berlin") as connection:
        ((there,),) = connection.execute("select holdfast.clock()").fetchall()
    assert abs(there - datetime(2030, 3, 31, 12, tzinfo=UTC)) < MOMENT


def test_it_moves_in_a_coroutine_too(clock: Clock) -> None:
    async def main() -> None:
        begun = await clock.anow()
        assert await clock.aadvance(hours=1) - begun - timedelta(hours=1) < MOMENT
        assert await clock.aset(begun) - begun < MOMENT

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "parts", "error", "said"),
    [
        ((), {}, BadValue, "says not how far. Write clock.advance(hours=1)."),
        ((), {"hour": 1}, UnknownOption, "clock.advance has no option 'hour'. Did you mean 'hours'?"),
        ((timedelta(1),), {"hours": 1}, BadValue, "give either a timedelta or parts of one, not both"),
        ((3600,), {}, BadValue, "by 3600: must be a timedelta. Write clock.advance(seconds=…)."),
        ((), {"hours": "1"}, BadValue, "hours '1': must be a number"),
        ((), {"hours": float("nan")}, BadValue, "is no length of time"),
        ((), {"weeks": 1e12}, BadValue, "is no length of time"),
        ((), {"weeks": -6000}, BadValue, "must be at most 100 years"),
    ],
)
def test_what_it_does_not_understand_is_refused(
    clock: Clock, given: tuple[Any, ...], parts: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as refused:
        clock.advance(*given, **parts)
    assert said in str(refused.value)
    with pytest.raises(error):
        asyncio.run(clock.aadvance(*given, **parts))


def test_it_is_not_set_to_a_time_without_a_zone(clock: Clock) -> None:
    with pytest.raises(BadValue, match="must have a time zone"):
        clock.set(datetime(2040, 1, 1))  # noqa: DTZ001 - that is the point

"""When a cron expression comes true: table by table, and what is refused."""

from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tests.sql.sessions import Connect, Refused, Session

Upcoming = Callable[..., list[str]]


@pytest.fixture
def upcoming(sql: Session) -> Upcoming:
    """`upcoming("0 9 * * *", "2026-01-01 00:00", 3, "Europe/Berlin")`: the next three, as shown there."""

    def upcoming(cron: str, after: str, amount: int = 1, zone: str = "UTC") -> list[str]:
        there = ZoneInfo(zone)
        at = datetime.fromisoformat(after)
        at = at if at.tzinfo else at.replace(tzinfo=there)
        found = []
        for _ in range(amount):
            at = sql.value("next_occurrence", cron=cron, after=at, zone=zone)
            found.append(at.astimezone(there).isoformat(" ").removesuffix(":00"))
        return found

    return upcoming


@pytest.mark.parametrize(
    ("cron", "after", "times"),
    [
        ("* * * * *", "2026-01-01 00:00", ["2026-01-01 00:01", "2026-01-01 00:02"]),
        ("*/15 * * * *", "2026-01-01 00:50", ["2026-01-01 01:00", "2026-01-01 01:15"]),
        ("7/20 * * * *", "2026-01-01 00:00", ["2026-01-01 00:07", "2026-01-01 00:27", "2026-01-01 00:47"]),
        ("0 9 * * mon-fri", "2026-01-02 09:00", ["2026-01-05 09:00", "2026-01-06 09:00"]),
        ("0 9 * * FRI-SUN", "2026-01-01 09:00", ["2026-01-02 09:00", "2026-01-03 09:00", "2026-01-04 09:00"]),
        ("0 0 * * 7", "2026-01-01 00:00", ["2026-01-04 00:00"]),
        ("0 0 1,15 jan,Jul *", "2026-01-02 00:00", ["2026-01-15 00:00", "2026-07-01 00:00"]),
        ("30 22-23,4 * * *", "2026-01-01 22:30", ["2026-01-01 23:30", "2026-01-02 04:30"]),
        ("0 0 L * *", "2026-01-31 00:00", ["2026-02-28 00:00", "2026-03-31 00:00"]),
        ("0 0 1,L 2 *", "2026-01-31 00:00", ["2026-02-01 00:00", "2026-02-28 00:00"]),
        ("0 0 * * mon#1", "2026-01-01 00:00", ["2026-01-05 00:00", "2026-02-02 00:00"]),
        ("0 0 * * 1#5", "2026-01-01 00:00", ["2026-03-30 00:00", "2026-06-29 00:00"]),
        ("0 0 * * 5L", "2026-01-01 00:00", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 * * friL,mon#2", "2026-01-01 00:00", ["2026-01-12 00:00", "2026-01-30 00:00"]),
        ("0 0 29 2 *", "2026-01-01 00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 29 2 *", "2096-03-01 00:00", ["2104-02-29 00:00"]),
        ("0 0 */29 2 mon", "2026-01-01 00:00", ["2027-02-01 00:00"]),
        ("0 0 31 * *", "2026-01-31 00:00", ["2026-03-31 00:00", "2026-05-31 00:00"]),
        ("59 23 31 12 *", "2026-01-01 00:00", ["2026-12-31 23:59", "2027-12-31 23:59"]),
        ("@hourly", "2026-12-31 23:30", ["2027-01-01 00:00"]),
        ("@Daily", "2026-12-31 23:30", ["2027-01-01 00:00"]),
        ("@midnight", "2026-12-31 23:30", ["2027-01-01 00:00"]),
        ("@weekly", "2026-01-01 00:00", ["2026-01-04 00:00"]),
        ("@monthly", "2026-01-01 00:00", ["2026-02-01 00:00"]),
        ("@yearly", "2026-01-01 00:00", ["2027-01-01 00:00"]),
        ("@annually", "2026-01-01 00:00", ["2027-01-01 00:00"]),
        ("  0\t9  * *\n* ", "2026-01-01 00:00", ["2026-01-01 09:00"]),
    ],
)
def test_five_fields(upcoming: Upcoming, cron: str, after: str, times: list[str]) -> None:
    assert upcoming(cron, after, len(times)) == [f"{time}:00+00" for time in times]


@pytest.mark.parametrize(
    ("cron", "after", "times"),
    [
        ("*/20 * * * * *", "2026-01-01 00:00:59", ["00:01:00", "00:01:20", "00:01:40", "00:02:00"]),
        ("5,35 59 23 * * *", "2026-01-01 00:00:00", ["23:59:05", "23:59:35"]),
        ("0 0 0 1 1 *", "2025-12-31 23:59:59", ["00:00:00"]),
    ],
)
def test_six_fields_begin_with_the_second(
    upcoming: Upcoming, cron: str, after: str, times: list[str]
) -> None:
    assert [found[11:19] for found in upcoming(cron, after, len(times))] == times


@pytest.mark.parametrize(
    ("cron", "days"),
    [
        ("0 0 13 * fri", [2, 9, 13, 16]),  # neither begins with a star: one of them is enough
        ("0 0 13 * *", [13]),
        ("0 0 * * fri", [2, 9, 16]),
        ("0 0 */2 * fri", [9, 23]),  # one begins with a star: both
        ("0 0 1-31/2 * fri", [1, 2, 3, 5]),
        ("0 0 9 * */5", [9]),
        ("0 0 1,* * fri", [1, 2, 3, 4]),
    ],
)
def test_days_of_the_month_and_of_the_week(upcoming: Upcoming, cron: str, days: list[int]) -> None:
    found = upcoming(cron, "2025-12-31 23:00", len(days))
    assert [int(day[8:10]) for day in found] == days


BERLIN = "Europe/Berlin"  # 2026-03-29 02:00 becomes 03:00, 2026-10-25 03:00 becomes 02:00
NEW_YORK = "America/New_York"  # 2026-03-08 02:00 becomes 03:00, 2026-11-01 02:00 becomes 01:00
LORD_HOWE = "Australia/Lord_Howe"  # 2026-04-05 02:00 becomes 01:30, 2026-10-04 02:00 becomes 02:30
HAVANA = "America/Havana"  # 2026-03-08 00:00 becomes 01:00
KOLKATA = "Asia/Kolkata"


@pytest.mark.parametrize(
    ("zone", "cron", "after", "times"),
    [
        # A time of the day that is left out comes right after; one that comes twice, once.
        (BERLIN, "30 2 * * *", "2026-03-28 12:00", ["03-29 03:00:00+02", "03-30 02:30:00+02"]),
        (BERLIN, "0,30 2 * * *", "2026-03-28 12:00", ["03-29 03:00:00+02", "03-30 02:00:00+02"]),
        (BERLIN, "30 2,3 * * *", "2026-03-28 12:00", ["03-29 03:00:00+02", "03-29 03:30:00+02"]),
        (BERLIN, "30 2 * * *", "2026-10-24 12:00", ["10-25 02:30:00+02", "10-26 02:30:00+01"]),
        (BERLIN, "30 2 * * *", "2026-10-25 02:10:00+01:00", ["10-26 02:30:00+01"]),
        (BERLIN, "0 3 * * *", "2026-10-24 12:00", ["10-25 03:00:00+01", "10-26 03:00:00+01"]),
        (NEW_YORK, "0 2 * * sun", "2026-03-07 12:00", ["03-08 03:00:00-04", "03-15 02:00:00-04"]),
        (NEW_YORK, "30 1 * * *", "2026-10-31 12:00", ["11-01 01:30:00-04", "11-02 01:30:00-05"]),
        (LORD_HOWE, "15 2 * * *", "2026-10-03 12:00", ["10-04 02:30:00+11", "10-05 02:15:00+11"]),
        (LORD_HOWE, "45 1 * * *", "2026-04-04 12:00", ["04-05 01:45:00+11", "04-06 01:45:00+10:30"]),
        (HAVANA, "0 0 * * *", "2026-03-07 12:00", ["03-08 01:00:00-04", "03-09 00:00:00-04"]),
        # What is repeated all day goes with the time that passes.
        (BERLIN, "*/30 * * * *", "2026-03-29 01:15", ["03-29 01:30:00+01", "03-29 03:00:00+02"]),
        (
            BERLIN,
            "30 * * * *",
            "2026-10-25 01:30",
            ["10-25 02:30:00+02", "10-25 02:30:00+01", "10-25 03:30:00+01"],
        ),
        (BERLIN, "0 */2 * * *", "2026-10-25 00:30", ["10-25 02:00:00+02", "10-25 02:00:00+01"]),
        (BERLIN, "0 */2 * * *", "2026-03-29 00:30", ["03-29 04:00:00+02"]),
        (LORD_HOWE, "*/15 * * * *", "2026-04-05 01:45", ["04-05 01:30:00+10:30", "04-05 01:45:00+10:30"]),
        (LORD_HOWE, "*/20 * * * *", "2026-10-04 01:40", ["10-04 02:40:00+11"]),
        # And so does everything with seconds.
        (BERLIN, "0 30 2 * * *", "2026-03-28 12:00", ["03-30 02:30:00+02"]),
        (BERLIN, "0 30 2 * * *", "2026-10-24 12:00", ["10-25 02:30:00+02", "10-25 02:30:00+01"]),
        (BERLIN, "0 30 2 25 10 *", "2026-10-25 02:40:00+02:00", ["10-25 02:30:00+01", "10-25 02:30:00+02"]),
        (KOLKATA, "0 9 * * *", "2026-01-01 00:00", ["01-01 09:00:00+05:30"]),
        (BERLIN, "0 0 1 1 *", "2026-06-01 00:00", ["01-01 00:00:00+01"]),
    ],
)
def test_clocks_that_change(upcoming: Upcoming, zone: str, cron: str, after: str, times: list[str]) -> None:
    assert [found[5:] for found in upcoming(cron, after, len(times), zone)] == times


def test_the_session_makes_no_difference(sql: Session, connect: Connect) -> None:
    other = connect()
    other("set timezone = 'America/New_York'")
    given = {"cron": "30 2 * * *", "after": datetime(2026, 3, 28, 12, tzinfo=UTC), "zone": BERLIN}
    assert other.value("next_occurrence", **given) == sql.value("next_occurrence", **given)


@pytest.mark.parametrize(
    ("cron", "reason"),
    [
        ("", "it has 0"),
        ("* * * *", "it has 4"),
        ("* * * * * * *", "it has 7"),
        ("60 * * * *", "minute '60': must be a number from 0 to 59"),
        ("* 24 * * *", "hour '24': must be a number from 0 to 23"),
        ("* * 0 * *", "day of the month '0': must be a number from 1 to 31"),
        ("* * * 13 *", "month '13': must be a number from 1 to 12 or one of jan"),
        ("* * * * 8", "day of the week '8': must be a number from 0 to 7 or one of sun"),
        ("* * * * moon", "day of the week 'MOON'"),
        ("* * * * 1#6", "the number behind # goes from 1 to 5"),
        ("* * * * L", "day of the week 'L'"),
        ("* * 15W * *", "day of the month '15W'"),
        ("* * LW * *", "day of the month 'LW'"),
        ("* * ? * *", "for a question mark write a star"),
        ("*/0 * * * *", "a step must be at least 1"),
        ("9-5 * * * *", "a range must go upwards"),
        ("1,,2 * * * *", "minute ''"),
        ("*-5 * * * *", "minute '*-5'"),
        ("-1 * * * *", "minute '-1'"),
        ("1.5 * * * *", "minute '1.5'"),
        ("99999999999999999999 * * * *", "minute '99999999999999999999'"),
        ("@reboot", "must be one of @yearly"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4,6,9,11 *", "never comes"),
        ("0 0 */30 2 mon#5", "never comes"),
        ("1" * 201, "at most 200 characters"),
    ],
)
def test_nonsense_is_refused_with_the_field_and_the_reason(
    sql: Session, refused: Refused, cron: str, reason: str
) -> None:
    with refused("HF008") as error:
        sql.value("next_occurrence", cron=cron, after=datetime(2026, 1, 1, tzinfo=UTC))
    assert reason in error.message
    assert error.detail["field"] == "cron"


@pytest.mark.parametrize("zone", ["PST", "CEST", "Mars/Olympus", "nowhere", "foo3", "+5", ""])
def test_a_zone_is_a_full_name(sql: Session, refused: Refused, zone: str) -> None:
    with refused("HF008") as error:
        sql.value("next_occurrence", cron="@daily", after=datetime(2026, 1, 1, tzinfo=UTC), zone=zone)
    assert error.detail["field"] == "zone"
    assert "Europe/Berlin" in error.message


def test_a_time_out_of_range_is_refused(sql: Session, refused: Refused) -> None:
    with refused("HF008"):
        sql("select holdfast.next_occurrence('@daily', 'infinity')")
    with refused("HF008"):
        sql("select holdfast.next_occurrence('@daily', null)")

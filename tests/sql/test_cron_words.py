"""A cron expression in words: what it stands for, not how it is written."""

import psycopg
import pytest

from tests.sql.sessions import Session

WORDS = {
    # times
    "* * * * *": "every minute",
    "*/15 * * * *": "every 15 minutes",
    "*/7 * * * *": "every 7th minute",
    "5 * * * *": "at minute 5 of every hour",
    "5,10 * * * *": "at minutes 5 and 10 of every hour",
    "5/10 * * * *": "at minutes 5, 15, 25, 35, 45 and 55 of every hour",
    "0 * * * *": "every hour",
    "0 */2 * * *": "every 2 hours",
    "5 */2 * * *": "at minute 5 of every 2nd hour",
    "*/5 */2 * * *": "every 5 minutes of every 2nd hour",
    "0 9-17 * * *": "every hour from 09:00 to 17:00",
    "* 9 * * *": "every minute from 09:00 to 09:59",
    "1-5 1,5 * * *": "at minutes 1 to 5 of hours 1 and 5",
    "1,2,3,9 3 * * *": "at 03:01, 03:02, 03:03 and 03:09, every day",
    # seconds
    "* * * * * *": "every second",
    "*/10 * * * * *": "every 10 seconds",
    "30 * * * * *": "at second 30 of every minute",
    "*/10 * 9-17 * * *": "every 10 seconds from 09:00 to 17:59",
    "15 30 9 * * *": "at 09:30:15, every day",
    "0 0 9 * * *": "at 09:00, every day",
    "1,31,45 1-20 * * * *": "at seconds 1, 31 and 45 of minutes 1 to 20",
    # days
    "*/15 9-17 * * mon-fri": "every 15 minutes from 09:00 to 17:45, Monday to Friday",
    "0 9 * * 1,3": "at 09:00, on Monday and Wednesday",
    "0 9 * * sat,sun": "at 09:00, on Saturday and Sunday",
    "0 12 * * sun-wed": "at 12:00, Monday to Wednesday and Sunday",
    "0 2 1,15 * *": "at 02:00, on the 1st and 15th",
    "0 9 1-7 * *": "at 09:00, on the 1st to 7th",
    "0 9 */2 * *": "at 09:00, on every 2nd day of the month",
    "0 9 L * *": "at 09:00, on the last day of the month",
    "0 9 22,L * *": "at 09:00, on the 22nd and last day of the month",
    "0 9 * * mon#2": "at 09:00, on the second Monday of the month",
    "0 9 * * 5L": "at 09:00, on the last Friday of the month",
    "0 9 13 * fri": "at 09:00, on the 13th, and on Friday",
    "0 9 */2 * mon": "at 09:00, on every 2nd day of the month if it is Monday",
    "0 9 1-31 * fri": "at 09:00, every day",
    # months
    "0 0 1 1,4,7,10 *": "at 00:00, on the 1st, in January, April, July and October",
    "0 0 * jan-mar *": "at 00:00, in January to March",
    # names
    "@daily": "at 00:00, every day",
    "@hourly": "every hour",
    "@weekly": "at 00:00, on Sunday",
    "@monthly": "at 00:00, on the 1st",
    "@yearly": "at 00:00, on the 1st, in January",
}


@pytest.mark.parametrize(("cron", "words"), WORDS.items())
def test_an_expression_is_said_in_words(sql: Session, cron: str, words: str) -> None:
    assert sql.one("select holdfast.cron_in_words(%s)", cron) == words


@pytest.mark.parametrize(
    ("every", "words"),
    {
        "1 second": "every second",
        "30 seconds": "every 30 seconds",
        "90 seconds": "every 1 minute 30 seconds",
        "1 hour": "every hour",
        "36 hours": "every 1 day 12 hours",
        "7 days": "every 7 days",
    }.items(),
)
def test_an_interval_is_said_in_words(sql: Session, every: str, words: str) -> None:
    assert sql.one("select holdfast.interval_in_words(%s)", every) == words


def test_nonsense_is_refused_with_its_field(sql: Session) -> None:
    with pytest.raises(psycopg.Error, match="hour '25': must be a number from 0 to 23"):
        sql.one("select holdfast.cron_in_words('0 25 * * *')")

"""What a monitoring system asks of the database itself."""

from datetime import datetime
from typing import NamedTuple

from holdfast.calls.base import Call, function, one

_gauges = function("gauges")
_clock = function("clock")


class Gauge(NamedTuple):
    name: str
    value: float
    meaning: str


def gauges() -> Call[list[Gauge]]:
    return _gauges(lambda rows: [Gauge._make(row) for row in rows])


def clock() -> Call[datetime]:
    """Answers with the time that counts: the database's."""
    return _clock(one)

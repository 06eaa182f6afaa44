"""The types of arguments on the command line: durations, times, priorities, JSON."""

import json as parser
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from click import BadParameter

from holdfast.values import limits
from holdfast.values.job import Priority

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_EXCERPT = 30


def duration(text: str) -> timedelta:
    """Read a duration: `90s`, `5m`, `1h30m`, `2d`; a bare number is seconds."""
    seconds = _seconds(text.strip().lower())
    if seconds is None:
        raise BadParameter(f"{text!r} is not a duration. Write 90s, 5m, 1h30m or 2d.")
    if seconds > limits.CENTURY.total_seconds():
        raise BadParameter(f"{text!r} is more than 100 years.")
    return timedelta(seconds=seconds)


def _seconds(text: str) -> float | None:
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text):
        return None
    return sum(float(amount) * _UNITS[unit] for amount, unit in parts)


def time(text: str) -> datetime:
    """Read a time in ISO 8601, with its zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadParameter(f"{text!r} is not a time in ISO 8601, such as 2030-01-31T09:00+01:00.") from None
    if moment.utcoffset() is None:
        raise BadParameter(f"{text!r} has no time zone. Add Z for UTC, or an offset such as +01:00.")
    return moment


def past(text: str) -> datetime:
    """Read a time in ISO 8601 with its zone, or a time before now: `2h`, `3d`."""
    ago = _seconds(text.strip().lower())
    if ago is None:
        try:
            datetime.fromisoformat(text)
        except ValueError:
            raise BadParameter(
                f"{text!r} is not a time. Write a time ago (2h, 3d) or ISO 8601 (2030-01-31T09:00+01:00)."
            ) from None
        return time(text)
    return datetime.now(UTC) - duration(text)


def priority(text: str) -> int:
    """Read a priority: a number, or one of the named levels."""
    named = {level.name.lower(): int(level) for level in Priority}
    try:
        number = named[text.lower()] if text.lower() in named else int(text)
    except ValueError:
        raise BadParameter(f"{text!r} is neither a number nor one of {', '.join(named)}.") from None
    if number not in limits.PRIORITIES:
        lowest, highest = limits.PRIORITIES[0], limits.PRIORITIES[-1]
        raise BadParameter(f"{text} is outside the range {lowest} to {highest}.")
    return number


def json(text: str) -> Any:
    """Read a JSON document; `-` reads it from standard input."""
    try:
        return parser.loads(sys.stdin.read() if text == "-" else text)
    except parser.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadParameter(f"not JSON: {error.msg} at {where}{_excerpt(error)}") from None
    except RecursionError:
        raise BadParameter("the JSON is nested too deeply.") from None


def _excerpt(error: parser.JSONDecodeError) -> str:
    """Return the text around the mistake, with a mark under it."""
    begin = max(error.doc.rfind("\n", 0, error.pos) + 1, error.pos - _EXCERPT)
    shown = error.doc[begin : error.pos + _EXCERPT].partition("\n")[0]
    if not shown or not shown.isprintable():
        return ""
    return f"\n\n  {shown}\n  {' ' * (error.pos - begin)}^"

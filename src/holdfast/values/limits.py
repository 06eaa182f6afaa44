"""The limits of names, numbers and times, checked before anything is sent.

The database checks again and decides (`sql/functions/core/check.sql`). The same rules are here, so that a
mistake shows at the line that made it, without a round trip. Each function returns the value in one form, or
raises an error that names the field, the value and the limit.
"""

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

from holdfast.values.errors import BadName, BadValue

PRIORITIES = range(-32768, 32768)
ATTEMPTS = range(1, 32768)
CENTURY = timedelta(days=36525)

_NAME = re.compile(r"[a-z0-9_.:-]{1,100}")
_SHOWN = 120


def name(field: str, value: object) -> str:
    """Return a queue, task or worker name: 1 to 100 of `a-z 0-9 _ . : -`."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise BadName(
        f"{field} {_shown(value)} is not a valid name",
        hint='Names have 1 to 100 characters out of a-z, 0-9, "_", ".", ":" and "-".',
        field=field,
        value=value,
    )


def integer(field: str, value: object, allowed: range) -> int:
    # A bool is an int to Python, but never what was meant here.
    if isinstance(value, int) and not isinstance(value, bool) and value in allowed:
        return int(value)
    raise refused(field, value, f"must be an integer from {allowed[0]} to {allowed[-1]}")


def number(field: str, value: object, lowest: float, highest: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and lowest <= value <= highest:
        return float(value)
    raise refused(field, value, f"must be a number from {lowest:g} to {highest:g}")


def text(field: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise refused(field, value, "must be text")


def truth(field: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise refused(field, value, "must be True or False")


def priority(value: object) -> int:
    return integer("priority", value, PRIORITIES)


def max_attempts(value: object) -> int:
    return integer("max_attempts", value, ATTEMPTS)


def duration(field: str, value: object, *, above_zero: bool = False) -> timedelta:
    """Return a `timedelta` of up to a hundred years. The value may be a number of seconds."""
    length = value if isinstance(value, timedelta) else _seconds(value)
    if length is not None and timedelta(0) <= length <= CENTURY and (length or not above_zero):
        return length
    lowest = "above 0" if above_zero else "from 0"
    negative = "; this one is negative" if length is not None and length < timedelta(0) else ""
    raise refused(field, value, f"must be a timedelta or a number of seconds {lowest} to 100 years{negative}")


def moment(field: str, value: object) -> datetime:
    """Return a time with a zone. A past time is allowed; a time a century ahead is a mistake."""
    if not isinstance(value, datetime):
        raise refused(field, value, "must be a datetime")
    if value.utcoffset() is None:
        raise refused(
            field, value, "must have a time zone", hint="Write datetime.now(UTC), or .replace(tzinfo=…)."
        )
    if value > datetime.now(UTC) + CENTURY:
        raise refused(field, value, "must be a time within the next 100 years")
    return value


def identity(field: str, value: object) -> UUID:
    """Return a UUID. The value may be its text."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise refused(field, value, "must be a UUID or its text") from None


def refused(field: str, value: object, rule: str, *, hint: str | None = None) -> BadValue:
    """Return the error for a value outside its limits."""
    return BadValue(f"{field} {_shown(value)}: {rule}", hint=hint, field=field, value=value)


def _seconds(value: object) -> timedelta | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):  # too large, or not a number
        return None


def _shown(value: object) -> str:
    try:
        text = str(value) if isinstance(value, datetime | timedelta) else repr(value)
    except Exception:  # noqa: BLE001 - an int of 5,000 digits has no repr, and a repr may run any code
        return f"(a {type(value).__name__})"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"

"""Times as people write them: a length, a time ago, or a date."""

from datetime import UTC, datetime, timedelta

_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def span(length: timedelta) -> str:
    """Return a length in its two largest units: `1h 30m`, `12s`, `1.4s`, `300ms`.

    >>> span(timedelta(hours=1, minutes=30, seconds=9))
    '1h 30m'
    """
    seconds = abs(length.total_seconds())
    if seconds < 1:
        milliseconds = round(seconds * 1000)
        return f"{milliseconds}ms" if milliseconds or not seconds else "<1ms"
    if seconds < 10:  # noqa: PLR2004 - below that, a tenth still matters
        return f"{seconds:.1f}s".replace(".0s", "s")
    left = round(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        amount, left = divmod(left, size)
        if amount or parts:
            parts.append(f"{amount}{unit}" if amount else "")
    return " ".join(part for part in parts[:2] if part)


def since(moment: datetime) -> timedelta:
    """Return the time since a moment; never negative, because the clock of another machine may be ahead."""
    return max(datetime.now(UTC) - moment, timedelta(0))


def lasting(moment: datetime) -> str:
    """Return the time since a moment in whole seconds: `12s`."""
    seconds = int(since(moment).total_seconds())
    return span(timedelta(seconds=seconds)) if seconds else "<1s"


def waits(moment: datetime | None) -> str:
    """`waits 12s`; empty without a time."""
    return "" if moment is None else f"waits {lasting(moment)}"


def ago(moment: datetime) -> str:
    """Return a moment relative to now: `3m 10s ago`, or `in 5m` for a later one."""
    distance = moment - datetime.now(UTC)
    # Seconds are enough: a smaller difference is noise between two clocks.
    whole = timedelta(seconds=round(abs(distance.total_seconds())))
    if whole < timedelta(seconds=1):
        return "just now"
    return f"in {span(whole)}" if distance > timedelta(0) else f"{span(whole)} ago"


def absolute(moment: datetime | None) -> str:
    """Return a moment for a pipe: to the second, in UTC, in a form that sorts; empty without one."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def local(moment: datetime) -> str:
    """Return a moment for a person: `2030-01-31 09:00:00 CET (3m ago)`."""
    return f"{moment.astimezone().strftime('%Y-%m-%d %H:%M:%S %Z')} ({ago(moment)})"

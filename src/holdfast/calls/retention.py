"""The call that disposes of what is past its retention."""

from datetime import timedelta

from holdfast.calls.base import Call, function, one

_sweep = function("sweep", "rest interval")


def sweep(rest: timedelta) -> Call[bool]:
    """Answers whether there is more to be done."""
    return _sweep.plain(one, f"{rest.total_seconds():.6f} seconds")

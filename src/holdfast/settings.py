"""Settings of queues as keywords, in the form in which they travel."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal, TypedDict

import msgspec

from holdfast.calls import Call
from holdfast.calls.settings import Change, configure
from holdfast.values import limits
from holdfast.values.errors import UnknownOption

Duration = timedelta | float
Kept = Duration | Literal["forever"]
Threshold = Duration | Literal["never"]


class SettingKeywords(TypedDict, total=False):
    """What can be set for a queue, or by the name `*` for all; `None` goes back to the default.

    The values are checked by the database: `holdfast.known_settings()`.
    """

    payload_limit: int | None
    lane_limit: int | None
    max_attempts: int | None
    retry_base: Duration | None
    retry_factor: float | None
    retry_cap: Duration | None
    retry_jitter: float | None
    retention: Kept | None
    dead_retention: Kept | None
    disposal: Literal["drop", "archive", "export"] | None
    waiting_warning: int | Literal["never"] | None
    waiting_critical: int | Literal["never"] | None
    age_warning: Threshold | None
    age_critical: Threshold | None
    failures_warning: float | None
    failures_critical: float | None
    worker_expected: bool | None
    payload_visible: bool | None
    redacted: Iterable[str] | None


NAMES = tuple(SettingKeywords.__annotations__)
DURATIONS = frozenset(
    {"retry_base", "retry_cap", "retention", "dead_retention", "age_warning", "age_critical"}
)


def change(queue: str, settings: SettingKeywords) -> Call[list[Change]]:
    for name in settings:
        if name not in NAMES:
            raise UnknownOption.among(name, NAMES, owner="a queue")
    said = {name: _plain(name, value) for name, value in settings.items()}
    return configure(limits.text("queue", queue), said)


def _plain(name: str, value: object) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        raise limits.refused(name, value, "is not a value of a setting") from None
    return value

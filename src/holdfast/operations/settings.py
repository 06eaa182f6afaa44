"""Settings of queues: `hf.settings`."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import msgspec

from holdfast.operations.base import Namespace, operation, twin
from holdfast.values import limits
from holdfast.values.call import Call, Row, function
from holdfast.values.errors import UnknownOption

Duration = timedelta | float
Kept = Duration | Literal["forever"]
Threshold = Duration | Literal["never"]

_configure = function("configure", "queue text, settings jsonb", "name, before, after")
_settings = function("settings", "queue text", "queue, name, value, own, builtin, meaning, seconds")


class SettingKeywords(TypedDict, total=False):
    """The settings of a queue, or of all queues under the name `*`. `None` restores the default.

    The database checks the values; see `holdfast.known_settings()`.
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


class Change(NamedTuple):
    """A setting that was changed. `None` stands for the default of all queues."""

    name: str
    before: Any
    after: Any


class SettingRow(NamedTuple):
    """A setting of a queue, and whether it is the queue's own or the default of all queues.

    `value` is a `timedelta` for a duration, unless it is "forever" or "never". `shown` is the form for
    people.
    """

    queue: str
    name: str
    value: Any
    own: bool
    builtin: Any
    meaning: str
    shown: Any


class Settings(Namespace):
    """The settings of the queues of one database."""

    called = "list(…)"

    @operation
    def configure(self, queue: str, **settings: Unpack[SettingKeywords]) -> Call["list[Change]"]:
        """Change settings of a queue, or of all queues under the name `*`, and return the changes.

        `hf.settings.configure("mail", retention=timedelta(days=7), max_attempts=5)`. No restart is needed.
        """
        UnknownOption.check(settings, NAMES, owner="a queue")
        if not settings:
            raise limits.refused(
                "settings",
                settings,
                "must have at least one",
                hint='Write configure("mail", max_attempts=5).',
            )
        values = {name: _plain(name, value) for name, value in settings.items()}
        text = msgspec.json.encode(values).decode()
        return _configure(lambda rows: [Change._make(row) for row in rows], limits.text("queue", queue), text)

    aconfigure = twin(configure)

    @operation
    def list(self, queue: str | None = None) -> Call["list[SettingRow]"]:
        """Return the settings of one queue, or of all queues that have their own, `*` first."""
        return _settings(lambda rows: [_setting(row) for row in rows], queue)

    alist = twin(list)


def _setting(row: Row) -> SettingRow:
    queue, name, shown, own, builtin, meaning, seconds = row
    value = shown if seconds is None else timedelta(seconds=seconds)
    return SettingRow(queue, name, value, own, builtin, meaning, shown)


def _plain(name: str, value: object) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        raise limits.refused(name, value, "cannot be the value of a setting") from None
    return value

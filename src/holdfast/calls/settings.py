"""Calls about settings, and about who has changed what."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from holdfast.calls.base import Call, Row, function

_configure = function("configure", "queue text, settings jsonb", "name, before, after")
_settings = function("settings", "queue text", "queue, name, value, own, builtin, meaning, seconds")
_audit_log = function(
    "audit_log",
    "amount integer, target text, action text, who text, since timestamptz",
    "id, at, who, action, target, detail",
)


class Change(NamedTuple):
    """A setting that was changed; `None` is the default of all queues."""

    name: str
    before: Any
    after: Any


class SettingRow(NamedTuple):
    """A setting of a queue, and whether it is the queue's own or the default of all queues.

    `value` is a `timedelta` for a duration, unless it is "forever" or "never"; `shown` is as people write it.
    """

    queue: str
    name: str
    value: Any
    own: bool
    builtin: Any
    meaning: str
    shown: Any


class AuditRow(NamedTuple):
    """Who did what to which queue, job or schedule, and when."""

    id: int
    at: datetime
    who: str
    action: str
    target: str | None
    detail: Any


def configure(queue: str, settings: Mapping[str, Any]) -> Call[list[Change]]:
    said = msgspec.json.encode(settings).decode()
    return _configure(lambda rows: [Change._make(row) for row in rows], queue, said)


def settings(queue: str | None) -> Call[list[SettingRow]]:
    return _settings(lambda rows: [_setting(row) for row in rows], queue)


def audit_log(
    *,
    amount: int,
    target: str | None = None,
    action: str | None = None,
    who: str | None = None,
    since: datetime | None = None,
) -> Call[list[AuditRow]]:
    return _audit_log(lambda rows: [AuditRow._make(row) for row in rows], amount, target, action, who, since)


def _setting(row: Row) -> SettingRow:
    queue, name, shown, own, builtin, meaning, seconds = row
    value = shown if seconds is None else timedelta(seconds=seconds)
    return SettingRow(queue, name, value, own, builtin, meaning, shown)

"""Log records as JSON lines: one object a line, with the event and its fields.

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)

    {"at": "2026-03-01T09:00:00.123456Z", "level": "WARNING", "logger": "holdfast", "event": "job.failed",
     "job": "019…", "task": "mail.welcome", "attempt": 2, "error": "TimeoutError"}

Records of other loggers get the same form, with their text as `message`. Secrets are masked.
"""

import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.telemetry.subscribers import Counted
from holdfast.values.secret import hide_passwords, mask

# The fields of every line. An event's field of the same name gets a "_" at its end.
_OURS = frozenset({"at", "level", "logger", "worker_name", "event", "message", "traceback"})


class JsonFormatter(logging.Formatter):
    """A formatter that writes a record as one line of JSON, with `name` as its `worker_name`."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        line: dict[str, Any] = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
        }
        if self._name:
            line["worker_name"] = self._name
        event, fields = getattr(record, "event", None), getattr(record, "fields", None)
        if isinstance(event, str) and isinstance(fields, Mapping):
            line["event"] = event
            line |= {f"{key}_" if key in _OURS else str(key): _plain(it) for key, it in fields.items()}
        else:
            line["message"] = hide_passwords(record.getMessage())
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = hide_passwords("".join(traceback.format_exception(record.exc_info[1])))
        return msgspec.json.encode(line, enc_hook=str).decode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """Return the value for JSON, with its secrets and passwords masked."""
    match value:
        case None | bool() | int() | float():
            return value
        case Counted():
            return len(value)
        case BaseException():
            return hide_passwords(f"{type(value).__name__}: {value}".removesuffix(": "))
        case Mapping() | list() | tuple() | set() | frozenset():
            masked = mask(dict(value) if isinstance(value, Mapping) else list(value))
            if isinstance(masked, dict):
                return {str(key): _plain(item) for key, item in masked.items()}
            return [_plain(item) for item in masked] if isinstance(masked, list) else masked
        case _:
            return hide_passwords(str(value))

"""The call that looks for what is wrong with the database."""

from typing import Any, NamedTuple

from holdfast.calls.base import Call, Rows, function

_doctor = function("doctor", "healthy boolean")


class Finding(NamedTuple):
    """What a check of the doctor found; `severity` is `critical`, `warning`, `info`, or `ok` for nothing."""

    name: str
    severity: str
    finding: str | None
    remedy: str | None
    detail: dict[str, Any] | None


def doctor(*, healthy: bool = False) -> Call[list[Finding]]:
    """With `healthy` also the checks that found nothing."""
    return _doctor(_read_findings, healthy)


def _read_findings(rows: Rows) -> list[Finding]:
    return [Finding._make(row) for row in rows]

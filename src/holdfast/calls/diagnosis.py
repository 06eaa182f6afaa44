"""Why a job does not run, and what is wrong with the system: `why()` and `doctor()`."""

from typing import Any, NamedTuple
from uuid import UUID

from holdfast.calls.base import Call, Rows, function

_why = function("why", "id uuid")
_doctor = function("doctor", "healthy boolean")


class Reason(NamedTuple):
    """One reason why a job does not run, or how it ended: a word for programs, a sentence, and what to do."""

    answer: str
    explanation: str
    remedy: str | None
    detail: dict[str, Any]


def why(job_id: UUID) -> Call[list[Reason]]:
    """Answers with the decisive reason first."""
    return _why(lambda rows: [Reason._make(row) for row in rows], job_id)


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

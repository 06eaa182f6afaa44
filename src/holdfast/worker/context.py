"""What a handler is told about its job, and what it can tell back."""

from datetime import datetime
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import msgspec

from holdfast import limits
from holdfast.calls import Claimed
from holdfast.worker.failure import clean

_STAGE_LENGTH = 100
_MESSAGE_LENGTH = 1000


class ProgressNote(NamedTuple):
    percent: int | None
    stage: str | None
    message: str | None


class Context:
    """A handler's view of its own job: a parameter annotated `Context` is filled in.

    Its methods are plain calls that only touch memory; the worker writes what they say within half a
    second, and the newest wins. They work from threads too.
    """

    __holdfast_context__: ClassVar[bool] = True
    __slots__ = ("_cancelled", "_job", "_note")

    def __init__(self, job: Claimed) -> None:
        self._job = job
        self._note: ProgressNote | None = None
        self._cancelled = False

    @property
    def job_id(self) -> UUID:
        return UUID(self._job.id)

    @property
    def task(self) -> str:
        return self._job.task

    @property
    def queue(self) -> str:
        return self._job.queue

    @property
    def priority(self) -> int:
        return self._job.priority

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1."""
        return self._job.attempt

    @property
    def max_attempts(self) -> int:
        return self._job.max_attempts

    @property
    def lease(self) -> UUID:
        """What a report on this job must show."""
        return UUID(self._job.lease)

    @property
    def created_at(self) -> datetime:
        return self._job.created_at

    @property
    def headers(self) -> dict[str, Any]:
        return msgspec.json.decode(self._job.headers) if self._job.headers else {}

    @property
    def cancelled(self) -> bool:
        """Whether this worker no longer holds the job: stop, since nothing you report will count."""
        return self._cancelled

    def progress(
        self, percent: float | None = None, *, stage: str | None = None, message: str | None = None
    ) -> None:
        """Say how far the job is. What is left out stays as it was."""
        if percent is not None:
            percent = limits.number("percent", percent, 0, 100)
        if stage is not None and len(stage) > _STAGE_LENGTH:
            raise limits.refused("stage", stage, f"must have at most {_STAGE_LENGTH} characters")
        last = self._note or ProgressNote(None, None, None)
        self._note = ProgressNote(
            last.percent if percent is None else int(percent),
            last.stage if stage is None else clean(stage, _STAGE_LENGTH),
            last.message if message is None else clean(message, _MESSAGE_LENGTH),
        )

    @property
    def note(self) -> ProgressNote | None:
        """What was said last; for the worker, which writes it if it is another one than before."""
        return self._note

    def mark_cancelled(self) -> None:
        """Tell the handler that its job is no longer its own; for the worker."""
        self._cancelled = True

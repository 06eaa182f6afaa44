"""What a handler is told about its job, and what it can tell back."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import msgspec

from holdfast import calls, limits
from holdfast.calls import Call, Claimed
from holdfast.database import AsyncConnection, Connection, Database, arun_on, in_transaction, run_on
from holdfast.errors import HoldfastError, IllegalTransition
from holdfast.job import CALLED_OFF, Cancel, Stop
from holdfast.task import result_json
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
    __slots__ = ("_cancelled", "_database", "_job", "_note", "_open", "_result", "finished")

    def __init__(self, job: Claimed, database: Database | None = None) -> None:
        self._job = job
        self._database = database
        self._note: ProgressNote | None = None
        self._cancelled = False
        self._result: str | None = None
        self._open = False
        # Whether the job was finished by a transaction of the handler's own.
        self.finished = False

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
    def schedule(self) -> str | None:
        """The schedule that brought this job, if one did."""
        name: str | None = self.headers.get("schedule")
        return name

    @property
    def tick(self) -> datetime | None:
        """For which time of its schedule it runs; `None` if it was run besides its times, or has none."""
        tick = self.headers.get("tick")
        return datetime.fromisoformat(tick) if tick else None

    @property
    def cancelled(self) -> bool:
        """Whether to stop: somebody called the job off, or this worker no longer holds it."""
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """End the attempt here if the job was called off: for loops in plain functions."""
        if self._cancelled:
            raise Stop(Cancel(CALLED_OFF))

    def progress(
        self, percent: float | None = None, *, stage: str | None = None, message: str | None = None
    ) -> None:
        """Say how far the job is. What is left out stays as it was."""
        if percent is not None:
            percent = limits.number("percent", percent, 0, 100)
        for field, text in (("stage", stage), ("message", message)):
            if text is not None:
                limits.text(field, text)
        if stage is not None and len(stage) > _STAGE_LENGTH:
            raise limits.refused("stage", stage, f"must have at most {_STAGE_LENGTH} characters")
        last = self._note or ProgressNote(None, None, None)
        self._note = ProgressNote(
            last.percent if percent is None else int(percent),
            last.stage if stage is None else clean(stage, _STAGE_LENGTH),
            last.message if message is None else clean(message, _MESSAGE_LENGTH),
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        """A connection whose commit also completes the job: the work and its end are one, or neither is.

            with ctx.transaction() as conn:
                conn.execute("update account set balance = balance - 10 where id = 1")

        At the end of the block the job is completed under its lease and all of it is committed. If the lease
        was lost it raises `LeaseLost`, and `NotHeld` if the job was completed before, by a commit whose reply
        was lost: then nothing remains, nor if the block raises. What the handler does afterwards no longer
        counts.
        """
        completed = False
        with self._block() as database, database.borrowed() as connection, connection.transaction():
            yield connection
            self._refuse_ended(connection)
            run_on(connection, self._completion())
            completed = True
        self.finished = completed  # not so if the block raised a psycopg.Rollback, which ends here

    @contextlib.asynccontextmanager
    async def atransaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """The async twin of `transaction`."""
        completed = False
        with self._block() as database:
            async with database.aborrowed() as connection, connection.transaction():
                yield connection
                self._refuse_ended(connection)
                await arun_on(connection, self._completion())
                completed = True
        self.finished = completed

    def set_result(self, value: Any) -> None:
        """The result of a job that `transaction` completes: said inside its block."""
        if not self._open:
            raise IllegalTransition(
                f"{self.task}: there is no transaction whose commit would store this result",
                hint="Say it inside the block of ctx.transaction(); without one, return it.",
                id=self.job_id,
            )
        self._result = result_json(self.task, value)

    @contextlib.contextmanager
    def _block(self) -> Iterator[Database]:
        """One at a time, and one in all: its end is the job's."""
        if self.finished or self._open:
            how = "was completed by" if self.finished else "is in"
            raise IllegalTransition(
                f"job {self._job.id} {how} a transaction already",
                hint="All that belongs to the job goes into one block: pass its connection on.",
                id=self.job_id,
            )
        if self._database is None:
            raise HoldfastError("this context has no database", hint="It was not made by a worker.")
        self._open = True
        try:
            yield self._database
        finally:
            self._open = False

    def _refuse_ended(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        if not in_transaction(connection):
            raise IllegalTransition(
                f"the transaction of job {self._job.id} was ended inside its block",
                hint="Neither commit nor roll back in there: leave the block, or raise.",
                id=self.job_id,
            )

    def _completion(self) -> Call[None]:
        return calls.complete(self._job.id, self._job.lease, self._result)

    def receive(self, note: ProgressNote) -> None:
        """What the handler said in a process of its own; for the worker."""
        self._note = note

    @property
    def note(self) -> ProgressNote | None:
        """What was said last; for the worker, which writes it if it is another one than before."""
        return self._note

    def mark_cancelled(self) -> None:
        """Tell the handler that its job is no longer its own; for the worker."""
        self._cancelled = True

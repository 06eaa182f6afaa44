"""`Context`: the handler's access to its job, and its reports."""

import contextlib
import inspect
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import msgspec

from holdfast.database import AsyncConnection, Connection, Database, OnConnection, in_transaction
from holdfast.operations import attempts, claiming
from holdfast.operations.attempts import Memory
from holdfast.operations.claiming import Claimed, Report
from holdfast.operations.run_steps import Action, Steps, arun_steps, run_steps, sleep_for
from holdfast.task import result_json
from holdfast.values import limits
from holdfast.values.call import Call
from holdfast.values.errors import HoldfastError, IllegalTransition
from holdfast.values.job import CANCELLED_WHILE_RUNNING, Cancel, Stop
from holdfast.worker.context.notes import (
    MESSAGE_LENGTH,
    STAGE_LENGTH,
    STATE_LIMIT,
    STEP_LENGTH,
    HandlerEvent,
    Note,
    Notes,
    chunks,
    json_text,
)
from holdfast.worker.context.tracking import Track
from holdfast.worker.failure import storable

T = TypeVar("T")

_EMPTY_NOTE = Note()
STEP_LIMIT = 256 * 1024
# The keeper locks the rows of a running job for milliseconds. Rows that stay locked longer are locked by the
# handler's own transaction.
KEEPER_PAUSES = (0.02, 0.05, 0.1)


class Context:
    """A handler's view of its own job, passed in a parameter that is annotated `Context`.

    `progress`, `event` and `checkpoint` only touch memory. The worker writes what they report within half a
    second, and before the attempt ends. They work from threads and processes too.
    """

    __holdfast_context__: ClassVar[bool] = True
    __slots__ = (
        "_attempt_steps",
        "_cancelled",
        "_database",
        "_job",
        "_open",
        "_result",
        "_state",
        "_steps",
        "completed",
        "notes",
    )

    def __init__(self, job: Claimed, database: Database | None = None) -> None:
        self._job = job
        self._database = database
        # The reports of this attempt, until the worker writes them.
        self.notes = Notes(job)
        # The results of earlier attempts' steps as JSON text, and the names of this attempt's steps.
        self._steps: dict[str, str] = {}
        self._attempt_steps: set[str] = set()
        self._state: dict[str, Any] = {}
        self._cancelled = False
        self._result: str | None = None
        self._open = False
        # True after the handler's own transaction has completed the job.
        self.completed = False

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
        """The number of this attempt, counted from 1."""
        return self._job.attempt

    @property
    def max_attempts(self) -> int:
        return self._job.max_attempts

    @property
    def lease(self) -> UUID:
        """The lease that a report on this job must present."""
        return UUID(self._job.lease)

    @property
    def created_at(self) -> datetime:
        return self._job.created_at

    @property
    def headers(self) -> dict[str, Any]:
        return msgspec.json.decode(self._job.headers) if self._job.headers else {}

    @property
    def schedule(self) -> str | None:
        """The schedule that enqueued this job, if one did."""
        name: str | None = self.headers.get("schedule")
        return name

    @property
    def tick(self) -> datetime | None:
        """The tick for which the schedule made this job; `None` if it was made in another way."""
        tick = self.headers.get("tick")
        return datetime.fromisoformat(tick) if tick else None

    @property
    def cancelled(self) -> bool:
        """True if the handler should stop: the job was cancelled, or its lease was lost."""
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """End the attempt here if the job was cancelled: for loops in plain functions."""
        if self._cancelled:
            raise Stop(Cancel(CANCELLED_WHILE_RUNNING))

    def progress(
        self, percent: float | None = None, *, stage: str | None = None, message: str | None = None
    ) -> None:
        """Report the progress of the job. Arguments that are left out stay as they were.

        The newest value is kept, even if it is smaller: a stage may begin at 0 again. The estimate of the
        time left takes the percentage as that of the whole job.
        """
        # Loops report the same stage again and again, so it is checked once.
        last = self.notes.note or _EMPTY_NOTE
        if percent is None:
            percent = last.percent
        elif type(percent) is not int or not 0 <= percent <= 100:  # noqa: PLR2004
            percent = int(limits.number("percent", percent, 0, 100))
        if stage is None or stage == last.stage:
            stage = last.stage
        else:
            stage = storable(_checked_length("stage", stage, STAGE_LENGTH), STAGE_LENGTH)
        if message is None or message == last.message:
            message = last.message
        else:
            message = storable(limits.text("message", message), MESSAGE_LENGTH)
        self._set_note(Note(percent, stage, message, last.step, last.state))

    def track(
        self,
        items: Iterable[T] | AsyncIterable[T],
        *,
        total: int | None = None,
        stage: str | None = None,
        message: str | None = None,
    ) -> Track[T]:
        """Iterate over items and report progress after each: `for page in ctx.track(pages): …`.

        It works with `async for` too. Give the `total` if the items have no length. Without either, the
        message counts them. If the job was cancelled, the attempt ends before the next item.
        """
        return Track(self, items, total=total, stage=stage, message=message)

    def event(self, name: str, data: Any = None) -> None:
        """Add an event to the job's log: its name, and its data as JSON."""
        self.notes.event(name, data)

    # Continuing after an earlier attempt.

    @property
    def state(self) -> dict[str, Any]:
        """The last checkpoint, of this attempt or an earlier one; empty if there is none."""
        return dict(self._state)

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Store the position of a loop. The next attempt finds the newest checkpoint in `ctx.state`.

        A checkpoint is written within half a second. The next attempt repeats the work after the last written
        one.
        """
        if not isinstance(state, dict):
            raise limits.refused("state", state, "must be a dictionary")
        text = json_text("state", state, STATE_LIMIT)
        self._state = msgspec.json.decode(text)  # the form that the next attempt gets
        self._set_note((self.notes.note or _EMPTY_NOTE)._replace(state=text))

    def step(self, name: str, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function once for all attempts of the job. A later attempt gets the stored result.

        The result always goes through JSON. An interrupted step runs again: pass `ctx.step_key(name)` to its
        effects, so that they can recognise a repetition.
        """
        done, kept = self._begin_step(name)
        if done:
            return kept  # type: ignore[no-any-return]  # the stored result
        begun = time.monotonic()
        with self._step_running(name):
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                raise limits.refused("function", function, "is async", hint="Write await ctx.astep(…).")
            steps = self._saving_step(name, value, time.monotonic() - begun)
            saved: T = run_steps(steps, self._required_database)  # as JSON gives it back
            return saved

    async def astep(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The async twin of `step`; the function may be async or plain."""
        done, kept = self._begin_step(name)
        if done:
            return kept
        begun = time.monotonic()
        with self._step_running(name):
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            steps = self._saving_step(name, value, time.monotonic() - begun)
            return await arun_steps(steps, self._required_database)

    def step_key(self, name: str) -> str:
        """Return an idempotency key for the step: the same in every attempt, and unique to this job."""
        return f"{self._job.id}/{name}"

    def _begin_step(self, name: str) -> tuple[bool, Any]:
        """Return whether an earlier attempt has done this step, and its result."""
        _checked_length("name", name, STEP_LENGTH)
        if not name or not name.isprintable():
            raise limits.refused("name", name, "a step needs a name of printable characters")
        if name in self._attempt_steps:
            raise limits.refused(
                "name", name, "this attempt already had a step of this name", hint="Give each step its own."
            )
        self._attempt_steps.add(name)
        if name in self._steps:
            return True, msgspec.json.decode(self._steps[name])
        self.raise_if_cancelled()
        self._set_note((self.notes.note or _EMPTY_NOTE)._replace(step=storable(name, STEP_LENGTH)))
        return False, None

    @contextlib.contextmanager
    def _step_running(self, name: str) -> Iterator[None]:
        """Allow a step that raises to be tried again."""
        try:
            yield
        except BaseException:
            self._attempt_steps.discard(name)
            raise

    def _saving_step(self, name: str, value: Any, seconds: float) -> Steps[Any]:
        """Store the result of a step, and return it as the next attempt will find it."""
        text = json_text("result", value, STEP_LIMIT)
        yield from self._publishing()  # earlier reports stand before the step in the log
        stored = yield attempts.keep_step(self._job.id, self._job.lease, name, text, seconds)
        self._steps[name] = stored or "null"
        self._set_note((self.notes.note or _EMPTY_NOTE)._replace(step=""))
        return msgspec.json.decode(self._steps[name])

    def _set_note(self, note: Note) -> None:
        self.notes.note = note

    def _publishing(self) -> Steps[None]:
        for some in chunks(self.notes.unpublished()):
            yield attempts.publish_many(some)
            self.notes.published(some)

    def _publishing_beside(self, connection: Connection[Any] | AsyncConnection[Any]) -> Steps[None]:
        """Publish on another connection than the handler's, so that the keeper can write to the same rows.

        If the handler's transaction has locked those rows itself, the other connection would wait forever.
        Then the events go into that transaction, and stay unpublished here: it may be rolled back.
        """
        for some in chunks(self.notes.unpublished()):
            for seconds in KEEPER_PAUSES:
                published = yield attempts.publish_many(some, skip_locked=True)
                if not published.locked:
                    self.notes.published(some)
                    break
                yield sleep_for(seconds)
            else:
                yield _on(connection, attempts.publish_many(some))

    # Completing the job in the handler's own transaction.

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        """Open a transaction whose commit also completes the job. Both happen, or neither does.

            with ctx.transaction() as conn:
                conn.execute("update account set balance = balance - 10 where id = 1")

        At the end of the block the job is completed under its lease, and everything is committed. It raises
        `LeaseLost` if the lease was lost. It raises `NotHeld` if an earlier commit has completed the job and
        its reply was lost. In these cases, and if the block raises, everything is rolled back. The outcome of
        the code after the block is ignored.
        """
        completed = False
        with (
            self._only_transaction() as database,
            database.handler_connection() as connection,
            connection.transaction(),
        ):
            yield connection
            run_steps(self._completing(connection), database)
            completed = True
        self.completed = completed  # False if the block raised a psycopg.Rollback, which ends here

    @contextlib.asynccontextmanager
    async def atransaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """The async twin of `transaction`."""
        completed = False
        with self._only_transaction() as database:
            async with database.ahandler_connection() as connection, connection.transaction():
                yield connection
                await arun_steps(self._completing(connection), database)
                completed = True
        self.completed = completed

    def set_result(self, value: Any) -> None:
        """Set the result of a job that `transaction` completes. Call it inside the block."""
        if not self._open:
            raise IllegalTransition(
                f"{self.task}: there is no transaction whose commit would store this result",
                hint="Set it inside the block of ctx.transaction(). Without a transaction, return it.",
                id=self.job_id,
            )
        self._result = result_json(self.task, value)

    @contextlib.contextmanager
    def _only_transaction(self) -> Iterator[Database]:
        """Allow one transaction per job, because its end is the job's end."""
        if self.completed or self._open:
            how = "was completed by" if self.completed else "is in"
            raise IllegalTransition(
                f"job {self._job.id} {how} a transaction already",
                hint="Do everything in one block: pass its connection on.",
                id=self.job_id,
            )
        database = self._required_database
        self._open = True
        try:
            yield database
        finally:
            self._open = False

    @property
    def _required_database(self) -> Database:
        if self._database is None:
            raise HoldfastError("this context has no database", hint="It was not made by a worker.")
        return self._database

    def _completing(self, connection: Connection[Any] | AsyncConnection[Any]) -> Steps[None]:
        if not in_transaction(connection):
            raise IllegalTransition(
                f"the transaction of job {self._job.id} was ended inside its block",
                hint="Do not commit or roll back inside it: leave the block, or raise.",
                id=self.job_id,
            )
        yield from self._publishing_beside(connection)
        yield _on(connection, claiming.complete(self._job.id, self._job.lease, self._result))

    # Used by the worker.

    def restore(self, memory: Memory) -> None:
        """Restore the steps and the checkpoint of earlier attempts."""
        self._steps = dict(memory.steps)
        self._state = msgspec.json.decode(memory.state) if memory.state else {}

    def receive(self, said: Note | HandlerEvent) -> None:
        """Store a report that the handler sent from its process."""
        if isinstance(said, Note):
            self.notes.note = said
        else:
            self.notes.receive(said)

    @property
    def has_notes(self) -> bool:
        return self.notes.note is not None or self.notes.has_events

    def final_report(self, report: Report, written: Note | None) -> Report:
        """Return the report together with the last events and progress, which are written before it.

        If the job is completed, its progress no longer matters.
        """
        events = self.notes.unpublished()
        note = None if report.outcome == "completed" else self.notes.progress(self.notes.note, written)
        if not events and note is None:
            return report
        return msgspec.structs.replace(report, events=events, note=note)

    def mark_cancelled(self) -> None:
        """Tell the handler to stop, because its job was cancelled or lost."""
        self._cancelled = True


def _on(connection: Connection[Any] | AsyncConnection[Any], call: Call[Any]) -> Action:
    """Return the step that runs a call on the handler's own connection."""
    handlers = OnConnection(connection)
    return Action(partial(handlers.run, call), partial(handlers.arun, call))


def _checked_length(field: str, value: object, length: int) -> str:
    text = limits.text(field, value)
    if len(text) > length:
        raise limits.refused(field, value, f"must have at most {length} characters")
    return text

"""Enqueues many jobs at once: by COPY if that is allowed and faster, otherwise by the array function.

    jobs ─ in batches ─┬─► places ─► COPY job (id, lane_id, …) ◄─ lines of text       6 µs a job in the server
                       └─► enqueue_many(arrays)                                      15 µs

COPY inserts into `holdfast.job` directly, so the role needs that right. `places` returns whether it has it.
COPY does not check an id against `used_id`, which also knows jobs that have ended. So a batch uses the arrays
if the role lacks the right, if the caller chose an id, if the batch is small, or if the connection is in
pipeline mode. Triggers apply the same rules to both ways, so the jobs and the errors are the same.

On a pooled connection, one COPY stays open while the client makes the jobs, so client and server work at the
same time. On the caller's connection, each COPY sends one finished batch, because the generator of the jobs
may use that connection.

The steps are written once, as a generator. A sync and an async runner carry them out.
"""

import contextlib
import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from holdfast.database import enqueue_many
from holdfast.database.enqueue_many import Target
from holdfast.database.libpq import codec_of
from holdfast.database.statements import (
    CallerAsyncConnection,
    CallerConnection,
    aconnection_of,
    arun_on,
    connection_of,
    run_on,
)
from holdfast.database.translation import translated
from holdfast.values import limits
from holdfast.values.call import Call
from holdfast.values.errors import HoldfastError
from holdfast.values.job import JobId, NewJob

# Jobs are made and sent in batches of this size, so that millions of jobs do not fill the memory.
BATCH_SIZE = 1_000
# Below about 60 jobs, its round trips make a COPY slower than the arrays.
SMALLEST_COPY = 100
# The most jobs in one COPY. The server keeps all of its rows in memory until it ends.
LARGEST_COPY = 50_000
# End the COPY when a batch took longer than this to make. An open COPY can hit a statement timeout.
SLOW_BATCH_SECONDS = 0.25
# Forget the lanes of earlier batches once this many are known.
MAX_KNOWN_LANES = 1_000

_COPY = "copy holdfast.job (id, lane_id, task, payload, headers, max_attempts, run_at) from stdin"
# A role may have the right to the array function only. An older schema has no `places`.
_MAY_CALL_PLACES = """
select coalesce(
  has_function_privilege(to_regprocedure('holdfast.places(text[], text[], integer[], integer[])'), 'execute'),
  false)
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALL_DEFAULT = (None, None, None, None)

_Key: TypeAlias = tuple[str, str, int, int | None]
_Step: TypeAlias = Call[Any] | Iterable[bytes] | str


class Batch(list[NewJob]):
    """A batch of jobs, and the seconds that it took to make them."""

    seconds = 0.0


def load_on(given: CallerConnection, jobs: Iterable[NewJob]) -> list[JobId]:
    """Enqueue these jobs on the caller's own connection, all or none, and return their ids.

    Open a transaction if the connection is in autocommit. Otherwise the caller commits.
    """
    connection = connection_of(given)
    with connection.transaction() if connection.autocommit else contextlib.nullcontext():
        return load(connection, batches(jobs), streaming=False)


async def aload_on(given: CallerAsyncConnection, jobs: Iterable[NewJob]) -> list[JobId]:
    connection = aconnection_of(given)
    async with connection.transaction() if connection.autocommit else contextlib.nullcontext():
        return await aload(connection, batches(jobs), streaming=False)


def load(connection: Connection[Any], batches: Iterator[Batch], *, streaming: bool) -> list[JobId]:
    """Enqueue these jobs in the open transaction."""
    loading = _Load(connection, batches, streaming=streaming)
    answer: Any = None
    with contextlib.closing(loading.steps()) as steps, translated():
        while (step := _next(steps, answer)) is not None:
            match step:
                case Call():
                    answer = run_on(connection, step)
                case str():
                    answer = connection.cursor(row_factory=tuple_row).execute(step).fetchall()
                case lines:
                    with _without_cause(), connection.cursor() as cursor, cursor.copy(_COPY) as copy:
                        for line in lines:
                            copy.write(line)
    return loading.ids


async def aload(
    connection: AsyncConnection[Any], batches: Iterator[Batch], *, streaming: bool
) -> list[JobId]:
    loading = _Load(connection, batches, streaming=streaming)
    answer: Any = None
    with contextlib.closing(loading.steps()) as steps, translated():
        while (step := _next(steps, answer)) is not None:
            match step:
                case Call():
                    answer = await arun_on(connection, step)
                case str():
                    cursor = await connection.cursor(row_factory=tuple_row).execute(step)
                    answer = await cursor.fetchall()
                case lines:
                    with _without_cause():
                        async with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
                            for line in lines:
                                await copy.write(line)
    return loading.ids


def batches(jobs: Iterable[NewJob]) -> Iterator[Batch]:
    """Yield the jobs in batches; all are full but the last."""
    batch = Batch()
    began = time.monotonic()
    if not isinstance(jobs, Iterable):
        raise limits.refused("jobs", jobs, "must be a list of task calls", hint="Write [task.call(…), …].")
    for job in jobs:
        if not isinstance(job, NewJob):
            raise limits.refused("jobs", job, "must be task calls", hint="Write task.call(…) for each.")
        batch.append(job)
        if len(batch) == BATCH_SIZE:
            batch.seconds = time.monotonic() - began
            yield batch
            batch = Batch()
            began = time.monotonic()
    if batch:
        yield batch


class _Load:
    """One bulk enqueue, as steps for a runner.

    A step is a call, a query, or the lines of a COPY. The runner sends back the answer to a call or a query.
    """

    def __init__(
        self, connection: Connection[Any] | AsyncConnection[Any], batches: Iterator[Batch], *, streaming: bool
    ) -> None:
        self.ids: list[JobId] = []
        self._batches = batches
        self._batch = next(batches, None)
        self._last_id = 0
        self._streaming = streaming
        self._codec = codec_of(connection)
        self._may_copy = connection.pgconn.pipeline_status == PipelineStatus.OFF  # a pipeline allows no COPY

    def steps(self) -> Generator[_Step, Any, None]:
        if self._may_copy and self._batch and len(self._batch) >= SMALLEST_COPY:
            ((self._may_copy,),) = yield _MAY_CALL_PLACES
        known: set[_Key] = set()
        while (batch := self._batch) is not None:
            if self._may_copy and len(batch) >= SMALLEST_COPY and all(job.id is None for job in batch):
                # Include the keys of earlier batches, which are likely to come again.
                keys = {(job.task, job.queue, job.priority, job.declared_attempts) for job in batch}
                known = known | keys if len(known) < MAX_KNOWN_LANES else keys
                wanted = list(known)
                targets = yield enqueue_many.places(wanted)
                if targets[0].may_copy:
                    yield self._lines(_LineWriter(wanted, targets))
                    if self._batch is None:
                        self._batch = next(self._batches, None)
                    continue
                self._may_copy = False
            self.ids += yield enqueue_many.enqueue_many(batch)
            self._batch = next(self._batches, None)

    def _lines(self, writer: "_LineWriter") -> Iterable[bytes]:
        return (
            self._lines_of_batches(writer, LARGEST_COPY)
            if self._streaming
            else list(self._lines_of_batches(writer, 1))
        )

    def _lines_of_batches(self, writer: "_LineWriter", limit: int) -> Iterator[bytes]:
        """Yield the lines of this batch and of the following ones, while the writer knows their lanes."""
        copied = 0
        while (batch := self._batch) is not None and copied < limit:
            ids = writer.new_ids(len(batch), after=self._last_id)
            lines = writer.lines(batch, ids)
            if lines is None:
                return
            yield lines.encode(self._codec)
            self.ids += ids
            self._last_id = ids[-1]
            copied += limit if batch.seconds > SLOW_BATCH_SECONDS else len(ids)
            self._batch = None
            if copied < limit:
                self._batch = next(self._batches, None)


class _LineWriter:
    """A writer of COPY lines, for the queues, priorities and tasks whose lanes it knows."""

    def __init__(self, wanted: Sequence[_Key], targets: Sequence[Target]) -> None:
        self._targets = {
            key: (target.lane_id, target.max_attempts) for key, target in zip(wanted, targets, strict=True)
        }
        # The database's time, continued by the monotonic clock.
        self._now_at = targets[0].now_at
        self._since = time.monotonic()

    def new_ids(self, amount: int, *, after: int) -> range:
        """Return ascending ids of version 7: the time in milliseconds, then a random number that counts up.

        Ascending ids keep inserts at the end of the primary key's index. Each batch draws new random bits, so
        a forked process makes different ids.
        """
        milliseconds = int(self._now() * 1000)
        random = int.from_bytes(os.urandom(9))
        first = milliseconds << 80 | 7 << 76 | random >> 60 << 64 | 2 << 62 | random & (1 << 60) - 1
        first = max(first, after + 1)
        return range(first, first + amount)

    def lines(self, batch: Batch, ids: Iterable[int]) -> str | None:
        """Return the lines of a batch, or `None` if a job has an unknown lane or an id of its own."""
        targets = self._targets
        lines = []
        for number, job in zip(ids, batch, strict=True):
            task = job.task
            target = targets.get((task, job.queue, job.priority, job.declared_attempts))
            if target is None or job.id is not None:
                return None
            lane_id, attempts = target
            payload = _escaped(job.payload)
            if (job.headers, job.max_attempts, job.run_at, job.delay) == _ALL_DEFAULT:
                # The task is a checked name, so it needs no escaping.
                lines.append(f"{number:032x}\t{lane_id}\t{task}\t{payload}\t\\N\t{attempts}\t\\N\n")
                continue
            headers = "\\N" if job.headers is None else _escaped(job.headers)
            if job.max_attempts is not None:
                attempts = limits.max_attempts(job.max_attempts)
            run_at = self._run_at(job) or "\\N"
            lines.append(f"{number:032x}\t{lane_id}\t{task}\t{payload}\t{headers}\t{attempts}\t{run_at}\n")
        return "".join(lines)

    def _run_at(self, job: NewJob) -> datetime | None:
        if job.delay is None:
            return job.run_at
        if job.run_at is not None:
            raise limits.refused("delay", job.delay, "give either run_at or delay, not both")
        return _EPOCH + timedelta(seconds=self._now()) + limits.duration("delay", job.delay)

    def _now(self) -> float:
        return self._now_at + time.monotonic() - self._since


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def _next(steps: Generator[_Step, Any, None], answer: Any) -> _Step | None:
    try:
        return steps.send(answer)
    except StopIteration:
        return None


@contextlib.contextmanager
def _without_cause() -> Iterator[None]:
    """Raise Holdfast's errors without PostgreSQL's, whose text quotes the COPY line with its secrets."""
    try:
        with translated():
            yield
    except HoldfastError as error:
        if isinstance(error.__cause__, psycopg.Error):
            raise error from None
        raise

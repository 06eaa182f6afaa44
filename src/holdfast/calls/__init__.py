"""One typed value per SQL function: the only mirror of `sql/functions/`.

A call says what to ask and how to read the answer; it touches no database. The runners in `database.py`
carry it, sync or async, on a connection of ours or of the caller's, so nothing is written twice.
A test holds every signature here against `pg_proc`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec

from holdfast import arrays
from holdfast.calls.base import (
    FUNCTIONS as FUNCTIONS,
    Call as Call,
    Function as Function,
    Row as Row,
    Rows as Rows,
    column,
    function,
    nothing,
    one,
)
from holdfast.job import JobSnapshot, JobState, NewJob, Priority
from holdfast.retry import RetryPolicy

# Producing.

_enqueue = function(
    "enqueue",
    "task text, payload jsonb, queue text, priority integer, run_at timestamptz, delay interval, "
    "max_attempts integer, id uuid, headers jsonb",
    value="text",
)
# The same with what most jobs say: half the values to send and to read.
_enqueue_usual = Function("enqueue", dict(list(_enqueue.parameters.items())[:4]), value=_enqueue.value)
_enqueue_many = function(
    "enqueue_many",
    "tasks text[], payloads jsonb[], queues text[], priorities integer[], run_ats timestamptz[], "
    "delays interval[], max_attempts integer[], ids uuid[], headers jsonb[]",
    "enqueue_many::text",
)
_places = function(
    "places",
    "tasks text[], queues text[], priorities integer[]",
    # A number is the same in every time zone and DateStyle of a caller's own connection.
    "lane_id, max_attempts, may_copy, extract(epoch from now_at)::double precision",
)


def enqueue(job: NewJob) -> Call[str]:
    """Answers with the job's id, as text: a `UUID` takes longer to make than the rest of the call."""
    usual = (job.task, job.payload, job.queue, job.priority)
    more = (job.run_at, job.delay, job.max_attempts, job.id, job.headers)
    if more == (None, None, None, None, None):
        return _enqueue_usual.plain(one, *usual)
    delay = None if job.delay is None else _interval(job.delay)
    return _enqueue.plain(one, *usual, job.run_at, delay, job.max_attempts, job.id, job.headers)


def enqueue_many(jobs: Sequence[NewJob]) -> Call[list[str]]:
    def given(values: list[Any]) -> list[Any] | None:
        return values if any(value is not None for value in values) else None

    return _enqueue_many(
        column,
        [job.task for job in jobs],
        [job.payload for job in jobs],
        [job.queue for job in jobs],
        [job.priority for job in jobs],
        given([job.run_at for job in jobs]),
        given([None if job.delay is None else _interval(job.delay) for job in jobs]),
        given([job.max_attempts for job in jobs]),
        given([job.id for job in jobs]),
        given([job.headers for job in jobs]),
    )


class Place(NamedTuple):
    """What a COPY into `holdfast.job` must know of a queue, priority and task."""

    lane_id: int
    max_attempts: int
    may_copy: bool
    now_at: float


def places(wanted: Sequence[tuple[str, str, int]]) -> Call[list[Place]]:
    """Answers in the order of these tasks, queues and priorities."""
    tasks, queues, priorities = (list(column) for column in zip(*wanted, strict=True))
    return _places(lambda rows: [Place._make(row) for row in rows], tasks, queues, priorities)


def _interval(delay: timedelta) -> str:
    # In seconds: a day of PostgreSQL's has 23 or 25 hours when clocks change, one of Python's never.
    return f"{delay.days * 86400 + delay.seconds}.{delay.microseconds:06d} seconds"


# Claiming and reporting.


# Msgspec structs, for there is one for each job: made in 0.1 µs, a named tuple takes up to 0.5. Nothing in
# them can lead back to them, so the garbage collector need not look at them.


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A job as a claim hands it out. `payload` and `headers` are still JSON text."""

    lease: str
    id: str
    task: str
    payload: str
    attempt: int
    max_attempts: int
    queue: str
    priority: int
    suspect: bool
    created: float
    headers: str | None

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(self.created, UTC)


# A time is half of what it takes to read a row, and few handlers ask for it: as a number it costs little.
_CLAIMED = (
    "id, task, payload, attempt, max_attempts, queue, priority, suspect, "
    "date_part('epoch', created_at), headers"
)
_claim = function(
    "claim", "worker uuid, lease uuid, queues text[], tasks text[], amount integer, above integer", _CLAIMED
)
_claimed = function("claimed", "worker uuid, lease uuid", _CLAIMED)


def _read_claimed(lease: str) -> Callable[[Rows], list[Claimed]]:
    """Who asks knows the lease, so it is not sent back with each job."""
    return lambda rows: [Claimed(lease, *row) for row in rows]


def claim(
    *,
    worker: str,
    lease: str,
    queues: list[str] | None,
    tasks: list[str] | None,
    amount: int,
    above: int | None = None,
) -> Call[list[Claimed]]:
    return _claim.plain(_read_claimed(lease), worker, lease, _texts(queues), _texts(tasks), amount, above)


def claimed(*, worker: str, lease: str) -> Call[list[Claimed]]:
    return _claimed.plain(_read_claimed(lease), worker, lease)


class Report(msgspec.Struct, frozen=True, gc=False):
    """What became of one claimed job; `result` is JSON text, `seconds` how long the handler ran."""

    id: str
    lease: str
    outcome: str
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    retry: bool | None = None
    delay: timedelta | None = None
    seconds: float | None = None
    # What must be on record before it.
    events: "list[Published]" = []
    note: "Progress | None" = None


_complete = function("complete", "id uuid, lease uuid, result jsonb")


def complete(job_id: str, lease: str, result: str | None) -> Call[None]:
    """Raises where `finish` answers with a refusal: for a transaction that must not commit then."""
    return _complete(nothing, job_id, lease, result)


class Refusal(NamedTuple):
    """A report that changed nothing, and why."""

    id: str
    sqlstate: str
    message: str
    state: str | None
    lease: str | None


_finish = function(
    "finish",
    "ids uuid[], leases uuid[], outcomes text[], results jsonb[], errors text[], tracebacks text[], "
    "retries boolean[], delays interval[], durations double precision[]",
    "id::text, sqlstate, message, state, lease::text",
)


def finish(reports: Sequence[Report]) -> Call[list[Refusal]]:
    # In the order of ids, as the rows are locked: then the function need not look for each again.
    reports = sorted(reports, key=attrgetter("id"))
    leases = [report.lease for report in reports]  # one may stand for all
    outcomes = [report.outcome for report in reports]
    retries = [None if report.retry is None else str(report.retry) for report in reports]
    delays = [None if report.delay is None else _interval(report.delay) for report in reports]
    return _finish.plain(
        _read_refusals,
        arrays.uuids([report.id for report in reports]),
        arrays.uuids(leases if len(set(leases)) > 1 else leases[:1]),
        None if outcomes.count("completed") == len(outcomes) else arrays.words(outcomes),
        _given([report.result for report in reports]),
        _given([report.error for report in reports]),
        _given([report.traceback for report in reports]),
        _given(retries),
        _given(delays),
        _durations([report.seconds for report in reports]),
    )


def _durations(seconds: list[float | None]) -> str | bytes:
    return arrays.numbers(seconds) if None in seconds else arrays.doubles(cast("list[float]", seconds))


def _given(values: list[str | None]) -> str | None:
    """The column, unless there is nothing in it."""
    return None if values.count(None) == len(values) else arrays.texts(values)


def _texts(values: Sequence[str] | None) -> str | None:
    return None if values is None else arrays.texts(values)


def _read_refusals(rows: Rows) -> list[Refusal]:
    return [Refusal._make(row) for row in rows]


_start = function(
    "start",
    "ids uuid[], leases uuid[], seconds double precision[], timeouts interval[], once boolean[]",
    "start::text",
)
_not_held = function("not_held", "ids uuid[], leases uuid[]", "not_held::text")
_progress_many = function(
    "progress_many",
    "ids uuid[], leases uuid[], percents integer[], stages text[], messages text[], steps text[], "
    "states jsonb[]",
    "progress_many::text",
)
_publish_many = function(
    "publish_many",
    "ids uuid[], leases uuid[], numbers integer[], names text[], datas jsonb[]",
    "publish_many::text",
)
_keep_step = function(
    "keep_step",
    "id uuid, lease uuid, name text, result jsonb, duration double precision",
    "keep_step::text",
)
_memory = function("memory", "id uuid", "state::text, names, results")


def start(ids: list[str], leases: list[str], seconds: list[float]) -> Call[list[str]]:
    """Write down that these run; answers with those that are no longer held."""
    return _start.plain(column, arrays.words(ids), arrays.words(leases), arrays.numbers(seconds), None, None)


def start_one(job_id: str, lease: str, *, timeout: timedelta | None, once: bool) -> Call[list[str]]:
    """The same before it runs, with its deadline, and whether it may never run again."""
    deadline = None if timeout is None else arrays.texts([_interval(timeout)])
    mark = arrays.words([str(once)])
    return _start.plain(column, arrays.words([job_id]), arrays.words([lease]), None, deadline, mark)


def not_held(ids: list[str], leases: list[str]) -> Call[list[str]]:
    """Answers with those that are no longer held."""
    return _not_held.plain(column, arrays.words(ids), arrays.words(leases))


class Progress(NamedTuple):
    id: str
    lease: str
    percent: int | None
    stage: str | None
    message: str | None
    # Empty once the step has ended.
    step: str | None = None
    # A checkpoint, as JSON text.
    state: str | None = None


def progress_many(reports: Sequence[Progress]) -> Call[list[str]]:
    """Write down how far these are; answers with those that are no longer held."""
    return _progress_many.plain(
        column,
        arrays.words([report.id for report in reports]),
        arrays.words([report.lease for report in reports]),
        arrays.numbers([report.percent for report in reports]),
        arrays.texts([report.stage for report in reports]),
        arrays.texts([report.message for report in reports]),
        _given([report.step for report in reports]),
        _given([report.state for report in reports]),
    )


class Published(NamedTuple):
    """An event of a handler, numbered under its lease; `data` is JSON text."""

    id: str
    lease: str
    number: int
    name: str
    data: str | None


def publish_many(events: Sequence[Published]) -> Call[list[str]]:
    """Write these events, each once; answers with the jobs that are no longer held."""
    return _publish_many.plain(
        column,
        arrays.words([event.id for event in events]),
        arrays.words([event.lease for event in events]),
        arrays.numbers([event.number for event in events]),
        arrays.texts([event.name for event in events]),
        arrays.texts([event.data for event in events]),
    )


def keep_step(job_id: str, lease: str, name: str, result: str, seconds: float) -> Call[str | None]:
    """Answers with the result that is kept, as JSON text."""
    return _keep_step(one, job_id, lease, name, result, seconds)


class Memory(NamedTuple):
    """What an attempt goes on from, as JSON text: a checkpoint, and the results of finished steps."""

    state: str | None
    steps: dict[str, str]


def memory(job_id: str) -> Call[Memory]:
    def read(rows: Rows) -> Memory:
        if not rows:
            return Memory(None, {})
        state, names, results = rows[0]
        return Memory(state, dict(zip(names, results, strict=True)))

    return _memory(read, job_id)


# A worker's life.

_register = function(
    "register",
    "name text, queues text[], tasks text[], lease_time interval, host text, pid integer, version text",
    "register::text",
)
_heartbeat = function("heartbeat", "worker uuid")
_sleep = function("sleep", "worker uuid, asleep boolean, above integer")
_leave = function("leave", "worker uuid")
_disown = function("disown", "worker uuid, held uuid[], in_flight uuid[], before timestamptz")
_channel = function("channel", "queue text")
_cancels = function("cancels", "worker uuid", "id::text, lease::text")


def register(
    *,
    name: str | None,
    queues: list[str] | None,
    tasks: list[str] | None,
    lease_time: timedelta,
    host: str,
    pid: int,
    version: str,
) -> Call[str]:
    return _register.plain(
        one, name, _texts(queues), _texts(tasks), _interval(lease_time), host, pid, version
    )


def heartbeat(worker: str) -> Call[datetime]:
    return _heartbeat.plain(one, worker)


def sleep(worker: str, *, above: int | None = None) -> Call[bool]:
    """Answers whether a transaction that may hold new jobs is open, of which nobody may tell us."""
    return _sleep.plain(one, worker, True, above)


def leave(worker: str) -> Call[int]:
    return _leave.plain(one, worker)


def disown(worker: str, held: list[str], in_flight: list[str], before: datetime) -> Call[int]:
    return _disown.plain(one, worker, arrays.words(held), arrays.words(in_flight), before)


def cancels(worker: str) -> Call[list[tuple[str, str]]]:
    """Answers with the id and the lease of each job that this worker holds and somebody called off."""
    return _cancels.plain(lambda rows: [(row[0], row[1]) for row in rows], worker)


def channel(queue: str) -> Call[str]:
    return _channel.plain(one, queue)


# Duties.

_promote = function("promote", "amount integer")
_recover = function("recover", "timeout interval")
_advance = function("advance")
_upkeep = function("upkeep", "rest interval")
_tick = function("tick")


def promote(amount: int = 2000) -> Call[timedelta | None]:
    """Answers with how long it is until the next job is due."""
    return _promote.plain(one, amount)


def recover(timeout: timedelta | None = None) -> Call[int]:
    return _recover.plain(one, None if timeout is None else _interval(timeout))


def advance() -> Call[int]:
    return _advance.plain(one)


def upkeep(rest: timedelta) -> Call[int]:
    """Not if the last one in the fleet ended less than a rest ago."""
    return _upkeep.plain(one, _interval(rest))


def tick() -> Call[list[tuple[str, str | None]]]:
    """Answers with each duty and its error, if any."""
    return _tick(lambda rows: [(row[0], row[1]) for row in rows])


# Operating.

_cancel = function("cancel", "id uuid")
_cancel_many = function("cancel_many", "ids uuid[]")
_cancel_matching = function(
    "cancel_matching",
    "queue text, task text, state text, amount integer, after uuid",
    "cancelled, requested, last_id",
)
_give_up = function("give_up", "id uuid, reason text")
_run_now = function("run_now", "id uuid")
_reschedule = function("reschedule", "id uuid, run_at timestamptz, delay interval")
_pause = function("pause", "queue text")
_resume = function("resume", "queue text")
_retry_delay = function("retry_delay", "task text, attempt integer, queue text")


def cancel(job_id: UUID) -> Call[str]:
    """Answers `cancelled`, `requested`, or the end state that the job had already."""
    return _cancel(one, job_id)


def cancel_many(ids: Sequence[UUID]) -> Call[dict[UUID, str | None]]:
    """Answers for each id as `cancel` does, or with `None` for one that no job has."""
    return _cancel_many(lambda rows: {row[0]: row[1] for row in rows}, list(ids))


class Cancelled(NamedTuple):
    """How many jobs were called off at once, and for how many their worker was asked to."""

    cancelled: int
    requested: int


def cancel_matching(
    *, queue: str | None, task: str | None, state: str | None, amount: int, after: UUID | None
) -> Call[tuple[Cancelled, UUID | None]]:
    """Answers also with the id to go on `after`, or with `None` if nothing is left."""
    return _cancel_matching(
        lambda rows: (Cancelled(*rows[0][:2]), rows[0][2]), queue, task, state, amount, after
    )


def give_up(job_id: UUID, reason: str | None) -> Call[str]:
    return _give_up(one, job_id, reason)


def run_now(job_id: UUID) -> Call[str]:
    return _run_now(one, job_id)


def reschedule(job_id: UUID, run_at: datetime | None, delay: timedelta | None) -> Call[datetime]:
    """Answers when it is due."""
    return _reschedule(one, job_id, run_at, None if delay is None else _interval(delay))


def pause(queue: str) -> Call[None]:
    return _pause(nothing, queue)


def resume(queue: str) -> Call[None]:
    return _resume(nothing, queue)


def retry_delay(task: str, attempt: int, queue: str = "default") -> Call[timedelta]:
    return _retry_delay(one, task, attempt, queue)


_set_retry_policy = function(
    "set_retry_policy",
    "task text, max_attempts integer, base interval, factor double precision, cap interval, "
    "jitter double precision, declared boolean",
)


def set_retry_policy(
    task: str, policy: RetryPolicy | None, *, max_attempts: int | None = None, declared: bool = False
) -> Call[None]:
    """With `declared` it comes from the code, and gives way to what an operator has set."""
    said: tuple[Any, ...] = (max_attempts, None, None, None, None)
    if policy is not None:
        attempts = policy.max_attempts if max_attempts is None else max_attempts
        said = (attempts, policy.base, policy.factor, policy.cap, policy.jitter)
    if declared:
        return _declare_retry_policy(nothing, task, *said)
    return _set_retry_policy(nothing, task, *said, False)


_declare_retry_policy = function(
    "declare_retry_policy",
    "task text, max_attempts integer, base interval, factor double precision, cap interval, "
    "jitter double precision",
)
_reset_retry_policy = function("reset_retry_policy", "task text")
_list_retry_policies = function("list_retry_policies")


def reset_retry_policy(task: str) -> Call[bool]:
    """Answers whether there was one."""
    return _reset_retry_policy(one, task)


class PolicyRow(NamedTuple):
    """How a task is retried; what is `None` is left to its queue and the default."""

    task: str
    max_attempts: int | None
    base: timedelta | None
    factor: float | None
    cap: timedelta | None
    jitter: float | None
    declared: bool


def list_retry_policies() -> Call[list[PolicyRow]]:
    return _list_retry_policies(lambda rows: [PolicyRow._make(row) for row in rows])


# Schedules.

_SCHEDULE = (
    "name text, task text, cron text, every interval, zone text, payload jsonb, queue text, "
    "priority integer, max_attempts integer, missed text, overlap boolean, jitter interval"
)
_add_schedule = function("add_schedule", f"{_SCHEDULE}, declared boolean")
_declare_schedule = function("declare_schedule", _SCHEDULE)
_change_schedule = function("change_schedule", _SCHEDULE)
_pause_schedule = function("pause_schedule", "name text")
_resume_schedule = function("resume_schedule", "name text")
_remove_schedule = function("remove_schedule", "name text")
_run_schedule = function("run_schedule", "name text")
_list_schedules = function("list_schedules", "upcoming integer")
_upcoming = function("upcoming", "name text, amount integer")
_next_occurrence = function("next_occurrence", "cron text, after timestamptz, zone text")
_cron_in_words = function("cron_in_words", "cron text")
_USUAL_SCHEDULE = {
    "zone": "UTC",
    "payload": "{}",
    "queue": "default",
    "priority": int(Priority.SYSTEM),
    "missed": "once",
    "overlap": True,
    "jitter": timedelta(0),
}


def add_schedule(name: str, said: Mapping[str, Any], *, declared: bool) -> Call[datetime]:
    """Answers when it runs next. What is said has the names of the function's parameters."""
    values = _schedule_values(name, {**_USUAL_SCHEDULE, **said})
    return _declare_schedule(one, *values) if declared else _add_schedule(one, *values, False)


def change_schedule(name: str, said: Mapping[str, Any]) -> Call[datetime]:
    return _change_schedule(one, *_schedule_values(name, said))


def _schedule_values(name: str, said: Mapping[str, Any]) -> list[Any]:
    given = {**said, "name": name}
    for field in ("every", "jitter"):
        if given.get(field) is not None:
            given[field] = _interval(given[field])
    return [given.get(parameter) for parameter in _change_schedule.parameters]


def pause_schedule(name: str) -> Call[bool]:
    return _pause_schedule(one, name)


def resume_schedule(name: str) -> Call[bool]:
    return _resume_schedule(one, name)


def remove_schedule(name: str) -> Call[bool]:
    return _remove_schedule(one, name)


def run_schedule(name: str) -> Call[UUID]:
    return _run_schedule(one, name)


class ScheduleRow(NamedTuple):
    """A schedule as it stands: what it says in words, and its next times."""

    name: str
    words: str
    cron: str | None
    every: timedelta | None
    zone: str
    task: str
    payload: Any
    queue: str
    priority: int
    max_attempts: int | None
    missed: str
    overlap: bool
    jitter: timedelta
    declared: bool
    paused_at: datetime | None
    next_at: datetime | None
    upcoming: list[datetime]
    last_at: datetime | None
    last_job: UUID | None
    skipped: int
    error: str | None


def list_schedules(upcoming: int = 5) -> Call[list[ScheduleRow]]:
    return _list_schedules(lambda rows: [ScheduleRow._make(row) for row in rows], upcoming)


def upcoming(name: str, amount: int) -> Call[list[datetime]]:
    return _upcoming(column, name, amount)


def next_occurrence(cron: str, after: datetime, zone: str) -> Call[datetime]:
    return _next_occurrence(one, cron, after, zone)


def cron_in_words(cron: str) -> Call[str]:
    return _cron_in_words(one, cron)


# Dead letters.

_replay = function("replay", "id uuid, start_over boolean")
_purge = function("purge", "id uuid")
_DEAD = "queue text, task text, error text, died_after timestamptz, died_before timestamptz, amount integer"
_replay_many = function("replay_many", f"{_DEAD}, start_over boolean")
_purge_many = function("purge_many", _DEAD)


class Dead(NamedTuple):
    """Which dead letters are meant; what is `None` matches all. `error` is a part of the last error."""

    queue: str | None = None
    task: str | None = None
    error: str | None = None
    died_after: datetime | None = None
    died_before: datetime | None = None
    amount: int | None = None


def replay(job_id: UUID, *, start_over: bool = False) -> Call[str]:
    return _replay(one, job_id, start_over)


def purge(job_id: UUID) -> Call[None]:
    return _purge(nothing, job_id)


def replay_many(dead: Dead, *, start_over: bool = False) -> Call[int]:
    return _replay_many(one, *dead, start_over)


def purge_many(dead: Dead) -> Call[int]:
    return _purge_many(one, *dead)


# Looking.

_SNAPSHOT = (
    "id, queue, task, payload::text, priority, state, attempt, max_attempts, run_at, created_at, claimed_at, "
    "started_at, finished_at, changed_at, duration, worker, worker_name, lease, progress, stage, message, "
    "result::text, last_error, cancel_requested_at, headers::text, step, time_left, events"
)
_SNAPSHOT_FIELDS = tuple(column.removesuffix("::text") for column in _SNAPSHOT.split(", "))
_JSON_FIELDS = frozenset({"payload", "result", "headers"})

_job = function("job", "id uuid", _SNAPSHOT)
_list_jobs = function("list_jobs", "queue text, task text, state text, amount integer", _SNAPSHOT)
_list_dead = function("list_dead", _DEAD, _SNAPSHOT)
_job_errors = function("job_errors", "id uuid")
_job_steps = function("job_steps", "id uuid")
_job_checkpoint = function("job_checkpoint", "id uuid")
_read_events = function("read_events", "job_id uuid, queue text, after text, amount integer")
_event_cursor = function("event_cursor", "job_id uuid")
_count_jobs = function("count_jobs", columns="queue, state, jobs, oldest_at, paused, estimated")
_list_queues = function("list_queues")
_list_workers = function("list_workers")


def _read_snapshot(row: Row) -> JobSnapshot:
    fields = dict(zip(_SNAPSHOT_FIELDS, row, strict=True))
    for name in _JSON_FIELDS:
        if fields[name] is not None:
            fields[name] = msgspec.json.decode(fields[name])
    fields["state"] = JobState(fields["state"])
    return JobSnapshot(**fields)


def job(job_id: UUID) -> Call[JobSnapshot | None]:
    return _job(lambda rows: _read_snapshot(rows[0]) if rows else None, job_id)


def list_jobs(
    *, queue: str | None = None, task: str | None = None, state: str | None = None, amount: int = 50
) -> Call[list[JobSnapshot]]:
    return _list_jobs(lambda rows: [_read_snapshot(row) for row in rows], queue, task, state, amount)


def list_dead(dead: Dead) -> Call[list[JobSnapshot]]:
    return _list_dead(lambda rows: [_read_snapshot(row) for row in rows], *dead)


class AttemptError(NamedTuple):
    attempt: int
    failed_at: datetime
    worker: UUID | None
    error: str
    traceback: str | None


def job_errors(job_id: UUID) -> Call[list[AttemptError]]:
    return _job_errors(lambda rows: [AttemptError._make(row) for row in rows], job_id)


class StepRow(NamedTuple):
    """A step that a job has finished."""

    name: str
    result: Any
    attempt: int
    worker: UUID | None
    finished_at: datetime
    duration: timedelta | None


def job_steps(job_id: UUID) -> Call[list[StepRow]]:
    return _job_steps(lambda rows: [StepRow._make(row) for row in rows], job_id)


def job_checkpoint(job_id: UUID) -> Call[dict[str, Any] | None]:
    return _job_checkpoint(one, job_id)


class Event(NamedTuple):
    """What happened to a job, or what its handler published. `cursor` is where to go on after it."""

    id: int
    job_id: UUID
    queue: str
    task: str
    name: str
    attempt: int
    data: Any
    at: datetime
    cursor: str


def read_events(
    *, job_id: UUID | None, queue: str | None, after: str | None, amount: int = 1000
) -> Call[list[Event]]:
    return _read_events(lambda rows: [Event._make(row) for row in rows], job_id, queue, after, amount)


def event_cursor(job_id: UUID | None) -> Call[str]:
    """Answers with the cursor of this moment in the events of a job, or else of a queue or all."""
    return _event_cursor(one, job_id)


# Waiting for the end.

_await_jobs = function("await_jobs", "ids uuid[], channel text")
_await_no_more = function("await_no_more", "ids uuid[], channel text")
_ends = function("ends", "ids uuid[]", "id::text, task, state, result::text, error")


class End(NamedTuple):
    """How a job has ended; `result` is JSON text, `state` is `None` where there is no such job."""

    id: str
    task: str | None
    state: str | None
    result: str | None
    error: str | None


def await_jobs(ids: Sequence[str], channel: str) -> Call[None]:
    return _await_jobs.plain(nothing, arrays.words(ids), channel)


def await_no_more(ids: Sequence[str], channel: str) -> Call[None]:
    return _await_no_more.plain(nothing, arrays.words(ids), channel)


def ends(ids: Sequence[str]) -> Call[list[End]]:
    """Answers for those that have ended."""
    return _ends.plain(lambda rows: [End._make(row) for row in rows], arrays.words(ids))


class Stat(NamedTuple):
    queue: str
    state: str
    jobs: int
    oldest_at: datetime
    paused: bool
    estimated: bool
    """Whether `jobs` is an estimate: very many are not counted one by one."""


def stats() -> Call[list[Stat]]:
    return _count_jobs(lambda rows: [Stat._make(row) for row in rows])


class QueueRow(NamedTuple):
    name: str
    paused_at: datetime | None
    scheduled: int
    pending: int
    held: int
    oldest_at: datetime | None


def list_queues() -> Call[list[QueueRow]]:
    return _list_queues(lambda rows: [QueueRow._make(row) for row in rows])


class WorkerRow(NamedTuple):
    id: UUID
    name: str
    host: str | None
    pid: int | None
    queues: list[str] | None
    tasks: list[str] | None
    status: str
    holds: int
    started_at: datetime
    heartbeat_at: datetime
    recovered: int


def list_workers() -> Call[list[WorkerRow]]:
    return _list_workers(lambda rows: [WorkerRow._make(row) for row in rows])


# Each of these adds its functions to FUNCTIONS.
from holdfast.calls import (  # noqa: E402
    access as access,
    retention as retention,
    settings as settings,
    statistics as statistics,
)
from holdfast.calls.diagnosis import Finding as Finding, Reason as Reason, doctor as doctor, why as why  # noqa: E402
from holdfast.calls.gauges import Gauge as Gauge, clock as clock, gauges as gauges  # noqa: E402

"""Workers: `hf.workers` lists them, and runs their duties by hand."""

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.operations import duties
from holdfast.operations.base import Namespace, operation, twin
from holdfast.operations.run_steps import Action, Steps
from holdfast.values import arrays, limits
from holdfast.values.call import Call, function, interval, nothing, one

_register = function(
    "register",
    "name text, queues text[], tasks text[], lease_time interval, host text, pid integer, version text, "
    "channel text",
    "register::text",
)
_heartbeat = function("heartbeat", "worker uuid")
_sleep = function("sleep", "worker uuid, asleep boolean, above integer")
_leave = function("leave", "worker uuid")
_pass_on = function("pass_on", "worker uuid")
_disown = function("disown", "worker uuid, held uuid[], in_flight uuid[], before timestamptz")
_channel = function("channel", "queue text")
_cancels = function("cancels", "worker uuid", "id::text, lease::text")
_list_workers = function("list_workers")


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


class Workers(Namespace):
    """The workers of one database, and the duties that they share."""

    @operation
    def recover(self, timeout: timedelta | float | None = None) -> Call[int]:
        """Take back the jobs of lost workers, and return their number.

        Workers do this automatically. With a `timeout`, a worker is lost if it sent no heartbeat for this
        long.
        """
        return duties.recover(None if timeout is None else limits.duration("timeout", timeout))

    arecover = twin(recover)

    @operation
    def tick(self) -> Steps[list[tuple[str, str | None]]]:
        """Run every duty once, for a database without workers. Return each with its error, if any."""
        done: list[tuple[str, str | None]] = yield Action(
            lambda: self._holdfast.database.run_patiently(duties.tick())
        )
        return done

    atick = twin(tick)

    @operation
    def list(self) -> Call["list[WorkerRow]"]:
        """Return the workers of the last day, with the number of held jobs and the last heartbeat."""
        return list_workers()

    alist = twin(list)


def list_workers() -> Call[list[WorkerRow]]:
    return _list_workers(lambda rows: [WorkerRow._make(row) for row in rows])


def register(
    *,
    name: str | None,
    queues: list[str] | None,
    tasks: list[str] | None,
    lease_time: timedelta,
    host: str,
    pid: int,
    version: str,
    channel: str | None = None,
) -> Call[str]:
    """Register a worker, and return its id. It can be woken alone on `channel`."""
    return _register.plain(
        one,
        name,
        arrays.texts_or_null(queues),
        arrays.texts_or_null(tasks),
        interval(lease_time),
        host,
        pid,
        version,
        channel,
    )


def heartbeat(worker: str) -> Call[datetime]:
    return _heartbeat.plain(one, worker)


def sleep(worker: str, *, above: int | None = None) -> Call[bool]:
    """Announce that the worker sleeps. Return True if an open transaction may add jobs without waking it."""
    return _sleep.plain(one, worker, True, above)


def pass_on(worker: str) -> Call[None]:
    """Wake other workers for the jobs that this one was woken for and has no room for."""
    return _pass_on.plain(nothing, worker)


def leave(worker: str) -> Call[int]:
    return _leave.plain(one, worker)


def disown(worker: str, held: list[str], in_flight: list[str], before: datetime) -> Call[int]:
    return _disown.plain(one, worker, arrays.words(held), arrays.words(in_flight), before)


def cancels(worker: str) -> Call[list[tuple[str, str]]]:
    """Return the id and the lease of each job that this worker holds and that was cancelled."""
    return _cancels.plain(lambda rows: [(row[0], row[1]) for row in rows], worker)


def channel(queue: str) -> Call[str]:
    return _channel.plain(one, queue)

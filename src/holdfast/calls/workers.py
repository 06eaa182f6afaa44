"""Calls of a worker: its life, and the duties."""

from datetime import datetime, timedelta

from holdfast.calls.base import Call, function, interval, nothing, one, texts
from holdfast.values import arrays

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
    return _register.plain(one, name, texts(queues), texts(tasks), interval(lease_time), host, pid, version)


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

_fire = function("fire")
_promote = function("promote", "amount integer, also_fire boolean")
_recover = function("recover", "timeout interval, also_fold boolean")
_fold_stats = function("fold_stats", "all_of_them boolean")
_advance = function("advance")
_upkeep = function("upkeep", "rest interval")
_tick = function("tick")
_report_duty = function("report_duty", "duty text, error text")


def fire() -> Call[timedelta | None]:
    """Fire the schedules that are due; return how long it is until the next one is due."""
    return _fire.plain(one)


def promote(amount: int = 2000) -> Call[timedelta | None]:
    """Make due jobs pending; return how long it is until the next one is due."""
    return _promote.plain(one, amount, False)


def recover(timeout: timedelta | None = None) -> Call[int]:
    return _recover.plain(one, None if timeout is None else interval(timeout), False)


def fold_stats() -> Call[int]:
    """Add up the statistics of the last minute; return how many reports were added."""
    return _fold_stats.plain(one, False)


def advance() -> Call[int]:
    return _advance.plain(one)


def upkeep(rest: timedelta) -> Call[int]:
    """Not if the last one in the fleet ended less than a rest ago."""
    return _upkeep.plain(one, interval(rest))


def report_duty(duty: str, error: str) -> Call[None]:
    return _report_duty.plain(nothing, duty, error)


def tick() -> Call[list[tuple[str, str | None]]]:
    """Answers with each duty and its error, if any."""
    return _tick(lambda rows: [(row[0], row[1]) for row in rows])

"""The duties of every worker, one SQL function each. `hf.workers.tick` runs all of them once."""

from datetime import timedelta
from typing import NamedTuple

from holdfast.values.call import Call, function, interval, nothing, one

_fire = function("fire")
_promote = function("promote", "amount integer, also_fire boolean")
_recover = function("recover", "timeout interval, also_fold boolean")
_fold_stats = function("fold_stats", "all_of_them boolean")
_advance = function("advance")
_do_duties = function("do_duties", "", "duty, wait, done")
_upkeep = function("upkeep", "rest interval")
_tick = function("tick")
_report_duty = function("report_duty", "duty text, error text")
_sweep = function("sweep", "rest interval")


def fire() -> Call[timedelta | None]:
    """Fire the schedules that are due, and return the time until the next one is due."""
    return _fire.plain(one)


def promote(amount: int = 2000) -> Call[timedelta | None]:
    """Make due jobs pending, and return the time until the next one is due."""
    return _promote.plain(one, amount, False)


def recover(timeout: timedelta | None = None) -> Call[int]:
    return _recover.plain(one, None if timeout is None else interval(timeout), False)


def fold_stats() -> Call[int]:
    """Add up the statistics of the last minute, and return the number of added reports."""
    return _fold_stats.plain(one, False)


def advance() -> Call[int]:
    return _advance.plain(one)


class Due(NamedTuple):
    """How long to wait before a duty runs; None if it need not. `done` counts jobs that were taken back."""

    duty: str
    wait: timedelta | None
    done: int


def do_duties() -> Call[list[Due]]:
    """Run the frequent duties, unless a worker has just run them."""
    return _do_duties.plain(lambda rows: [Due._make(row) for row in rows])


def upkeep(rest: timedelta) -> Call[int]:
    """Run the upkeep, unless any worker has ended one within the last `rest`."""
    return _upkeep.plain(one, interval(rest))


def report_duty(duty: str, error: str) -> Call[None]:
    return _report_duty.plain(nothing, duty, error)


def tick() -> Call[list[tuple[str, str | None]]]:
    """Run every duty once, and return each with its error, if any."""
    return _tick(lambda rows: [(row[0], row[1]) for row in rows])


def sweep(rest: timedelta) -> Call[bool]:
    """Run a part of the sweep, and return whether more is left."""
    return _sweep.plain(one, f"{rest.total_seconds():.6f} seconds")

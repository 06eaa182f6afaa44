"""Events inside Holdfast, reported to subscribers: the only place for observing it.

Other code never logs, counts or traces. It emits an event, and each subscriber decides what to do with it:

    emit("job.failed", job=job.id, task=job.task, attempt=2)

    unsubscribe = subscribe(lambda name, fields: print(name, fields))

Names are `noun.verb` in the past tense (`worker.lost`). The first subscriber is built in: it writes to the
stdlib logger "holdfast". The subscribers are the only module-level state of Holdfast.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from holdfast.values.errors import DatabaseUnavailable
from holdfast.values.secret import hide_passwords, mask

T = TypeVar("T")
Subscriber: TypeAlias = Callable[[str, Mapping[str, Any]], None]

_logger = logging.getLogger("holdfast")

# Looked up by the whole name, and then by its last word; everything else is INFO.
_LEVELS = {
    # Many times per second.
    "jobs.claimed": logging.DEBUG,
    "jobs.finished": logging.DEBUG,
    "heartbeat.accepted": logging.DEBUG,
    # Worth knowing.
    "jobs.recovered": logging.WARNING,  # a worker has died, and perhaps a job has used its last attempt
    "failed": logging.WARNING,
    "lost": logging.WARNING,
    "locked": logging.WARNING,
    "refused": logging.WARNING,
    "kept": logging.WARNING,
    "blocked": logging.WARNING,
    "doubted": logging.WARNING,
    # Needs action.
    "died": logging.ERROR,
    "broken": logging.ERROR,
}


# Events of a worker's parts while the database is away. `database.lost` has reported that once.
_DUTIES = "fire promote recover fold_stats advance upkeep sweep"
_PARTS = f"claimer {_DUTIES} duties register heartbeat keeper finisher claim start"
_OF_AN_OUTAGE = {
    "listener.lost",
    *(f"{part}.{what}" for part in _PARTS.split() for what in ("failed", "resumed")),
}


class Counted(tuple[T, ...]):
    """Many values in one field of an event. A log shows their number, and a subscriber may read them.

    One event reports a whole batch, so a job costs nothing without a counting subscriber.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return str(len(self))

    __repr__ = __str__  # the values may be secret


def emit(name: str, /, **fields: Any) -> None:
    """Call every subscriber. Never raises, whatever they do."""
    for subscriber in _subscribers:
        try:
            subscriber(name, fields)
        except Exception:  # a failing subscriber, or the log of its failure, must not stop the work
            with suppress(Exception):
                _logger.exception("subscriber %r failed on %s", subscriber, name)


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call `subscriber(name, fields)` for every event from now on. Return a function that unsubscribes.

    The call is made at once, in the thread that does the work. Be quick, and do not change the fields.
    """
    global _subscribers  # noqa: PLW0603 - the one piece of state in this module
    with _lock:
        _subscribers = (*_subscribers, subscriber)

    def unsubscribe() -> None:
        global _subscribers  # noqa: PLW0603
        with _lock:
            remaining = list(_subscribers)
            if subscriber in remaining:
                remaining.remove(subscriber)
            _subscribers = tuple(remaining)

    return unsubscribe


def log(name: str, fields: Mapping[str, Any]) -> None:
    """Write one line `name key=value …` to the log, with the event as attributes of the log record.

    A stack follows on separate lines.
    """
    level = _level(name, fields)
    if _logger.isEnabledFor(level):
        shown = (f"{key}={_shown(value)}" for key, value in fields.items() if key != "stack")
        line = " ".join([name, *shown])
        if stack := fields.get("stack"):
            line += "\n" + hide_passwords(str(stack)).rstrip()
        _logger.log(level, "%s", line, extra={"event": name, "fields": fields})


# Replaced as a whole and never changed, so that emit() reads it without a lock.
_subscribers: tuple[Subscriber, ...] = (log,)
_lock = threading.Lock()


def _level(name: str, fields: Mapping[str, Any]) -> int:
    if name in _OF_AN_OUTAGE and isinstance(fields.get("error"), DatabaseUnavailable):
        return logging.DEBUG
    return _LEVELS.get(name) or _LEVELS.get(name.rpartition(".")[2], logging.INFO)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    # Texts with spaces or special characters are quoted. No text can forge a second line.
    text = (
        f"{type(value).__name__}: {' '.join(str(value).split())}"
        if isinstance(value, BaseException)
        else str(value if isinstance(value, Counted) else mask(value))
    )
    text = hide_passwords(text)
    plain = text and text.isprintable() and not any(mark in text for mark in " =\"'")
    return text if plain else repr(text)

"""Reports of a handler that its worker has not yet written: the newest progress, and events.

Handlers report from the loop, from threads and from other processes. The keeper reads the reports in its own
thread, and a step writes them in the handler's thread. A note is only ever replaced; a lock guards the
events.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.operations.attempts import Progress, Published
from holdfast.operations.claiming import Claimed
from holdfast.telemetry import emit
from holdfast.values import limits
from holdfast.values.encoding import Unstorable, to_json
from holdfast.values.errors import BadValue
from holdfast.values.secret import MARK, secrets_in

STAGE_LENGTH = 100
MESSAGE_LENGTH = 1000
STEP_LENGTH = 100
DATA_LIMIT = 16 * 1024
STATE_LIMIT = 16 * 1024
EVENT_LIMIT = 10_000
CHUNK = 500


class Note(NamedTuple):
    """The progress of a job. `state` is its checkpoint as JSON text; `step` is empty between two steps."""

    percent: int | None = None
    stage: str | None = None
    message: str | None = None
    step: str | None = None
    state: str | None = None


class HandlerEvent(NamedTuple):
    """An event that a handler has reported; `data` is JSON text."""

    number: int
    name: str
    data: str | None


class Notes:
    """Everything that one attempt reports."""

    __slots__ = ("_events", "_job", "_lock", "_number", "_refusal_reported", "note")

    def __init__(self, job: Claimed) -> None:
        self._job = job
        self._number = 0
        self._refusal_reported = False
        self._lock = threading.Lock()
        self._events: list[HandlerEvent] = []
        self.note: Note | None = None

    def event(self, name: str, data: Any) -> HandlerEvent | None:
        """Store an event and return it, or return `None` if there are too many."""
        limits.name("name", name)
        if name.startswith("job."):
            raise limits.refused("name", name, "names of this form are reserved; choose another")
        text = None if data is None else json_text("data", data, DATA_LIMIT)
        with self._lock:
            if self._number < EVENT_LIMIT:
                self._number += 1
                event = HandlerEvent(self._number, name, text)
                self._events.append(event)
                return event
            first, self._refusal_reported = not self._refusal_reported, True
        if first:
            emit("events.refused", job=self._job.id, task=self._job.task, limit=EVENT_LIMIT)
        return None

    def receive(self, event: HandlerEvent) -> None:
        """Store an event of another process, with the number that it got there."""
        with self._lock:
            self._events.append(event)

    def progress(self, note: Note | None, written: Note | None) -> Progress | None:
        """Return the unwritten part of a note; `None` if it was written before."""
        if note is None or note is written:
            return None
        state = None if written is not None and note.state is written.state else note.state
        return Progress(
            self._job.id, self._job.lease, note.percent, note.stage, note.message, note.step, state
        )

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def unpublished(self) -> list[Published]:
        job_id, lease = self._job.id, self._job.lease
        with self._lock:
            return [Published(job_id, lease, *event) for event in self._events]

    def published(self, events: Sequence[Published]) -> None:
        """Remove these events, because they are written or can never be written."""
        if events:
            last = events[-1].number
            with self._lock:
                self._events = [event for event in self._events if event.number > last]


def chunks(events: Sequence[Published]) -> Iterator[Sequence[Published]]:
    """Yield the events in chunks that fit into one call."""
    for begin in range(0, len(events), CHUNK):
        yield events[begin : begin + CHUNK]


def json_text(field: str, value: Any, limit: int) -> str:
    """Return a value as JSON text that can be stored; raises `BadValue`."""
    try:
        text = to_json(value)
    except Unstorable as trouble:
        raise BadValue(f"{field}{trouble.path}: {trouble.reason}", field=field) from trouble
    if len(text) > limit:
        raise BadValue(
            f"{field} has {len(text):,} bytes as JSON, and may have at most {limit:,}",
            hint="Store it elsewhere and keep a reference to it.",
            field=field,
        )
    if MARK.encode() in text and any(True for _ in secrets_in(msgspec.json.decode(text))):
        raise BadValue(
            f"{field} has a Secret in it, which would be stored in plain text",
            hint="Leave it out, or reveal() it if it may be seen.",
            field=field,
        )
    return text.decode()

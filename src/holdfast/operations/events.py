"""Events of jobs: `hf.events` reads and follows the log."""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.operations.base import Namespace, stream, twin
from holdfast.operations.results import End, ends_of
from holdfast.operations.run_steps import Page, Stream, sleep_for
from holdfast.operations.snapshots import unknown
from holdfast.values import limits
from holdfast.values.call import Call, function, one
from holdfast.values.encoding import shown

# After this many empty reads in a row, the cursor moves to the present.
EMPTY_LOOKS = 20

_read_events = function(
    "read_events",
    "job_id uuid, queue text, after text, amount integer",
    "id, job_id, queue, task, name, attempt, data::text, at, cursor",
)
_event_cursor = function("event_cursor", "job_id uuid")


class Event(NamedTuple):
    """An event of a job, from the queue or from the handler. `cursor` is the position after it."""

    id: int
    job_id: UUID
    queue: str
    task: str
    name: str
    attempt: int
    data: Any
    at: datetime
    cursor: str


class Events(Namespace):
    """The events of one database."""

    called = "read(…)"

    @stream
    def read(
        self,
        *,
        job_id: UUID | str | None = None,
        queue: str | None = None,
        after: str | None = None,
        follow: bool = True,
        poll: float = 0.5,
    ) -> Stream[Event]:
        """Yield the past events of a job, a queue or all jobs in order, and then new ones as they come.

        To continue after an event, even in another process, pass its `cursor` as `after`. A follower sees
        every event exactly once, whenever its transaction commits. `after="now"` leaves out past events, and
        `follow=False` leaves out new ones. The events of one job end with the job.
        """
        return reading(job_id=job_id, queue=queue, after=after, follow=follow, poll=poll)

    aread = twin(read)


def reading(
    *, job_id: UUID | str | None, queue: str | None, after: str | None, follow: bool, poll: float
) -> Stream[Event]:
    """Yield the pages of `hf.events.read`."""
    feed = _Feed(job_id, queue, after, poll)
    if after == "now":
        feed.after = yield feed.now()
    while True:
        ahead = (yield feed.now()) if feed.quiet else None
        page = yield feed.read()
        yield Page(feed.take(page, ahead))
        if page:
            continue
        if feed.over or (not follow and feed.job is None):
            return
        ends = (yield ends_of([str(feed.job)])) if feed.job is not None else []
        if feed.is_over(ends) and follow:
            feed.over = True  # read once more, for events just before its end
        elif not follow:
            return
        else:
            yield sleep_for(feed.poll)


class _Feed:
    """A reader's position in the events of a job, a queue or all jobs."""

    def __init__(self, job_id: UUID | str | None, queue: str | None, after: str | None, poll: float) -> None:
        if job_id is not None and queue is not None:
            raise limits.refused("queue", queue, "give either job_id or queue")
        self.job = None if job_id is None else limits.identity("job_id", job_id)
        self.queue = None if queue is None else limits.name("queue", queue)
        self.after = None if after is None else limits.text("after", after)
        self.poll = limits.number("poll", poll, 0.01, 3600)
        self.over = False
        self._empty = 0

    def now(self) -> Call[str]:
        return event_cursor(self.job)

    def read(self) -> Call[list[Event]]:
        return read_events(job_id=self.job, queue=self.queue, after=self.after)

    @property
    def quiet(self) -> bool:
        """Tell whether enough reads were empty to move the cursor.

        Each read walks over all events since the cursor, including those of other queues. A cursor that was
        taken before an empty read skips them and misses nothing.
        """
        return self.job is None and self._empty >= EMPTY_LOOKS

    def is_over(self, ends: list[End]) -> bool:
        """Tell whether the job of this feed has ended. Raises `JobNotFound` if there is no such job."""
        for end in ends:
            if end.state is None and self.after is None:
                raise unknown(UUID(end.id))
        return bool(ends)

    def take(self, page: list[Event], ahead: str | None) -> list[Event]:
        self._empty = 0 if page or ahead else self._empty + 1
        if page:
            self.after = page[-1].cursor
        elif ahead is not None:
            self.after = ahead
        return page


def read_events(
    *, job_id: UUID | None, queue: str | None, after: str | None, amount: int = 1000
) -> Call[list[Event]]:
    return _read_events(
        lambda rows: [Event._make(row)._replace(data=shown(row[6])) for row in rows],
        job_id,
        queue,
        after,
        amount,
    )


def event_cursor(job_id: UUID | None) -> Call[str]:
    """Return the current cursor in the events of a job, or of all jobs if there is no `job_id`."""
    return _event_cursor(one, job_id)

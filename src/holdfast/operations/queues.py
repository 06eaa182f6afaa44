"""Queues: `hf.queues`."""

from datetime import datetime
from typing import NamedTuple

from holdfast.operations.base import Namespace, operation, twin
from holdfast.values.call import Call, function, nothing

_pause = function("pause", "queue text")
_resume = function("resume", "queue text")
_list_queues = function("list_queues")


class QueueRow(NamedTuple):
    name: str
    paused_at: datetime | None
    scheduled: int
    pending: int
    held: int
    oldest_at: datetime | None


class Queues(Namespace):
    """The queues of one database."""

    @operation
    def pause(self, queue: str) -> Call[None]:
        """Stop workers from claiming jobs of this queue. Running jobs continue."""
        return _pause(nothing, queue)

    apause = twin(pause)

    @operation
    def resume(self, queue: str) -> Call[None]:
        """Let workers claim the jobs of a paused queue again."""
        return _resume(nothing, queue)

    aresume = twin(resume)

    @operation
    def list(self) -> Call["list[QueueRow]"]:
        """Return the queues that were used or are paused, with the number of jobs in each state."""
        return list_queues()

    alist = twin(list)


def list_queues() -> Call[list[QueueRow]]:
    return _list_queues(lambda rows: [QueueRow._make(row) for row in rows])

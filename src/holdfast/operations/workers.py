"""Workers: `hf.workers` lists them, and does their duties by hand."""

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast import calls
from holdfast.calls.base import Call, function
from holdfast.operations.base import Blocking, Namespace, Steps, operation, twin

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

    called = "hf.workers.list()"

    @operation
    def recover(self, timeout: timedelta | None = None) -> Call[int]:
        """Take back the jobs of workers that are lost, and return how many.

        Workers do this by themselves. With a `timeout`, a worker that was silent for this long is lost.
        """
        return calls.recover(timeout)

    arecover = twin(recover)

    @operation
    def tick(self) -> Steps[list[tuple[str, str | None]]]:
        """Run every duty once, and return each with its error, if any: for a database without workers."""
        done: list[tuple[str, str | None]] = yield Blocking(
            lambda: self._holdfast.database.run_patiently(calls.tick())
        )
        return done

    atick = twin(tick)

    @operation
    def list(self) -> Call["list[WorkerRow]"]:
        """Return the workers of the last day, with what they hold and when they sent their last heartbeat."""
        return list_workers()

    alist = twin(list)


def list_workers() -> Call[list[WorkerRow]]:
    return _list_workers(lambda rows: [WorkerRow._make(row) for row in rows])

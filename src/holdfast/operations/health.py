"""Health: `hf.health` judges the queues, and finds problems of the database."""

from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from holdfast.database import examine
from holdfast.database.doctor import Finding
from holdfast.operations.base import Namespace, operation, twin
from holdfast.operations.run_steps import Action, Steps
from holdfast.telemetry.metrics import Overview, exposition, families_of, questions
from holdfast.values import limits
from holdfast.values.call import Call, Rows, function

Status = Literal["OK", "WARNING", "CRITICAL"]


class QueueReport(NamedTuple):
    """The status of a queue, its reason and its figures. Attempts and failures are those of the last hour."""

    queue: str
    status: Status
    message: str
    waiting: int
    estimated: bool
    waiting_since: datetime | None
    oldest: timedelta | None
    attempts: int
    failed: int
    failures: float | None
    workers: int
    paused_at: datetime | None


_health = function("health", "queue text", ", ".join(QueueReport._fields))


class Health(Namespace):
    """The health of the queues and the database."""

    called = "check(…)"

    @operation
    def check(self, queue: str | None = None) -> Call[list[QueueReport]]:
        """Return the status of each queue, or of one: OK, WARNING or CRITICAL by its thresholds, and why."""

        def read(rows: Rows) -> list[QueueReport]:
            return [QueueReport._make(row) for row in rows]

        return _health(read, queue)

    acheck = twin(check)

    @operation
    def doctor(self, *, healthy: bool = False) -> Steps[list[Finding]]:
        """Return the problems of the database, the worst first, and an empty list if there are none.

        With `healthy` the checks that found nothing are included, as `ok`.
        """
        limits.truth("healthy", healthy)
        found: list[Finding] = yield Action(lambda: examine(self._holdfast.database, healthy=healthy))
        return found

    adoctor = twin(doctor)

    @operation
    def overview(self) -> Steps[Overview]:
        """Return the figures of `metrics`: counts, queues, workers and gauges, read one after the other."""
        return _overview()

    aoverview = twin(overview)

    @operation
    def metrics(self) -> Steps[str]:
        """Return metrics of the database for Prometheus: jobs by queue and state, workers, gauges.

        The metrics of one worker process are on its own port: `hf.worker(http=8080)`.
        """
        overview = yield from _overview()
        return exposition(families_of(overview))

    ametrics = twin(metrics)


def _overview() -> Steps[Overview]:
    answers: list[Any] = []
    for question in questions():
        answers += [(yield question)]
    return Overview(*answers)

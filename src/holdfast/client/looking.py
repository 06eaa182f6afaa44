"""What can be seen: jobs, queues, workers, statistics, settings, and what is wrong."""

import asyncio
from datetime import datetime
from uuid import UUID

from holdfast import calls
from holdfast.calls import Call, Finding, QueueRow, Reason, Stat, WorkerRow
from holdfast.calls.retention import DueExport, PartitionRow
from holdfast.calls.settings import AuditRow, SettingRow
from holdfast.calls.statistics import By, QueueReport, Statistic
from holdfast.client.asking import Asking, known_state
from holdfast.database import examine
from holdfast.telemetry.metrics import Overview, exposition, families_of, questions
from holdfast.values import limits
from holdfast.values.job import JobSnapshot, JobState
from holdfast.values.renamed import renamed


class Looking(Asking):
    @renamed(amount="limit")
    def jobs(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: JobState | str | None = None,
        limit: int = 50,
    ) -> list[JobSnapshot]:
        """Jobs that match, those that changed last first."""
        return self.run(_jobs(queue, task, state, limit))

    @renamed(amount="limit")
    async def ajobs(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: JobState | str | None = None,
        limit: int = 50,
    ) -> list[JobSnapshot]:
        return await self.arun(_jobs(queue, task, state, limit))

    def stats(self) -> list[Stat]:
        """How many jobs there are per queue and state; very many are estimated, and marked so."""
        return self.run(calls.stats())

    async def astats(self) -> list[Stat]:
        return await self.arun(calls.stats())

    def statistics(self, *, by: By = "queue", queue: str | None = None) -> list[Statistic]:
        """What waits, runs and is dead, and what was done in the last hour and day, by queue or by task."""
        return self.run(_statistics(by, queue))

    async def astatistics(self, *, by: By = "queue", queue: str | None = None) -> list[Statistic]:
        return await self.arun(_statistics(by, queue))

    def health(self, queue: str | None = None) -> list[QueueReport]:
        """How each queue is, or this one: OK, WARNING or CRITICAL by its thresholds, and why."""
        return self.run(calls.statistics.health(queue))

    async def ahealth(self, queue: str | None = None) -> list[QueueReport]:
        return await self.arun(calls.statistics.health(queue))

    def queues(self) -> list[QueueRow]:
        """The queues that were used or are paused, and what waits in them."""
        return self.run(calls.list_queues())

    async def aqueues(self) -> list[QueueRow]:
        return await self.arun(calls.list_queues())

    def workers(self) -> list[WorkerRow]:
        return self.run(calls.list_workers())

    async def aworkers(self) -> list[WorkerRow]:
        return await self.arun(calls.list_workers())

    # What is wrong.

    def why(self, job_id: UUID | str) -> list[Reason]:
        """Why a job does not run: what stands in its way, the decisive reason first, and what to do.

        One that has ended, or that nobody knows, is explained as well.
        """
        return self.run(calls.why(limits.identity("id", job_id)))

    async def awhy(self, job_id: UUID | str) -> list[Reason]:
        return await self.arun(calls.why(limits.identity("id", job_id)))

    def doctor(self, *, healthy: bool = False) -> list[Finding]:
        """What is wrong with the database, the worst first; nothing if all is well.

        With `healthy` the checks that found nothing are among them, as `ok`.
        """
        return examine(self.database, healthy=limits.truth("healthy", healthy))

    async def adoctor(self, *, healthy: bool = False) -> list[Finding]:
        return await asyncio.to_thread(self.doctor, healthy=healthy)

    def metrics(self) -> str:
        """What stands in the database, as Prometheus reads it: jobs by queue and state, workers, gauges.

        What one worker process does is on its own port: `hf.worker(http=8080)`.
        """
        return exposition(families_of(Overview(*[self.run(question) for question in questions()])))

    async def ametrics(self) -> str:
        return exposition(families_of(Overview(*[await self.arun(question) for question in questions()])))

    # What is set, kept, and was done by whom.

    def settings(self, queue: str | None = None) -> list[SettingRow]:
        """The settings of a queue, or of all that have any, `*` first: its own, or the default of all."""
        return self.run(calls.settings.settings(queue))

    async def asettings(self, queue: str | None = None) -> list[SettingRow]:
        return await self.arun(calls.settings.settings(queue))

    @renamed(amount="limit")
    def audit(
        self,
        *,
        target: str | None = None,
        action: str | None = None,
        who: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
    ) -> list[AuditRow]:
        """Who did what, and when, the latest first: by queue, job or schedule (`target`), action, name."""
        return self.run(_audit(target, action, who, since, limit))

    @renamed(amount="limit")
    async def aaudit(
        self,
        *,
        target: str | None = None,
        action: str | None = None,
        who: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
    ) -> list[AuditRow]:
        return await self.arun(_audit(target, action, who, since, limit))

    def partitions(self) -> list[PartitionRow]:
        """The days of finished jobs and events: how much they hold, and what becomes of them when."""
        return self.run(calls.retention.list_partitions())

    async def apartitions(self) -> list[PartitionRow]:
        return await self.arun(calls.retention.list_partitions())

    def due_exports(self) -> list[DueExport]:
        """The days that wait for `hf.export(…)` before they go, where the setting `disposal` is `export`."""
        return self.run(calls.retention.due_exports())

    async def adue_exports(self) -> list[DueExport]:
        return await self.arun(calls.retention.due_exports())


def _jobs(
    queue: str | None, task: str | None, state: JobState | str | None, limit: int
) -> Call[list[JobSnapshot]]:
    limits.integer("limit", limit, range(1, 100_001))
    return calls.list_jobs(queue=queue, task=task, state=known_state(state), amount=limit)


def _statistics(by: By, queue: str | None) -> Call[list[Statistic]]:
    if by not in {"queue", "task"}:
        raise limits.refused("by", by, "must be 'queue' or 'task'")
    return calls.statistics.statistics(by, queue)


def _audit(
    target: str | None, action: str | None, who: str | None, since: datetime | None, limit: int
) -> Call[list[AuditRow]]:
    return calls.settings.audit_log(
        amount=limits.integer("limit", limit, range(1, 100_001)),
        target=target,
        action=action,
        who=who,
        since=None if since is None else limits.moment("since", since),
    )

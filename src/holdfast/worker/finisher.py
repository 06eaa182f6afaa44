"""Writes reports in batches. Each batch starts when the previous one is written.

Under load, reports collect while a batch is written; a lone report is written at once. A report leaves the
finisher only when the database has answered. After a lost reply it is sent again, and the database accepts
the repetition.

Two kinds of reports are sent again later, so that the others do not wait for them:

- reports that the database skips, because another transaction (such as an open `cancel`) has locked the job.
  They join a later batch.
- single reports whose write raises an error other than an outage. Each is sent again by itself.
"""

import asyncio
import time
from collections.abc import Sequence

from holdfast.database import SparedSession
from holdfast.operations import attempts, claiming
from holdfast.operations.claiming import LOCKED, Refusal, Report
from holdfast.telemetry import Counted, emit
from holdfast.values.errors import BadInput, Collision, NotReady
from holdfast.worker.context.notes import chunks
from holdfast.worker.failure import ERROR_LENGTH, storable
from holdfast.worker.held import HeldJobs

# The most reports, and the most characters of results and tracebacks, in one call.
BATCH = 2000
BATCH_CHARACTERS = 16 * 1024 * 1024
# The longest pause between retries, and the pause before a single failed report is sent again.
LONGEST_PAUSE = 2.0
# The pause before a report on a locked job is sent again. It doubles each time, up to LAST_LOCKED_PAUSE.
FIRST_LOCKED_PAUSE = 0.05
LAST_LOCKED_PAUSE = 1.0


class Finisher:
    """The loop that writes the reports of one worker."""

    def __init__(self, session: SparedSession, held: HeldJobs) -> None:
        self._session = session
        self._held = held
        # The number of reports that wait for a timer or in `_to_send_alone`.
        self._sent_later = 0
        # Reports to send one by one, because each failed by itself. Their timers have ended.
        self._to_send_alone: list[Report] = []
        # The last pause of each report on a locked job, by id and lease.
        self._pauses: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        held = self._held
        while True:
            await held.report_now.wait()
            size = _batch_size(held.reports)
            batch, held.reports = held.reports[:size], held.reports[size:]
            if batch:
                await self._write_until_done(batch)
            if self._to_send_alone:
                self._sent_later -= 1
                await self._write_until_done([self._to_send_alone.pop(0)])
            if not held.reports and not self._to_send_alone:
                held.report_now.clear()
                if not self._sent_later:
                    held.all_written.set()

    async def _write_until_done(self, reports: Sequence[Report]) -> None:
        """Write these reports. Retry until each is written, or scheduled to be sent later.

        No report is dropped, because an outage, a full disk or a lock does not last forever.
        """
        pause = 0.05
        while True:
            try:
                return await self._write(reports)
            except Exception as error:  # noqa: BLE001 - no error may lose a report
                if not isinstance(error, NotReady):  # one of the reports may be the cause
                    emit("finisher.broken", error=error, reports=len(reports))
                    return await self._split(reports)
                emit("finisher.failed", error=error, reports=len(reports))
                if isinstance(error, Collision):  # a lock timeout or a deadlock with another transaction
                    return await self._split(reports)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _split(self, reports: Sequence[Report]) -> None:
        """Write each half separately. Send a single report again later, so that no other waits for it."""
        if len(reports) == 1:
            self._sent_later += 1
            asyncio.get_running_loop().call_later(LONGEST_PAUSE, self._queue_alone, reports[0])
            return
        half = len(reports) // 2
        await self._write_until_done(reports[:half])
        await self._write_until_done(reports[half:])

    def _queue_alone(self, report: Report) -> None:
        self._to_send_alone.append(report)
        self._held.all_written.clear()
        self._held.report_now.set()

    async def _write(self, reports: Sequence[Report]) -> None:
        begun = time.monotonic()
        with_notes = [report for report in reports if report.events or report.note is not None]
        locked = await self._write_notes(with_notes) if with_notes else set[str]()
        ready = [report for report in reports if report.id not in locked] if locked else reports
        refused = list[Refusal]()
        if ready:
            try:
                refused = await self._session.run(claiming.finish(ready))
            except BadInput as error:
                if len(reports) > 1:
                    return await self._split(reports)
                # The database cannot store a value of this report. Report a failure without that value.
                emit("report.broken", job=reports[0].id, outcome=reports[0].outcome, error=error)
                reports = ready = [_without_values(reports[0], error)]
                refused = await self._session.run(claiming.finish(ready))
        locked |= {refusal.id for refusal in refused if refusal.sqlstate == LOCKED}
        if locked:
            self._send_locked_later([report for report in reports if report.id in locked])
            ready = [report for report in ready if report.id not in locked]
            refused = [refusal for refusal in refused if refusal.id not in locked]
        for refusal in refused:
            emit("report.refused", job=refusal.id, sqlstate=refusal.sqlstate, message=refusal.message)
        if self._pauses:
            for report in ready:
                self._pauses.pop((report.id, report.lease), None)
        if ready:
            self._held.settle(ready, refused, time.monotonic() - begun)
        return None

    def _send_locked_later(self, locked: Sequence[Report]) -> None:
        """Send these reports again after a growing pause, because another transaction has locked their jobs.

        Log a job only if it is still locked after the first pause. The keeper of this worker holds such locks
        briefly too.
        """
        loop, new = asyncio.get_running_loop(), list[str]()
        for report in locked:
            key = (report.id, report.lease)
            if self._pauses.get(key) == FIRST_LOCKED_PAUSE:
                new.append(report.id)
            pause = min(2 * self._pauses.get(key, FIRST_LOCKED_PAUSE / 2), LAST_LOCKED_PAUSE)
            self._pauses[key] = pause
            self._sent_later += 1
            loop.call_later(pause, self._queue_again, report)
        if new:
            emit("reports.locked", jobs=Counted(new))

    def _queue_again(self, report: Report) -> None:
        self._sent_later -= 1
        self._held.report(report)

    async def _write_notes(self, reports: Sequence[Report]) -> set[str]:
        """Write the remaining events and progress of these jobs, before their outcomes.

        A repeated call writes no event twice, because events are numbered. Jobs that are no longer held are
        skipped. Returns the jobs that another transaction has locked.
        """
        started = [report for report in reports if report.seconds is not None]
        events = [event for report in reports for event in report.events]
        notes = [report.note for report in reports if report.note is not None]
        locked = set[str]()
        try:
            # Record the start first. Otherwise the first event or progress would count as the start.
            if started:
                ids, leases = [report.id for report in started], [report.lease for report in started]
                seconds = [report.seconds or 0.0 for report in started]
                locked |= (await self._session.run(attempts.start(ids, leases, seconds))).locked
            for chunk in chunks(events):
                locked |= (await self._session.run(attempts.publish_many(chunk, skip_locked=True))).locked
            if notes:
                locked |= (await self._session.run(attempts.progress_many(notes))).locked
        except BadInput as error:
            if len(reports) > 1:
                raise  # the caller splits the batch
            # The notes are lost, but the report must be written.
            emit("notes.broken", error=error, job=reports[0].id, events=len(events), notes=len(notes))
        return locked


def _without_values(report: Report, error: BadInput) -> Report:
    text = f"BadResult: the outcome cannot be stored: {error}"
    return Report(report.id, report.lease, "failed", error=storable(text, ERROR_LENGTH))


def _batch_size(reports: Sequence[Report]) -> int:
    """Return how many of the first reports fit into one call."""
    characters = 0
    for count, report in enumerate(reports[:BATCH]):
        if report.result is not None or report.traceback is not None:
            characters += len(report.result or "") + len(report.traceback or "")
            if characters > BATCH_CHARACTERS:
                return max(count, 1)
    return min(len(reports), BATCH)

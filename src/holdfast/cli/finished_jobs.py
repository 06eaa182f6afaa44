"""A line on the terminal for each job that a worker has finished, with the traceback of a failure.

    09:30:00  completed  mail.welcome  019a5d3e-…  in 12ms
    09:30:01  failed     mail.welcome  019a5d3f-…  in 3ms, attempt 1 of 3
      Traceback (most recent call last):
        …
      ConnectionError: the mail server is busy
      next try at 09:31:04 (in 1m 3s)

The worker only hands over its reports. A thread writes the lines, because a terminal can be slow or stopped.
The same thread asks the database when a failed job is tried again.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click

from holdfast.cli.output import clean
from holdfast.cli.times import span
from holdfast.client import Holdfast
from holdfast.operations.claiming import Claimed, Report
from holdfast.telemetry import subscribe
from holdfast.values.errors import HoldfastError
from holdfast.values.job import JobSnapshot

# With more unwritten lines than this, jobs are only counted: the terminal cannot keep up.
BACKLOG = 1_000
_GOODBYE_SECONDS = 2.0
_FAILURES = {"failed", "interrupted"}
_COLOURS = {"completed": "green", "failed": "red", "interrupted": "yellow", "cancelled": "yellow"}


class _Finished(NamedTuple):
    at: datetime
    job: Claimed
    report: Report


@contextmanager
def showing_finished_jobs(hf: Holdfast, who: str | None = None) -> Iterator[None]:
    """Write a line on standard error for each job that this process finishes within the block."""
    console = _Console(hf, who)
    unsubscribe = subscribe(console.hear)
    try:
        yield
    finally:
        unsubscribe()
        console.close()


class _Console:
    def __init__(self, hf: Holdfast, who: str | None) -> None:
        self._hf = hf
        self._who = f"{who}  " if who else ""
        self._finished: deque[_Finished] = deque()
        self._uncounted = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="holdfast-finished-jobs", daemon=True)
        self._thread.start()

    def hear(self, event: str, fields: Mapping[str, Any]) -> None:
        if event != "jobs.finished":
            return
        at, refused = datetime.now(UTC), {refusal.id for refusal in fields["refused"]}
        with self._changed:
            for job, report in zip(fields["jobs"], fields["reports"], strict=True):
                if job is None or report.outcome == "released" or report.id in refused:
                    continue  # it was not finished here
                if len(self._finished) < BACKLOG:
                    self._finished.append(_Finished(at, job, report))
                else:
                    self._uncounted += 1
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_GOODBYE_SECONDS)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._finished or self._closed)
                some, self._finished = list(self._finished), deque()
                uncounted, self._uncounted = self._uncounted, 0
            if not some:
                return
            for finished in some:
                self._write(finished)
            if uncounted:
                click.echo(f"{self._who}… and {uncounted:,} more jobs, too many to show", err=True)

    def _write(self, finished: _Finished) -> None:
        job, report = finished.job, finished.report
        outcome = click.style(f"{report.outcome:<9}", fg=_COLOURS.get(report.outcome))
        words = [outcome, clean(job.task), job.id, ", ".join(_details(job, report))]
        lines = [f"{self._who}{_clock(finished.at)}  {'  '.join(words)}"]
        if report.outcome in _FAILURES:
            text = report.traceback or report.error or ""
            lines += [f"  {line}" for line in clean(text, lines=True).strip().splitlines()]
            lines += [f"  {line}" for line in self._what_next(finished)]
        # One call, because log lines could come between several.
        click.echo("\n".join(lines), err=True)

    def _what_next(self, finished: _Finished) -> list[str]:
        try:
            now = self._hf.job(finished.job.id).refresh()
        except HoldfastError:
            return []  # this role may not look, or the database is away
        return _next_try(now, finished)


def _details(job: Claimed, report: Report) -> list[str]:
    details = [] if report.seconds is None else [f"in {span(timedelta(seconds=report.seconds))}"]
    if job.attempt > 1 or report.outcome in _FAILURES:
        details.append(f"attempt {job.attempt} of {job.max_attempts}")
    if report.outcome == "snoozed" and report.delay is not None:
        details.append(f"again in {span(report.delay)}")
    if report.outcome == "cancelled" and report.error:
        details.append(clean(report.error))
    return details


def _next_try(now: JobSnapshot, finished: _Finished) -> list[str]:
    """Say where a failed job is now: waiting for its next try, or dead."""
    match now.state:
        case "dead":
            return [f"dead: it is not tried again by itself. To try again: holdfast replay {now.id}"]
        case "scheduled" if now.run_at is not None:
            return [f"next try at {_clock(now.run_at)} (in {span(now.run_at - finished.at)})"]
        case "pending" | "claimed" | "running":
            return ["next try at once"]
        case _:
            return []


def _clock(moment: datetime) -> str:
    """Return the local time of day, with the date if it is not today."""
    local = moment.astimezone()
    today = local.date() == datetime.now(UTC).astimezone().date()
    return local.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")

"""Commands that show jobs. The database has already masked their secrets."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import click

from holdfast.cli import times
from holdfast.cli.names import note_unknown_filter
from holdfast.cli.output import (
    STATE_STYLES,
    Column,
    clean,
    console,
    first_line,
    on_terminal,
    show_json,
    show_live,
    show_table,
)
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.jobs import AttemptError, StepRow
from holdfast.values.job import JobSnapshot, JobState

_STEP_LENGTH = 60


@click.command()
@common_options
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--task", help="Only jobs of this task.")
@click.option(
    "--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many."
)
@click.option("--running", is_flag=True, help="Only running jobs; on a terminal, updated until Ctrl-C.")
@pass_settings
def jobs(
    settings: Settings,
    *,
    queue: str | None,
    task: str | None,
    state: str | None,
    limit: int,
    running: bool,
) -> None:
    """List jobs, the last changed first.

    \b
      holdfast jobs --running                          the progress of running jobs
      holdfast jobs --queue mail --state dead --json | jq '.[].last_error'
    """
    if running and state is not None:
        raise click.UsageError("Give either --running or --state.")
    state = JobState.RUNNING.value if running else state

    def look() -> list[JobSnapshot]:
        return hf.jobs.list(queue=queue, task=task, state=state, limit=limit)

    with settings.connect() as hf:
        if running and on_terminal() and not settings.as_json:
            show_live(_COLUMNS, look, empty="No job is running.")
            return
        found = look()
        if not found:
            note_unknown_filter(hf, queue, task)
    show_jobs(settings, found, limit=limit, empty="No jobs.")


def show_jobs(settings: Settings, found: list[JobSnapshot], *, limit: int, empty: str) -> None:
    """Print a list of jobs, with a note if there may be more."""
    if settings.as_json:
        show_json(found)
        return
    more = f"These {limit} changed last; --limit shows more." if len(found) == limit else ""
    show_table(_COLUMNS, found, empty=empty, note=more)


@click.command()
@click.argument("job_id", metavar="ID", type=click.UUID)
@common_options
@click.option("--tracebacks", is_flag=True, help="Show the traceback of every attempt, not only the last.")
@pass_settings
def job(settings: Settings, job_id: UUID, *, tracebacks: bool) -> None:
    """Show one job in full, with its finished steps and the error of each attempt. Secrets are masked."""
    with settings.connect() as hf:
        handle = hf.job(job_id)
        found, errors, steps, checkpoint = (
            handle.refresh(),
            handle.errors(),
            handle.steps(),
            handle.checkpoint(),
        )
    if settings.as_json:
        shown = {name: getattr(found, name) for name in found.__dataclass_fields__}
        show_json(shown | {"errors": errors, "steps": steps, "checkpoint": checkpoint})
    else:
        _show_job(found, errors, steps, checkpoint, tracebacks=tracebacks)


def how_far(job: JobSnapshot) -> tuple[str | None, ...]:
    """Return the parts of a running job's progress, without the percentage."""
    step = f"step {job.step}" if job.step else None
    left = f"about {times.span(job.time_left)} left" if job.time_left is not None else None
    return job.stage, step, job.message, left


def _attempt(job: JobSnapshot) -> str:
    return f"{job.attempt}/{job.max_attempts}"


def _when(job: JobSnapshot) -> str:
    """Return the time that matters most in the state of the job."""
    match job.state:
        case JobState.SCHEDULED if job.run_at:
            return times.ago(job.run_at) if job.run_at > job.created_at else "due"
        case JobState.PENDING:
            return f"waits {times.lasting(max(job.run_at or job.created_at, job.created_at))}"
        case JobState.CLAIMED | JobState.RUNNING:
            return f"for {times.lasting(job.started_at or job.claimed_at or job.created_at)}"
        case _:
            return times.ago(job.finished_at or job.created_at)


def _note(job: JobSnapshot) -> str:
    asked = "cancel requested" if job.cancel_requested_at else None
    if job.state is JobState.RUNNING:
        percent = f"{job.progress}%" if job.progress is not None else None
        parts = (asked, percent, *how_far(job))
        return " · ".join(part for part in parts if part)
    if asked:
        return asked
    if job.state is JobState.COMPLETED:
        return f"took {times.span(job.duration)}" if job.duration is not None else ""
    return first_line(job.last_error)


_COLUMNS: list[Column[JobSnapshot]] = [
    Column("ID", lambda job: job.id),
    Column("TASK", lambda job: job.task),
    Column("QUEUE", lambda job: job.queue, spare=1),
    Column("STATE", lambda job: job.state.value, style=lambda job: STATE_STYLES[job.state]),
    Column("PRIORITY", lambda job: job.priority, right=True, spare=3),
    Column("ATTEMPT", _attempt, right=True, spare=2),
    Column(
        "CHANGED_AT", lambda job: times.absolute(job.changed_at or job.created_at), seen=_when, heading="when"
    ),
    Column("NOTE", _note, style="dim"),
]


def _show_job(
    job: JobSnapshot,
    errors: Sequence[AttemptError],
    steps: Sequence[StepRow],
    checkpoint: dict[str, Any] | None,
    *,
    tracebacks: bool,
) -> None:
    at = times.local if on_terminal() else times.absolute
    moments = {
        "created": job.created_at,
        "due": job.run_at if job.run_at != job.created_at else None,
        "claimed": job.claimed_at,
        "started": job.started_at,
        "finished": job.finished_at,
        "cancel requested": job.cancel_requested_at,
    }
    progress = None if job.state is not JobState.RUNNING else _note(job)
    facts: dict[str, Any] = {
        "id": job.id,
        "task": job.task,
        "queue": f"{job.queue}, priority {job.priority}",
        "state": job.state.value,
        "progress": progress,
        "attempt": f"{job.attempt} of {job.max_attempts}",
        "worker": " ".join(str(part) for part in (job.worker_name, job.worker) if part),
        **{name: at(moment) for name, moment in moments.items() if moment},
        "took": times.span(job.duration) if job.duration is not None else None,
        "payload": _json(job.payload),
        "headers": _json(job.headers) if job.headers else None,
        "result": _json(job.result) if job.state is JobState.COMPLETED else None,
        "steps": "\n".join(_step(step, at) for step in steps),
        "checkpoint": _json(checkpoint) if checkpoint else None,
        "events": f"{job.events}: holdfast events {job.id}" if job.events else None,
        "last error": first_line(job.last_error) if job.last_error and not errors else None,
    }
    screen = console()
    screen.soft_wrap = True
    width = max(len(name) for name, value in facts.items() if value) + 2
    for name, value in facts.items():
        if value:
            style = STATE_STYLES[job.state] if name == "state" else ""
            text = clean(value, lines=True).replace("\n", "\n" + " " * width)
            screen.print(f"{name:<{width}}", style="bold", end="")
            screen.print(text, style=style)
    for error in errors:
        screen.print(f"\nattempt {error.attempt} failed {at(error.failed_at)}", style="bold red")
        screen.print(_indented(error.error))
        if error.traceback and (tracebacks or error is errors[-1]):
            screen.print(_indented(error.traceback.rstrip()), style="dim")


def _step(step: StepRow, at: Callable[[datetime], str]) -> str:
    took = f" in {times.span(step.duration)}" if step.duration is not None else ""
    shown = json.dumps(step.result, ensure_ascii=False)
    short = shown if len(shown) <= _STEP_LENGTH else shown[:_STEP_LENGTH] + "…"
    return f"{step.name}  attempt {step.attempt}, {at(step.finished_at)}{took}  {short}"


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else json.dumps(value, ensure_ascii=False, indent=2)  # noqa: PLR2004


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in clean(text, lines=True).splitlines())

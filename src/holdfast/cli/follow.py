"""Commands that follow jobs while they run: a progress bar, events, the result."""

import json as parser
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from holdfast.cli import times, values
from holdfast.cli.jobs import how_far
from holdfast.cli.output import (
    STATE_STYLES,
    clean,
    console,
    first_line,
    on_terminal,
    printable_json,
    show_json,
)
from holdfast.cli.root import Failure
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.events import Event
from holdfast.values.errors import Unsuccessful
from holdfast.values.job import JobSnapshot, JobState

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR = 30


@click.command()
@click.argument("job_id", metavar="ID", type=click.UUID)
@common_options
@pass_settings
@click.pass_context
def watch(ctx: click.Context, settings: Settings, job_id: UUID) -> None:
    """Watch a job until it has ended: its stage, progress and time left.

    A pipe gets one line for each change, or one object with --json. The exit code is 1 if the job has not
    completed.
    """
    with settings.connect() as hf:
        handle = hf.job(job_id)
        if settings.as_json:
            for job in handle.watch():
                click.echo(printable_json(job))
        elif on_terminal():
            job = _live(handle.watch(poll=0.2))
        else:
            for job in handle.watch():
                click.echo(f"{times.absolute(job.changed_at or job.created_at)}  {_line(job)}")
    ctx.exit(0 if job.state is JobState.COMPLETED else 1)


@click.command()
@click.argument("job_id", metavar="[ID]", type=click.UUID, required=False)
@common_options
@click.option("--queue", help="Only events of this queue.")
@click.option("--after", metavar="CURSOR", help='Only events after this cursor; "now" for new ones only.')
@click.option("--follow", is_flag=True, help="Wait for more events, until the job has ended or until Ctrl-C.")
@pass_settings
def events(
    settings: Settings, job_id: UUID | None, *, queue: str | None, after: str | None, follow: bool
) -> None:
    """Show what happened to a job, in a queue, or everywhere.

    \b
      holdfast events 01890a5d-ac96-774b-bcce-b302099a8057
      holdfast events --queue mail --follow
      holdfast events --after now --follow --json      each with its cursor, to continue from
    """
    if job_id is not None and queue is not None:
        raise click.UsageError("Name a job by ID, or a queue, not both.")
    with settings.connect() as hf:
        for event in hf.events.read(job_id=job_id, queue=queue, after=after, follow=follow):
            if settings.as_json:
                click.echo(printable_json(event))
            else:
                click.echo(_told(event, whose=job_id is None))


@click.command()
@click.argument("job_id", metavar="ID", type=click.UUID)
@common_options
@click.option("--timeout", type=values.duration, help="Wait no longer than this: 30s, 5m.")
@pass_settings
def result(settings: Settings, job_id: UUID, *, timeout: timedelta | None) -> None:
    """Wait for the end of a job and print its result as JSON.

    The exit code is 1 if there is no result: the job is dead, cancelled, or has not ended in time.
    """
    with settings.connect() as hf:
        try:
            handle = hf.job(job_id)
            handle.result(timeout)
            show_json(handle.refresh().result)  # with its secrets masked
        except Unsuccessful as error:
            raise Failure(error.message, f"holdfast job {job_id} shows more.") from error
        except TimeoutError as error:
            raise Failure(str(error), f"holdfast watch {job_id} shows how far it is.") from error


def _live(snapshots: Any) -> JobSnapshot:
    from rich.live import Live  # noqa: PLC0415 - a pipe does not need it

    with Live(console=console(), auto_refresh=False) as screen:
        for job in snapshots:
            screen.update(_rendered(job), refresh=True)
    return job  # type: ignore[no-any-return]


def _rendered(job: JobSnapshot) -> "RenderableType":
    from rich.text import Text  # noqa: PLC0415

    text = Text(f"{job.task}  ", style="bold")
    text.append(job.state.value, STATE_STYLES[job.state])
    if job.attempt > 1 or job.state is JobState.DEAD:
        text.append(f"  attempt {job.attempt} of {job.max_attempts}", "dim")
    if job.progress is not None:
        full = round(job.progress * _BAR / 100)
        text.append(f"\n{'━' * full}", "green")
        text.append("━" * (_BAR - full), "dim")
        text.append(f" {job.progress:3d}%")
    notes = _notes(job)
    if notes:
        text.append(f"\n{' · '.join(notes)}")
    return text


def _line(job: JobSnapshot) -> str:
    progress = [] if job.progress is None else [f"{job.progress}%"]
    return "  ".join([job.state.value, " · ".join([*progress, *_notes(job)])]).rstrip()


def _notes(job: JobSnapshot) -> list[str]:
    ended = f"took {times.span(job.duration)}" if job.state.final and job.duration is not None else None
    # While the job runs, its last error belongs to an earlier attempt.
    quiet = job.state in {JobState.COMPLETED, JobState.CLAIMED, JobState.RUNNING}
    error = None if quiet else first_line(job.last_error)
    return [clean(part) for part in (*how_far(job), ended, error) if part]


def _told(event: Event, *, whose: bool) -> str:
    at = times.local(event.at) if on_terminal() else times.absolute(event.at)
    data = "" if event.data is None else parser.dumps(event.data, ensure_ascii=False)
    where = f"  {event.job_id}  {event.task}" if whose else ""
    return clean(f"{at}{where}  attempt {event.attempt}  {event.name}  {data}").rstrip()

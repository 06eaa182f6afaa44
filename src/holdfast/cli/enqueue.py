"""Commands that act on jobs: enqueue, cancel, run now, reschedule."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import click

from holdfast.cli import times, values
from holdfast.cli.names import note_unknown_filter, noting_unknown
from holdfast.cli.output import STATE_STYLES, Column, on_terminal, plural, show_json, show_table
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.job import Job
from holdfast.values.errors import HoldfastError
from holdfast.values.limits import ATTEMPTS


@click.command()
@click.argument("task")
@click.argument("payload", metavar="[JSON]", type=values.json, default="{}")
@common_options
@click.option("--queue", help="The queue of the job.  [default: default]")
@click.option(
    "--priority",
    type=values.priority,
    help="A number, or user (150), system (100), backfill (30); larger is sooner.",
)
@click.option("--delay", type=values.duration, help="Run it after this delay: 90s, 5m, 1h30m, 2d.")
@click.option("--run-at", type=values.time, help="Run it at this time or later: 2030-01-31T09:00+01:00.")
@click.option(
    "--max-attempts", type=click.IntRange(ATTEMPTS[0], ATTEMPTS[-1]), help="The number of attempts."
)
@click.option(
    "--id", type=click.UUID, help="Your own UUID: enqueueing the same job twice with one id makes one job."
)
@pass_settings
def enqueue(
    settings: Settings,
    /,
    task: str,
    payload: Any,
    *,
    delay: timedelta | None,
    run_at: datetime | None,
    **options: Any,
) -> None:
    """Enqueue one job.

    JSON is an object with the arguments of TASK; `-` reads it from standard input. Prints the id of the
    job. The task need not be known here: any worker that knows it can run it.

    \b
      holdfast enqueue mail.welcome '{"user_id": 7}'
      holdfast enqueue report.nightly --delay 1h30m --priority backfill
      jq -c . order.json | holdfast enqueue shop.bill -
    """
    if delay is not None and run_at is not None:
        raise click.UsageError("Give either --delay or --run-at, not both.")
    with settings.connect() as hf, noting_unknown(hf, task, options["queue"]):
        job = hf.enqueue(task, payload, delay=delay, run_at=run_at, **options)
    if settings.as_json:
        show_json({"id": job.id})
    elif on_terminal():
        click.echo(f"Enqueued {task} as {click.style(str(job.id), bold=True)}")
    else:
        click.echo(job.id)


ids_argument = click.argument("ids", metavar="ID...", type=click.UUID, nargs=-1, required=True)
some_ids_argument = click.argument("ids", metavar="[ID]...", type=click.UUID, nargs=-1)


@click.command()
@some_ids_argument
@common_options
@click.option("--queue", help="All live jobs of this queue.")
@click.option("--task", help="All live jobs of this task.")
@click.option(
    "--state",
    type=click.Choice(["scheduled", "pending", "claimed"]),
    help="With --queue, --task or --all: only those in this state.",
)
@click.option("--all", "everything", is_flag=True, help="All live jobs of every queue.")
@pass_settings
def cancel(
    settings: Settings,
    ids: tuple[UUID, ...],
    *,
    queue: str | None,
    task: str | None,
    state: str | None,
    everything: bool,
) -> None:
    """Cancel jobs: by ID, or all of a queue or a task.

    A job that no worker has claimed is cancelled at once. For a job that a worker holds, the outcome is
    `requested`: its handler learns of it, and the job is cancelled unless it completes first. The exit code
    is 1 if a job had already ended in another way, or does not exist.
    """
    many = bool(queue or task or everything)
    if bool(ids) == many or (state and ids):
        raise click.UsageError("Name jobs by ID, or select them by --queue, --task or both, or --all.")
    if ids:
        each(settings, ids, Job.cancel, good={"cancelled", "requested"})
        return
    with settings.connect() as hf:
        done = hf.jobs.cancel_matching(queue=queue, task=task, state=state, everything=everything)
        if not any(done):
            note_unknown_filter(hf, queue, task)
    if settings.as_json:
        show_json(done)
    else:
        click.echo(
            f"Cancelled {plural(done.cancelled, 'job')}; requested it for {done.requested} that workers hold."
        )


@click.command()
@ids_argument
@common_options
@pass_settings
def run_now(settings: Settings, ids: tuple[UUID, ...]) -> None:
    """Run scheduled jobs now, without waiting for their time or their backoff.

    Prints the new state of each job. The exit code is 1 if a job has already ended, or does not exist.
    """
    each(settings, ids, Job.run_now, good={"pending", "claimed", "running"})


@click.command()
@ids_argument
@common_options
@click.option("--delay", type=values.duration, help="The time from now: 90s, 5m, 1h30m, 2d.")
@click.option("--run-at", type=values.time, help="The new time: 2030-01-31T09:00+01:00.")
@pass_settings
def reschedule(
    settings: Settings, ids: tuple[UUID, ...], *, delay: timedelta | None, run_at: datetime | None
) -> None:
    """Change the time of jobs that wait for their time or their backoff.

    The exit code is 1 if a job is not scheduled, or does not exist.
    """
    if (delay is None) == (run_at is None):
        raise click.UsageError("Give either --delay or --run-at.")

    each(
        settings,
        ids,
        lambda job: f"due {times.absolute(job.reschedule(delay=delay, run_at=run_at))}",
        good={"due"},
    )


def each(settings: Settings, ids: Sequence[UUID], action: Callable[[Job[Any]], str], good: set[str]) -> None:
    """Apply the action to each job, even if it fails for another.

    It succeeded if the first word of its outcome is in `good`.
    """
    outcomes: list[tuple[UUID, str, str | None]] = []
    with settings.connect() as hf:
        for job_id in dict.fromkeys(ids):
            try:
                outcome = str(action(hf.job(job_id)))
                done = outcome.partition(" ")[0] in good
                outcomes.append((job_id, outcome, None if done else _unmoved(outcome)))
            except HoldfastError as error:
                if not getattr(error, "id", None):
                    raise
                outcomes.append((job_id, "refused", error.message))
    if settings.as_json:
        show_json([{"id": job_id, "outcome": outcome, "error": error} for job_id, outcome, error in outcomes])
    else:
        show_table(_OUTCOME, outcomes, empty="")
    if any(error for *_, error in outcomes):
        raise SystemExit(1)


def _unmoved(state: str) -> str:
    """Explain why a job was left as it is, and what can be done."""
    return f"it is {state} already" + ("; holdfast replay ID starts it again" if state == "dead" else "")


_OUTCOME: list[Column[tuple[UUID, str, str | None]]] = [
    Column("ID", lambda row: row[0]),
    Column("OUTCOME", lambda row: row[1], style=lambda row: STATE_STYLES.get(row[1], "")),
    Column("ERROR", lambda row: row[2]),
]

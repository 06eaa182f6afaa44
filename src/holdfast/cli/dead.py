"""Commands for dead letters: list, replay, purge; and give up a waiting job."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import click

from holdfast.cli import values
from holdfast.cli.enqueue import each, ids_argument, some_ids_argument
from holdfast.cli.jobs import show_jobs
from holdfast.cli.names import note_unknown_filter
from holdfast.cli.output import plural, show_json
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.dead import Dead
from holdfast.operations.job import Job

F = TypeVar("F", bound=Callable[..., Any])


def _filters(command: F) -> F:
    """Add the options that select dead jobs to a command."""
    options = [
        click.option("--queue", help="Only jobs of this queue."),
        click.option("--task", help="Only jobs of this task."),
        click.option("--error", metavar="TEXT", help="Only jobs whose last error contains this."),
        click.option("--after", type=values.past, help="Only jobs that died since then: 2h, 3d, or a time."),
        click.option("--before", type=values.past, help="Only jobs that died before then."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


_all = click.option("--all", "everything", is_flag=True, help="All dead jobs.")


@click.command()
@common_options
@_filters
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many."
)
@pass_settings
def dead(settings: Settings, /, *, limit: int, **which: Any) -> None:
    """List dead jobs, the latest first.

    \b
      holdfast dead --queue mail --after 1d
      holdfast job ID --tracebacks                 what went wrong, attempt by attempt
      holdfast replay --error "connection refused"
    """
    with settings.connect() as hf:
        found = hf.dead.list(limit=limit, **_given(which))
        if not found:
            note_unknown_filter(hf, which["queue"], which["task"])
    show_jobs(settings, found, limit=limit, empty="No dead jobs.")


@click.command()
@some_ids_argument
@common_options
@_filters
@_all
@click.option("--start-over", is_flag=True, help="Repeat the steps that they have finished.")
@pass_settings
def replay(
    settings: Settings, /, ids: tuple[UUID, ...], *, everything: bool, start_over: bool, **which: Any
) -> None:
    """Put dead jobs back on their queues: by ID, or all that match.

    They keep their id, payload, errors and finished steps; attempts start again at 0. The exit code is 1 if
    a job is not dead, or does not exist.

    \b
      holdfast replay 01890a5d-ac96-774b-bcce-b302099a8057
      holdfast replay --queue mail --error timeout
      holdfast replay --all
    """
    one, many = partial(Job.replay, start_over=start_over), partial(Dead.replay_many, start_over=start_over)
    _on_some(settings, ids, _given(which, everything=everything), one, many, done="Replayed")


@click.command()
@some_ids_argument
@common_options
@_filters
@_all
@pass_settings
def purge(settings: Settings, /, ids: tuple[UUID, ...], *, everything: bool, **which: Any) -> None:
    """Remove dead jobs for good, with their errors: by ID, or all that match."""
    _on_some(settings, ids, _given(which, everything=everything), _purge, Dead.purge_many, done="Purged")


@click.command()
@ids_argument
@common_options
@click.option("--reason", help="The reason; it becomes the last error of the jobs.")
@pass_settings
def give_up(settings: Settings, ids: tuple[UUID, ...], *, reason: str | None) -> None:
    """Move waiting jobs to the dead letters. They can be replayed later."""
    each(settings, ids, partial(Job.give_up, reason=reason), good={"dead"})


def _on_some(
    settings: Settings,
    ids: tuple[UUID, ...],
    which: dict[str, Any],
    to_one: Callable[[Job[Any]], str],
    to_many: Callable[..., int],
    *,
    done: str,
) -> None:
    if bool(ids) == bool(which):
        raise click.UsageError("Name jobs by ID, or select them by --queue, --task, … , or --all.")
    if ids:
        each(settings, ids, to_one, good={"pending", "purged"})
        return
    with settings.connect() as hf:
        amount = to_many(hf.dead, **which)
        if not amount:
            note_unknown_filter(hf, which.get("queue"), which.get("task"))
    if settings.as_json:
        show_json({"jobs": amount})
    else:
        click.echo(f"{done} {plural(amount, 'job')}.")


def _purge(job: Job[Any]) -> str:
    job.purge()
    return "purged"


def _given(which: dict[str, Any], *, everything: bool = False) -> dict[str, Any]:
    given = {name: value for name, value in which.items() if value not in (None, "")}
    return given | ({"everything": True} if everything else {})

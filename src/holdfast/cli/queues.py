"""Commands about queues: list, pause, resume."""

import click

from holdfast.cli import configuring, times
from holdfast.cli.names import known_queues, note_unknown
from holdfast.cli.output import Column, show_json, show_rows
from holdfast.cli.root import refuse_unknown
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.queues import QueueRow


class Actions(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(ctx, args[0], self.commands)
        return super().resolve_command(ctx, args)


@click.group(cls=Actions)
@common_options
def queue() -> None:
    """List queues, pause and resume them, change their settings."""


queue.add_command(configuring.configure)
queue.add_command(configuring.settings)


@queue.command("list")
@common_options
@pass_settings
def list_(settings: Settings) -> None:
    """List the queues that were used or are paused. Shows the number of jobs in each."""
    with settings.connect() as hf:
        found = hf.queues.list()
    show_rows(_QUEUES, found, as_json=settings.as_json, empty="No queues yet.")


_names = click.argument("names", metavar="QUEUE...", nargs=-1, required=True)


@queue.command()
@_names
@common_options
@pass_settings
def pause(settings: Settings, names: tuple[str, ...]) -> None:
    """Stop workers from claiming jobs of these queues. Running jobs continue; new jobs are accepted."""
    with settings.connect() as hf:
        known = known_queues(hf)
        for name in names:
            hf.queues.pause(name)
    _say(settings, names, "paused", known)


@queue.command()
@_names
@common_options
@pass_settings
def resume(settings: Settings, names: tuple[str, ...]) -> None:
    """Let workers claim the jobs of paused queues again."""
    with settings.connect() as hf:
        known = known_queues(hf)
        for name in names:
            hf.queues.resume(name)
    _say(settings, names, "resumed", known)


def _say(settings: Settings, names: tuple[str, ...], what: str, known: set[str] | None) -> None:
    if settings.as_json:
        used = {name: None if known is None else name in known for name in names}
        show_json([{"queue": name, "outcome": what, "used": used[name]} for name in names])
        return
    for name in names:
        click.echo(f"Queue {name} is {what}.")
        note_unknown("queue", name, known)  # no error: a queue may be paused before its first job


_QUEUES: list[Column[QueueRow]] = [
    Column("QUEUE", lambda row: row.name),
    Column("SCHEDULED", lambda row: row.scheduled, right=True),
    Column("PENDING", lambda row: row.pending, right=True),
    Column("HELD", lambda row: row.held, right=True),
    Column("OLDEST", lambda row: times.absolute(row.oldest_at), seen=lambda row: times.waits(row.oldest_at)),
    Column(
        "PAUSED_AT",
        lambda row: times.absolute(row.paused_at),
        seen=lambda row: times.ago(row.paused_at) if row.paused_at else "",
        style="bold yellow",
    ),
]

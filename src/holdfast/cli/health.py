"""Whether the queues are well, for monitoring."""

import click

from holdfast.cli.output import Column, show_rows
from holdfast.cli.root import unknown_if_refused
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.health import QueueReport

EXIT_CODES = {"OK": 0, "WARNING": 1, "CRITICAL": 2}
STYLES = {"OK": "green", "WARNING": "bold yellow", "CRITICAL": "bold red"}

_COLUMNS: list[Column[QueueReport]] = [
    Column("QUEUE", lambda row: row.queue),
    Column("STATUS", lambda row: row.status, style=lambda row: STYLES[row.status]),
    Column("MESSAGE", lambda row: row.message),
]


@click.command()
@click.argument("queue", metavar="[QUEUE]", required=False)
@common_options
@click.pass_context
@pass_settings
def health(settings: Settings, ctx: click.Context, queue: str | None) -> None:
    """Whether the queues are well: jobs that wait for long, failures, missing workers.

    Exits with 0 if all are, with 1 for a warning, with 2 if one is critical, with 3 if it could not ask.
    The thresholds are settings of each queue; by default the oldest job may wait for a minute, and for ten
    until it is critical.
    """
    with unknown_if_refused(), settings.connect() as hf:
        found = hf.health.check(queue)
    show_rows(_COLUMNS, found, as_json=settings.as_json, empty="No queues yet.")
    ctx.exit(max((EXIT_CODES[row.status] for row in found), default=0))

"""The command that judges the health of the queues, for monitoring."""

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
    """Check the queues for jobs that wait too long, failures and missing workers.

    The exit code is 0 if all queues are healthy, 1 for a warning, 2 if one is critical, 3 if the check could
    not run. The thresholds are settings of each queue. By default, a queue has a warning when its oldest job
    has waited for a minute, and is critical after ten.
    """
    with unknown_if_refused(), settings.connect() as hf:
        found = hf.health.check(queue)
    show_rows(_COLUMNS, found, as_json=settings.as_json, empty="No queues yet.")
    ctx.exit(max((EXIT_CODES[row.status] for row in found), default=0))

"""The command that shows the audit log."""

import json
from datetime import datetime

import click

from holdfast.cli import times, values
from holdfast.cli.output import Column, show_rows
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.audit import AuditRow


@click.command()
@click.option("--target", help="Only changes to this queue, job or schedule.")
@click.option("--action", help="Only this kind: pause, configure, cancel, replay ...")
@click.option("--who", help="Only changes by this database role.")
@click.option("--since", type=values.past, help="Only changes since then: 2h, 3d, or a time in ISO 8601.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@common_options
@pass_settings
def audit(
    settings: Settings,
    *,
    target: str | None,
    action: str | None,
    who: str | None,
    since: datetime | None,
    limit: int,
) -> None:
    """List the changes that people and programs made, latest first."""
    with settings.connect() as hf:
        found = hf.audit.list(target=target, action=action, who=who, since=since, limit=limit)
    show_rows(_COLUMNS, found, as_json=settings.as_json, empty="No changes.")


_COLUMNS: list[Column[AuditRow]] = [
    Column("AT", lambda row: times.absolute(row.at), seen=lambda row: times.ago(row.at), heading="when"),
    Column("WHO", lambda row: row.who),
    Column("ACTION", lambda row: row.action),
    Column("TARGET", lambda row: row.target),
    Column("DETAIL", lambda row: "" if row.detail is None else json.dumps(row.detail, ensure_ascii=False)),
]

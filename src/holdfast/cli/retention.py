"""Commands for retention: show what is kept, and export days before they are dropped."""

from datetime import date, datetime
from pathlib import Path
from typing import Literal, cast

import click

from holdfast.cli import times
from holdfast.cli.output import Column, show_json, show_rows, show_table
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.exporting import Exported
from holdfast.operations.retention import PartitionRow
from holdfast.operations.settings import SettingRow

_NAMES = ("retention", "dead_retention", "disposal")


@click.command()
@common_options
@pass_settings
def retention(settings: Settings) -> None:
    """Show how long jobs are kept, which days are stored, and when each day goes."""
    with settings.connect() as hf:
        rules = [row for row in hf.settings.list() if row.name in _NAMES and (row.queue == "*" or row.own)]
        days = hf.retention.list()
    if settings.as_json:
        kept = [{"queue": row.queue, "name": row.name, "value": row.shown} for row in rules]
        show_json({"settings": kept, "partitions": days})
        return
    show_table(_RULES, rules, empty="No settings.")
    click.echo()
    # Leave out the empty partitions that were made in advance.
    show_table(_DAYS, [row for row in days if row.rows or row.bytes > _EMPTY], empty="Nothing is kept.")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a day, such as 2026-01-31.") from None


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--format",
    "shape",
    type=click.Choice(["csv", "jsonl"]),
    default="csv",
    show_default=True,
    help="Write rows as CSV or as JSON lines.",
)
@click.option("--gzip", "compress", is_flag=True, help="Compress the files.")
@click.option(
    "--day",
    metavar="DAY",
    type=_day,
    help="Export this day (in UTC) instead of the days that are due: 2026-01-31.",
)
@common_options
@pass_settings
def export(settings: Settings, directory: Path, *, shape: str, compress: bool, day: date | None) -> None:
    """Write finished jobs and events to files, one for each day, with a manifest.

    Without --day, it exports the days that are past their retention, if their disposal is export. The next
    upkeep drops them once they are written. It is safe to run again at any time.

    \b
      holdfast queue configure '*' disposal=export
      holdfast export /var/backups/jobs --gzip
      holdfast export . --day 2026-01-31 --format jsonl
    """
    with settings.connect() as hf:
        wanted = cast("Literal['csv', 'jsonl']", shape)
        files = hf.retention.export(directory, format=wanted, compress=compress, day=day)
    show_rows(_FILES, files, as_json=settings.as_json, empty="Nothing waits to be exported.")


def _size(amount: int) -> str:
    size = float(amount)
    for unit in ("B", "kB", "MB"):
        if size < 1000:  # noqa: PLR2004
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _kind(parent: str) -> str:
    return {"finished": "finished jobs", "event": "events"}.get(parent, parent)


def _goes(row: PartitionRow) -> str:
    match row.fate:
        case "row by row":
            return "row by row"
        case "keep":
            return "never"
        case _:
            return times.absolute(row.goes_at)


def _goes_seen(row: PartitionRow) -> str:
    moment: datetime | None = row.goes_at
    return times.ago(moment) if moment is not None else _goes(row)


def _fate(row: PartitionRow) -> str:
    if row.fate == "export":
        return "drop, is exported" if row.exported_at else "wait for an export"
    return {"drop": "drop", "archive": "archive"}.get(row.fate, "")


_EMPTY = 64 * 1024  # bytes; the indexes of an empty partition take no more

_RULES: list[Column[SettingRow]] = [
    Column("QUEUE", lambda row: row.queue),
    Column("SETTING", lambda row: row.name),
    Column("VALUE", lambda row: row.shown, style="bold"),
]
_DAYS: list[Column[PartitionRow]] = [
    Column("PARTITION", lambda row: row.partition),
    Column("HOLDS", lambda row: _kind(row.parent), spare=1),
    Column("ROWS", lambda row: row.rows, heading="rows (about)", right=True),
    Column("BYTES", lambda row: row.bytes, seen=lambda row: _size(row.bytes), heading="size", right=True),
    Column("GOES_AT", _goes, seen=_goes_seen, heading="goes"),
    Column("THEN", _fate),
]
_FILES: list[Column[Exported]] = [
    Column("FILE", lambda row: row.name),
    Column("ROWS", lambda row: row.rows, right=True),
    Column("BYTES", lambda row: row.bytes, seen=lambda row: _size(row.bytes), heading="size", right=True),
    Column(
        "MARKED", lambda row: "marked" if row.marked else "", seen=lambda row: "may go" if row.marked else ""
    ),
    Column("SHA256", lambda row: row.sha256, spare=1),
]

"""Calls about how long what has ended is kept, and what becomes of it then."""

from datetime import date, datetime, timedelta
from typing import NamedTuple

from holdfast.calls.base import Call, function, one

_sweep = function("sweep", "rest interval")
_list_partitions = function(
    "list_partitions", columns="parent, partition, day, rows, bytes, goes_at, fate, exported_at"
)
_due_exports = function("due_exports", columns="partition, parent, from_at, until_at, rows, bytes")
_mark_exported = function(
    "mark_exported",
    "partition text, until timestamptz, rows bigint, bytes bigint, sha256 text, location text",
)
_export_columns = function("export_columns", "parent text", "name, type")
# Carried by COPY alone; see `database.copying`.
EXPORTS = {
    parent: function(f"export_{parent}", "from_at timestamptz, until_at timestamptz, of_default boolean")
    for parent in ("finished", "event")
}


class PartitionRow(NamedTuple):
    """A day of finished jobs or of events: about how many rows, when it goes and what becomes of it then."""

    parent: str
    partition: str
    day: date | None
    rows: int
    bytes: int
    goes_at: datetime | None
    fate: str
    exported_at: datetime | None


class DueExport(NamedTuple):
    """A partition that waits to be exported."""

    partition: str
    parent: str
    from_at: datetime
    until_at: datetime
    rows: int
    bytes: int


class ExportColumn(NamedTuple):
    name: str
    type: str


def sweep(rest: timedelta) -> Call[bool]:
    """Answers whether there is more to be done."""
    return _sweep.plain(one, f"{rest.total_seconds():.6f} seconds")


def list_partitions() -> Call[list[PartitionRow]]:
    return _list_partitions(lambda rows: [PartitionRow._make(row) for row in rows])


def due_exports() -> Call[list[DueExport]]:
    return _due_exports(lambda rows: [DueExport._make(row) for row in rows])


def mark_exported(due: DueExport, *, rows: int, size: int, sha256: str, location: str | None) -> Call[bool]:
    return _mark_exported(one, due.partition, due.until_at, rows, size, sha256, location)


def export_columns(parent: str) -> Call[list[ExportColumn]]:
    return _export_columns(lambda rows: [ExportColumn._make(row) for row in rows], parent)

"""Retention: `hf.retention` shows how long finished jobs and events are kept, and exports them."""

import os
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.operations.base import Namespace, operation, twin
from holdfast.operations.run_steps import Action, Steps
from holdfast.values.call import Call, function, one

if TYPE_CHECKING:
    from holdfast.operations.exporting import Exported

Shape = Literal["csv", "jsonl"]
Receiver = Callable[[str, Iterator[bytes]], object]
"""Receive the name of a file and its chunks. A returned text is stored as the location of the file."""

_list_partitions = function(
    "list_partitions", columns="parent, partition, day, rows, bytes, goes_at, fate, exported_at"
)
_due_exports = function("due_exports", columns="partition, parent, from_at, until_at, rows, bytes")
_mark_exported = function(
    "mark_exported",
    "partition text, until timestamptz, rows bigint, bytes bigint, sha256 text, location text",
)
_export_columns = function("export_columns", "parent text", "name, type")
# Only COPY calls these; see `database.copy_out`.
EXPORTS = {
    parent: function(f"export_{parent}", "from_at timestamptz, until_at timestamptz, of_default boolean")
    for parent in ("finished", "event")
}


class PartitionRow(NamedTuple):
    """A day of finished jobs or events: its estimated rows, its size, its fate, and the time when it goes."""

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


class Retention(Namespace):
    """The days of finished jobs and events that are kept."""

    @operation
    def due(self) -> Call["list[DueExport]"]:
        """Return the days that wait for an export, because the setting `disposal` is `export`."""
        return due_exports()

    adue = twin(due)

    @operation
    def export(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        to: Receiver | None = None,
        format: Shape = "csv",  # noqa: A002 - the word for it
        compress: bool = False,
        day: date | None = None,
    ) -> "Steps[list[Exported]]":
        """Export the days that are due, or one day, to a directory or a function, and return the files.

        Each file has a manifest: its rows, columns with types, and SHA-256. Exported days may be dropped.
        `to` is called with the name and the chunks of each file: `hf.retention.export(to=upload,
        compress=True)`.
        """
        from holdfast.operations.exporting import export_days  # noqa: PLC0415 - few processes export

        exported: list[Exported] = yield Action(
            lambda: export_days(
                self._holdfast.database, directory, to=to, shape=format, compress=compress, day=day
            )
        )
        return exported

    aexport = twin(export)

    @operation
    def list(self) -> Call["list[PartitionRow]"]:
        """Return the days of finished jobs and events: their size, and when and how they go."""
        return _list_partitions(lambda rows: [PartitionRow._make(row) for row in rows])

    alist = twin(list)


def due_exports() -> Call[list[DueExport]]:
    return _due_exports(lambda rows: [DueExport._make(row) for row in rows])


def mark_exported(due: DueExport, *, rows: int, size: int, sha256: str, location: str | None) -> Call[bool]:
    return _mark_exported(one, due.partition, due.until_at, rows, size, sha256, location)


def export_columns(parent: str) -> Call[list[ExportColumn]]:
    return _export_columns(lambda rows: [ExportColumn._make(row) for row in rows], parent)

"""Export days of finished jobs and events to a directory, or to a function of the caller.

    due, or a day ─► COPY ─► gzip? ─► sha256 ─► file.part ─► fsync ─► rename ─► manifest ─► mark_exported

A day is marked as exported once its file and its manifest are in place, and is dropped after that. A crash
before that leaves it unmarked, so it is exported again under the same names.
"""

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from holdfast.database import Connection, Database, run_on
from holdfast.database.copy_out import copy_out
from holdfast.operations.retention import (
    EXPORTS,
    DueExport,
    ExportColumn,
    Receiver,
    Shape,
    due_exports,
    export_columns,
    mark_exported,
)
from holdfast.values import limits
from holdfast.values.call import Call

_SHAPES: tuple[Shape, ...] = ("csv", "jsonl")
_DAY = timedelta(days=1)
_OWNERS_DIRECTORY = 0o700
_GZIP = 31  # zlib's number for a gzip header without a time: the same rows make the same file


class Exported(NamedTuple):
    """A file that was exported. If it is `marked`, the database may drop its rows."""

    name: str
    partition: str
    from_at: datetime
    until_at: datetime
    rows: int
    bytes: int
    sha256: str
    location: str | None
    marked: bool


def export_days(
    database: Database,
    directory: str | os.PathLike[str] | None = None,
    *,
    to: Receiver | None = None,
    shape: Shape = "csv",
    compress: bool = False,
    day: date | None = None,
) -> list[Exported]:
    if shape not in _SHAPES:
        raise limits.refused("format", shape, "must be csv or jsonl")
    if (directory is None) == (to is None):
        raise limits.refused("directory", directory, "give either a directory or to=")
    limits.truth("compress", compress)
    receiver = to if to is not None else into(_writable(Path(directory or ".")))
    wanted_day = None if day is None else _range(day)
    with database.connection() as connection:

        def ask(call: Call[Any]) -> Any:
            return run_on(connection, call)

        due: list[DueExport] = ask(due_exports())
        wanted = due if wanted_day is None else list(_of_day(wanted_day, due))
        return [
            _export(connection, each, receiver, shape, compress=compress, is_due=each in due)
            for each in wanted
        ]


def _writable(directory: Path) -> Path:
    """Check that a directory can be written to now, and not only when the first export is due."""
    try:
        directory.mkdir(_OWNERS_DIRECTORY, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        raise limits.refused(
            "directory", str(directory), f"cannot be written to: {error.strerror}"
        ) from error


def into(directory: Path) -> Receiver:
    """Return a receiver that writes complete files to a directory and syncs them to disk.

    Only the owner may read them, because they hold payloads and results. An existing directory keeps its
    rights.
    """

    def write(name: str, chunks: Iterator[bytes]) -> str:
        directory.mkdir(_OWNERS_DIRECTORY, parents=True, exist_ok=True)
        # Two processes may export at once. Each writes its own part file; the last to finish replaces the
        # other's.
        place, part = directory / name, directory / f".{name}.{uuid4().hex[:12]}.part"
        try:
            with open(part, "xb", opener=_owners) as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
        _sync(directory)
        return str(place.absolute())

    return write


def _owners(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _export(
    connection: Connection[Any],
    wanted: DueExport,
    receiver: Receiver,
    shape: Shape,
    *,
    compress: bool,
    is_due: bool,
) -> Exported:
    of_default = wanted.partition.endswith("_default")
    stem = f"{wanted.partition}-{wanted.until_at:%Y%m%d}" if of_default else wanted.partition
    name = f"{stem}.{shape}{'.gz' if compress else ''}"
    with connection.transaction():
        counted = _Counted()
        rows = copy_out(
            connection,
            EXPORTS[wanted.parent],
            (wanted.from_at, wanted.until_at, of_default),
            shape,
            counted.rows_were,
        )
        location = receiver(name, counted.through(_zipped(rows) if compress else rows))
        counted.check(name)
        columns: list[ExportColumn] = run_on(connection, export_columns(wanted.parent))
    exported = Exported(
        name,
        wanted.partition,
        wanted.from_at,
        wanted.until_at,
        counted.rows,
        counted.bytes,
        counted.hash.hexdigest(),
        location if isinstance(location, str) else None,
        marked=False,
    )
    receiver(f"{stem}.manifest.json", iter([_manifest(exported, wanted.parent, shape, columns, compress)]))
    if is_due:
        run_on(
            connection,
            mark_exported(
                wanted,
                rows=exported.rows,
                size=exported.bytes,
                sha256=exported.sha256,
                location=exported.location,
            ),
        )
    return exported._replace(marked=is_due)


class _Counted:
    """The counts and the hash of a file's content, for the manifest."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.bytes = 0
        self.rows = 0
        self._whole = False

    def rows_were(self, rows: int) -> None:
        self.rows = rows

    def through(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.hash.update(chunk)
            self.bytes += len(chunk)
            yield chunk
        self._whole = True

    def check(self, name: str) -> None:
        if not self._whole:
            raise limits.refused(
                "to",
                name,
                "has not read all chunks of this file",
                hint="Nothing was marked; read them to the end.",
            )


def _zipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    zipper = zlib.compressobj(wbits=_GZIP)
    for chunk in chunks:
        if done := zipper.compress(chunk):
            yield done
    yield zipper.flush()


def _manifest(
    exported: Exported, parent: str, shape: Shape, columns: list[ExportColumn], compress: bool
) -> bytes:
    document = {
        "file": exported.name,
        "table": parent,
        "partition": exported.partition,
        "from": exported.from_at.astimezone(UTC).isoformat(),
        "until": exported.until_at.astimezone(UTC).isoformat(),
        "rows": exported.rows,
        "bytes": exported.bytes,
        "sha256": exported.sha256,
        "format": shape,
        "compression": "gzip" if compress else None,
        "columns": [column._asdict() for column in columns],
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def _range(day: date) -> tuple[datetime, datetime]:
    if not isinstance(day, date) or isinstance(day, datetime):
        raise limits.refused("day", day, "must be a date, such as date(2026, 1, 31)")
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return begin, begin + _DAY


def _of_day(wanted: tuple[datetime, datetime], due: list[DueExport]) -> Iterator[DueExport]:
    begin, end = wanted
    for parent in EXPORTS:
        partition = f"{parent}_{begin:%Y%m%d}"
        known = (each for each in due if each.partition == partition)
        yield next(known, DueExport(partition, parent, begin, end, 0, 0))


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)  # makes the new name durable too
    finally:
        os.close(handle)

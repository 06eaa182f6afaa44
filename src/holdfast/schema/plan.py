"""The schema of this release: its SQL files, in their order, with their checksums.

    sql/bootstrap.sql       the schema and the table `migration`, which records the other files
    sql/migrations/*.sql    run once each, by number
    sql/functions/*/*.sql   run again whenever their text changes

The first line of a file may declare something:

    -- holdfast: after lane, check    (a function file) run it after those
    -- holdfast: no transaction       (a migration) for `create index concurrently`; must be re-runnable
    -- holdfast: with functions       (a migration) in one transaction with all that follow and the functions:
                                      neither the old nor the new functions would work in between
    -- holdfast: alone                (a migration) in a transaction of its own, before such a group: its lock
                                      could lead to a deadlock with calls that wait for the group's locks

`-- holdfast: role worker` beside a function is not such a declaration. It names the roles that may call it.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from holdfast.values.errors import NotReady, SchemaTooNew

SQL = resources.files("holdfast") / "sql"
Kind = Literal["migration", "function"]


class MigrationEdited(NotReady):
    """A migration was edited after it had been applied."""

    hint = "Restore the file and write a new migration; a database in development can be dropped instead."
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A file that a database has recorded: a row of `holdfast.migration`."""

    name: str
    kind: str
    checksum: str
    version: str


@dataclass(frozen=True, slots=True)
class File:
    """An SQL file of this release; `name` is without the suffix."""

    kind: Kind
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def declares(self) -> str:
        found = re.match(r"-- holdfast:(?! role )(.*)", self.text)
        return found[1].strip() if found else ""

    @property
    def transactional(self) -> bool:
        return self.declares != "no transaction"

    @property
    def with_functions(self) -> bool:
        return self.declares == "with functions"

    @property
    def alone(self) -> bool:
        return self.declares == "alone"

    @property
    def after(self) -> list[str]:
        return re.findall(r"\w+", self.declares.removeprefix("after")) if self.kind == "function" else []


@dataclass(frozen=True, slots=True)
class Plan:
    """Every file of this release, in the order to apply them."""

    version: str
    files: tuple[File, ...]

    @property
    def number(self) -> int:
        return newest(self.files)

    def missing(self, installed: Iterable[Record]) -> list[File]:
        """Return the files that the database lacks and this release needs.

        A function that a newer release has changed is not among them, because it serves older workers too.
        """
        installed = list(installed)
        files = {file.name: file for file in self.files}
        for record in installed:
            if record.kind == "function":
                continue
            if record.name not in files:
                raise SchemaTooNew(found=newest(installed), needed=self.number)
            if record.checksum != files[record.name].checksum:
                raise MigrationEdited(
                    f"{record.name}.sql was edited after release {record.version} had applied it",
                    file=record.name,
                )
        served = {(record.name, record.checksum) for record in installed}
        newer = {record.name for record in self.newer(installed)}
        return [
            file for file in self.files if (file.name, file.checksum) not in served and file.name not in newer
        ]

    def newer(self, installed: Iterable[Record]) -> list[Record]:
        """Return the records of a newer release."""
        known = {(file.name, file.checksum) for file in self.files}
        return [
            record
            for record in installed
            if _order(record.version) > _order(self.version) and (record.name, record.checksum) not in known
        ]

    def todo(self, installed: Iterable[Record]) -> list[File]:
        """Return the files to apply. Raises SchemaTooNew if a newer release has installed some."""
        installed = list(installed)
        missing = self.missing(installed)
        if newer := self.newer(installed):
            raise SchemaTooNew(
                f"The database has {newer[0].name}.sql of release {newer[0].version}; this is {self.version}",
                found=newest(installed),
                needed=self.number,
            )
        return missing


def load(directory: Path | Traversable | None = None, *, version: str | None = None) -> Plan:
    """Return the plan of this release, or of the `migrations` and `functions` in another directory."""
    bootstrap = File("migration", "bootstrap", _text(SQL / "bootstrap.sql"))
    migrations = _read("migration", (directory or SQL) / "migrations")
    functions = {file.name: file for file in _read("function", (directory or SQL) / "functions")}
    order = TopologicalSorter({name: file.after for name, file in functions.items()}).static_order()
    return Plan(
        version=version or metadata.version("holdfast"),
        files=(bootstrap, *migrations, *(functions[name] for name in order)),
    )


def newest(files: Iterable[File | Record]) -> int:
    """Return the number of the last migration among these files."""
    return max((int(file.name[:4]) for file in files if file.name[:4].isdecimal()), default=0)


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each statement of an SQL text with the number of its first line."""
    start, end = None, 0
    while token := _TOKEN.match(text, end):
        end = token.end()
        if token["comment"]:
            end = _end_of_comment(text, end)
        elif start is None and not token["blank"]:
            start = token.start()
        if start is not None and (token["stop"] or end == len(text)):
            yield text.count("\n", 0, start) + 1, text[start:end]
            start = None


_TOKEN = re.compile(
    r"""
      (?P<blank> \s+ | --[^\n]* )
    | (?P<comment> /\* )
    | (?P<stop> ; )
    | e'(?: [^'\\] | \\. | '' )*'
    | '[^']*'   # a doubled quote makes two of these, which does not matter
    | "[^"]*"
    | (?P<tag> \$ (?: [^\W\d]\w* )? \$ ) .*? (?P=tag)
    | [\w$]+
    | .
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def _end_of_comment(text: str, end: int) -> int:
    """Return the end of a block comment. Block comments nest in PostgreSQL."""
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(text, end):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)


def _read(kind: Kind, folder: Path | Traversable) -> list[File]:
    entries = sorted(_sql_files(folder), key=lambda entry: entry.name)
    files = [File(kind, entry.name.removesuffix(".sql"), _text(entry)) for entry in entries]
    together: File | None = None
    for file, previous in zip(files, [None, *files], strict=False):
        if wrong := _mistake(file, previous, known={other.name for other in files}):
            raise ValueError(f"{file.name}.sql: {wrong}")
        if together is not None and not file.transactional:
            raise ValueError(f"{file.name}.sql: it would run in the transaction of {together.name}.sql")
        together = file if file.with_functions else together
    return files


def _sql_files(folder: Path | Traversable) -> Iterator[Path | Traversable]:
    """Find the SQL files of a folder and of the folders in it."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sql_files(entry)
        elif entry.name.endswith(".sql"):
            yield entry


def _mistake(file: File, previous: File | None, known: set[str]) -> str | None:
    name, declares = {
        "migration": (r"\d{4}_[a-z0-9_]+", r"(no transaction|with functions|alone)?"),
        "function": (r"(?!bootstrap$)[a-z][a-z0-9_]*", r"(after \w+(, \w+)*)?"),
    }[file.kind]
    if not re.fullmatch(name, file.name):
        return f"this is not a name for a {file.kind}"
    if file.kind == "migration" and previous and previous.name[:4] == file.name[:4]:
        return f"{previous.name}.sql has the same number"
    if previous and previous.name == file.name:
        return "two folders have a file of this name"
    if not re.fullmatch(declares, file.declares):
        return f"a {file.kind} cannot declare '{file.declares}'"
    if unknown := sorted(set(file.after) - known):
        return f"there is no {unknown[0]}.sql to come after"
    if not file.text.rstrip().endswith(";"):
        return "its last statement has no semicolon"
    return None


def _text(path: Path | Traversable) -> str:
    return path.read_text(encoding="utf-8")


def _order(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]

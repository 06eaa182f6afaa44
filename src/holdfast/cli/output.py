"""The forms of output: tables for people, plain lines for pipes, one JSON document for programs.

On a terminal a table has colours and relative times, and is cut to the width of the window. A pipe gets the
same columns in full and without colours, with times in UTC, `-` for an empty cell, and free text last. Text
from payloads and errors is not trusted: control characters are shown as escapes and never reach the terminal.
JSON escapes them everywhere, so a terminal and a pipe get the same document.
"""

import json
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import UTC, date, datetime, timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from uuid import UUID

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")

# Within ASCII, json itself escapes all control characters but one.
_BEYOND_ASCII = re.compile(r"[^\x00-\x7e]")
_GAP = 2
_NARROW = 10
_ENOUGH = 30  # characters of free text that justify a column
LIVE_SECONDS = 0.5

STATE_STYLES = {
    "scheduled": "cyan",
    "pending": "blue",
    "claimed": "yellow",
    "running": "bold yellow",
    "completed": "green",
    "dead": "bold red",
    "cancelled": "magenta",
    "lost": "bold red",
    "silent": "bold yellow",
    "busy": "yellow",
    "idle": "green",
    "left": "dim",
}


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a table. A pipe gets `title` and `text`; a terminal gets `heading` and `seen` if they are
    set.

    In a narrow window, columns with a `spare` are left out, the largest first; then the last column is cut to
    the remaining width.
    """

    title: str
    text: Callable[[T], object]
    seen: Callable[[T], object] | None = None
    heading: str | None = None
    style: str | Callable[[T], str] = ""
    right: bool = False
    spare: int = 0

    def cell(self, row: T) -> str:
        return clean((self.seen or self.text)(row))

    @property
    def head(self) -> str:
        return self.heading or self.title.lower().removesuffix("_at")

    def colour(self, row: T) -> str:
        return self.style(row) if callable(self.style) else self.style


def on_terminal() -> bool:
    return sys.stdout.isatty()


def show_table(columns: Sequence[Column[T]], rows: Sequence[T], *, empty: str, note: str = "") -> None:
    """Print the rows as a table, or `empty` if there are none; `note` appears on a terminal only."""
    if on_terminal():
        _show_pretty(columns, rows, empty, note)
    else:
        _show_plain(columns, rows)


def show_rows(columns: Sequence[Column[T]], rows: Sequence[T], *, as_json: bool, empty: str) -> None:
    """Print the rows as a JSON document or as a table."""
    if as_json:
        show_json(rows)
    else:
        show_table(columns, rows, empty=empty)


def show_json(document: Any) -> None:
    click.echo(printable_json(document, indent=2))


def printable_json(document: Any, *, indent: int | None = None) -> str:
    """Return the document as JSON. Characters that control a terminal become JSON escapes."""
    text = json.dumps(builtin(document), indent=indent, ensure_ascii=False)
    return _BEYOND_ASCII.sub(lambda found: found[0] if found[0].isprintable() else _in_json(found[0]), text)


def console() -> "Console":
    from rich.console import Console  # noqa: PLC0415 - a pipe does not need it

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=False)


def clean(value: object, *, lines: bool = False) -> str:
    """Return the text with its control characters as escapes; `lines` keeps line ends and tabs."""
    if value is None:
        return ""
    text = str(value)
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(each if each.isprintable() or each in kept else _escaped(each) for each in text)


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def plural(amount: int, noun: str) -> str:
    """
    >>> plural(1, "job"), plural(3, "job")
    ('1 job', '3 jobs')
    """
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def _show_plain(columns: Sequence[Column[T]], rows: Sequence[T]) -> None:
    lines = [[column.title for column in columns]]
    lines += [[clean(column.text(row)).strip() or "-" for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def show_live(columns: Sequence[Column[T]], look: Callable[[], Sequence[T]], *, empty: str) -> None:
    """Print the table and update it until Ctrl-C."""
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    # Ctrl-C puts an item into a queue. An exception could interrupt a query, where other code might handle
    # it. An Event could deadlock: setting one takes a lock that this same thread may hold.
    screen, over = console(), SimpleQueue[None]()
    before = signal.signal(signal.SIGINT, lambda *_: over.put(None))
    try:
        with Live(console=screen, auto_refresh=False) as live:
            while not _comes(over, LIVE_SECONDS):
                rows = look()
                live.update(_table(columns, rows, screen.width) if rows else Text(empty, "dim"), refresh=True)
    finally:
        signal.signal(signal.SIGINT, before)
    raise KeyboardInterrupt


def _comes(items: SimpleQueue[None], seconds: float) -> bool:
    try:
        items.get(timeout=seconds)
    except Empty:
        return False
    return True


def _show_pretty(columns: Sequence[Column[T]], rows: Sequence[T], empty: str, note: str) -> None:
    screen = console()
    if not rows:
        screen.print(empty, style="dim")
        return
    screen.print(_table(columns, rows, screen.width))
    if note:
        screen.print(f"\n{note}", style="dim")


def _table(columns: Sequence[Column[T]], rows: Sequence[T], room: int) -> "Table":
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    fitting = _fitting(columns, rows, room)
    for column, width in fitting:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.head, justify=justify, no_wrap=True, overflow="ellipsis", width=width)
    for row in rows:
        table.add_row(*(Text(column.cell(row), column.colour(row)) for column, _ in fitting))
    return table


def _fitting(columns: Sequence[Column[T]], rows: Sequence[T], room: int) -> list[tuple[Column[T], int]]:
    """Return the columns that are not empty and fit, with their widths.

    Columns with a `spare` are left out first. Then texts are cut, but never the first column, an id, or a
    number.
    """
    needed = {column.title: max(len(column.cell(row)) for row in rows) for column in columns}
    *firm, last = (column for column in columns if needed[column.title])
    widths = {column.title: max(needed[column.title], len(column.head)) + _GAP for column in columns}
    wanted = min(needed[last.title], _ENOUGH)

    def left() -> int:
        return room - sum(widths[column.title] for column in firm)

    for victim in sorted((column for column in [*firm, last] if column.spare), key=lambda it: -it.spare):
        if left() >= wanted:
            break
        if victim is last:
            wanted = 0
        else:
            firm.remove(victim)
    texts = [column for column in firm[1:] if not column.right]
    for column in sorted(texts, key=lambda column: -widths[column.title]):
        widths[column.title] -= max(0, min(-left(), widths[column.title] - _NARROW))
    while left() < 0 and len(firm) > 1:
        firm.pop()
    fitting = [(column, widths[column.title] - _GAP) for column in firm]
    rest = min(left(), widths[last.title] - _GAP)
    return [*fitting, (last, rest)] if wanted and rest >= min(_NARROW, needed[last.title]) else fitting


def _in_json(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def builtin(value: Any) -> Any:
    """Convert to JSON types: datetimes as ISO 8601 in UTC, durations as seconds, records as objects."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case dict():
            return {str(key): builtin(item) for key, item in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return builtin(value._asdict())
        case list() | tuple():
            return [builtin(item) for item in value]
        case _ if is_dataclass(value):
            return {name: builtin(getattr(value, name)) for name in value.__dataclass_fields__}
        case _:
            return value

"""A call of a SQL function: its signature, its values, and how its rows are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = Sequence[Row]


class Call(NamedTuple, Generic[T]):
    """One call of one SQL function: carry it to a database and `read` what comes back.

    A `plain` one needs no driver to adapt anything: PostgreSQL reads its values as `str` writes them, and
    bytes as they are.
    """

    function: "Function"
    values: Sequence[Any]
    read: Callable[[Rows], T]
    plain: bool = False


@dataclass(frozen=True, eq=False)
class Function:
    """The signature of a SQL function, and the columns that we ask of it.

    JSON and UUIDs travel as text where speed counts, and the answer to a plain call has them so: they are
    decoded once, by those who need them.
    """

    name: str
    parameters: Mapping[str, str]
    columns: str = "*"
    # It returns one value, of this type: asked for in the select list, which costs the server a tenth less.
    value: str | None = None

    def __call__(self, read: Callable[[Rows], T], *values: Any) -> Call[T]:
        return Call(self, values, read)

    def without(self, *left_out: str) -> "Function":
        """Return the same function, called without these parameters: fewer values to send and to read."""
        kept = {name: kind for name, kind in self.parameters.items() if name not in left_out}
        return Function(self.name, kept, self.columns, value=self.value)

    def plain(self, read: Callable[[Rows], T], *values: Any) -> Call[T]:
        return Call(self, values, read, plain=True)


FUNCTIONS: dict[str, Function] = {}


def function(name: str, parameters: str = "", columns: str = "*", value: str | None = None) -> Function:
    pairs = (part.split(maxsplit=1) for part in parameters.split(", ") if part)
    function = Function(name, {parameter: kind for parameter, kind in pairs}, columns, value)  # noqa: C416 - lists, not pairs
    FUNCTIONS[name] = function
    return function


def nothing(_rows: Rows) -> None:
    return None


def one(rows: Rows) -> Any:
    return rows[0][0]


def column(rows: Rows) -> list[Any]:
    return [row[0] for row in rows]


def interval(delay: timedelta) -> str:
    # In seconds: a day of PostgreSQL's has 23 or 25 hours when clocks change, one of Python's never.
    return f"{delay.days * 86400 + delay.seconds}.{delay.microseconds:06d} seconds"

"""A call of a SQL function: its signature, its values, and the reader of its rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = Sequence[Row]


class Call(NamedTuple, Generic[T]):
    """One call of one SQL function, with the function that reads the returned rows.

    The values of a `plain` call need no adaptation by the driver: PostgreSQL reads them as `str` writes them,
    and bytes as they are.
    """

    function: "Function"
    values: Sequence[Any]
    read: Callable[[Rows], T]
    plain: bool = False


@dataclass(frozen=True, eq=False)
class Function:
    """The signature of a SQL function, and the columns to select from it.

    A plain call sends and returns JSON and UUIDs as text, for speed. The code that needs a value decodes it.
    """

    name: str
    parameters: Mapping[str, str]
    columns: str = "*"
    # The type of a function that returns one value. Calling it in the select list is a tenth cheaper.
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
    # In seconds: a day in PostgreSQL has 23 or 25 hours when clocks change, but never in Python.
    return f"{delay.days * 86400 + delay.seconds}.{delay.microseconds:06d} seconds"

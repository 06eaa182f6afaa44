"""PostgreSQL's arrays, written as a whole: as text, or in binary if the server reads text slowly.

psycopg writes a list element by element in Python, in 1 to 2 µs each. That was the largest part of a worker's
time for a job. These functions take less than 0.1 µs for each element.
"""

import struct
from collections.abc import Iterable, Sequence

import msgspec

# The type's OID on every PostgreSQL.
_UUID = 2950
_DOUBLE = 701


def words(values: Iterable[str]) -> str:
    """Return an array of values that need no quotes, such as UUIDs or constants."""
    return "{" + ",".join(values) + "}"


def uuids(values: Sequence[str]) -> bytes:
    """Return an array of UUIDs in binary. The server reads each in 0.1 µs, and as text in 0.6 µs."""
    size = "00000010"
    return _head(_UUID, len(values)) + bytes.fromhex(size.join(["", *values]).replace("-", ""))


def texts(values: Iterable[str | None]) -> str:
    """Return an array of any texts, quoted, so that only quotes and backslashes are special."""
    return words(
        [
            "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
            for value in values
        ]
    )


def texts_or_null(values: Sequence[str] | None) -> str | None:
    return None if values is None else texts(values)


def texts_if_any(values: Sequence[str | None]) -> str | None:
    """Return the values as an array, or None if all of them are None."""
    return None if values.count(None) == len(values) else texts(values)


def numbers(values: Sequence[float | None]) -> str:
    """Return an array of numbers; one that is not finite becomes NULL."""
    # JSON has the same form for numbers and null as PostgreSQL, and is six times as fast as repr().
    return "{" + msgspec.json.encode(values).decode()[1:-1] + "}"


def doubles(values: Sequence[float]) -> bytes:
    """Return an array of numbers in binary; none may be None."""
    pairs: list[float] = [8] * (2 * len(values))  # the size before each value
    pairs[1::2] = values
    # Not struct.pack, which caches a hundred formats: one for 2,000 values takes 130 kB.
    layout = struct.Struct(">" + "id" * len(values))
    return _head(_DOUBLE, len(values)) + layout.pack(*pairs)


def _head(kind: int, amount: int) -> bytes:
    """Return the header of an array: one dimension that begins with 1, and no nulls."""
    return struct.pack(">iiiii", 1, 0, kind, amount, 1)

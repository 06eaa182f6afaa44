"""What is enqueued is what the handler gets, for every type that may be declared."""

import enum
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from holdfast.values.arguments import Arguments
from holdfast.values.encoding import to_json
from holdfast.values.errors import BadInput
from holdfast.values.secret import Secret


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class User:
    name: str
    born: date
    scores: list[float]


class Order(msgspec.Struct):
    number: int
    user: User | None = None


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))  # type: ignore[arg-type]
finite = st.floats(allow_nan=False, allow_infinity=False)
# A text carries the offset, in whole minutes, not the zone; and by PEP 495 a time that a zone has twice
# equals no time of another zone, so zones proper could not be compared here.
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
users = st.builds(User, name=texts, born=st.dates(), scores=st.lists(finite, max_size=3))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
KINDS = {
    "int": (int, st.integers()),
    "float": (float, finite),
    "bool": (bool, st.booleans()),
    "str": (str, texts),
    "bytes": (bytes, st.binary()),
    "uuid": (UUID, st.uuids()),
    "decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "date": (date, st.dates()),
    "time": (time, st.times()),
    "naive datetime": (datetime, st.datetimes()),
    "datetime": (datetime, st.datetimes(timezones=offsets)),
    "timedelta": (timedelta, st.timedeltas(timedelta(days=-36500), timedelta(days=36500))),
    "enum": (Colour, st.sampled_from(Colour)),
    "int enum": (Level, st.sampled_from(Level)),
    "literal": (Literal["a", 1], st.sampled_from(["a", 1])),
    "list": (list[int], st.lists(st.integers())),
    "tuple": (tuple[int, str], st.tuples(st.integers(), texts)),
    "set": (set[str], st.sets(texts)),
    "frozenset": (frozenset[int], st.frozensets(st.integers())),
    "dict": (dict[str, list[int]], st.dictionaries(texts, st.lists(st.integers()))),
    "dict by number": (dict[int, str], st.dictionaries(st.integers(-(2**63), 2**63 - 1), texts)),
    "optional": (int | None, st.none() | st.integers()),
    "dataclass": (User, users),
    "struct": (Order, st.builds(Order, number=st.integers(), user=st.none() | users)),
    "nested": (dict[str, list[User | None]], st.dictionaries(texts, st.lists(st.none() | users, max_size=2))),
    "secret": (Secret[str], st.builds(Secret, texts)),
    "anything": (Any, json_values),
}


def arguments_for(hint: Any) -> Arguments:
    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = hint
    return Arguments("round.trip", handler)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(data=st.data())
def test_an_argument_comes_back_as_it_was_given(kind: str, data: st.DataObject) -> None:
    hint, values = KINDS[kind]
    arguments, value = arguments_for(hint), data.draw(values)
    assert arguments.decode(arguments.encode((), {"value": value})) == {"value": value}


@settings(deadline=None)
@given(st.recursive(
    st.none() | finite | st.text() | st.floats() | st.binary() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_an_argument_is_either_refused_or_storable(value: Any) -> None:
    try:
        text = arguments_for(Any).encode((), {"value": value})
    except BadInput:
        return
    text.encode()
    assert not any(isinstance(leaf, str) and "\0" in leaf for leaf in leaves(msgspec.json.decode(text)))


@settings(deadline=None)
@given(json_values)
def test_storable_json_is_never_refused(value: Any) -> None:
    assert msgspec.json.decode(to_json(value)) == value


def leaves(value: Any) -> list[Any]:
    match value:
        case dict():
            return [leaf for pair in value.items() for part in pair for leaf in leaves(part)]
        case list():
            return [leaf for item in value for leaf in leaves(item)]
        case _:
            return [value]

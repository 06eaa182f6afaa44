"""A value becomes JSON that PostgreSQL stores, or an error that says where it cannot."""

import decimal
import enum
import json
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from holdfast.values.encoding import Unstorable, shown, to_json


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: Any


class Box(msgspec.Struct):
    content: Any


class Model:
    """As pydantic's, without pydantic."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def model_dump(self, *, mode: str) -> Any:
        assert mode == "json"
        return self.data


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Count(int):
    pass


class Share(float):
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ({"a": [1, 2.5, True, None, "ü"]}, '{"a":[1,2.5,true,null,"ü"]}'),
        (datetime(2024, 2, 29, 12, tzinfo=UTC), '"2024-02-29T12:00:00Z"'),
        (date(2024, 2, 29), '"2024-02-29"'),
        (time(12, 30), '"12:30:00"'),
        (timedelta(seconds=90), '"PT90S"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (decimal.Decimal("1.50"), '"1.50"'),
        (Colour.RED, '"red"'),
        (b"\x00\xff", '"AP8="'),
        (frozenset([1]), "[1]"),
        (Point(Box(1)), '{"x":{"content":1}}'),
        (Model({"a": 1}), '{"a":1}'),
        ([Text("x"), Count(3), Share(0.5)], '["x",3,0.5]'),
        (10**40, "1" + "0" * 40),
    ],
)
def test_what_json_does_not_know_is_written_in_its_usual_form(value: Any, text: str) -> None:
    assert to_json(value).decode() == text


@pytest.mark.parametrize(
    "innocent", ["\\u0000", "null", None, ["\\\\u0000", {"null": None}], Box("\\u0000"), [None, 1.5]]
)
def test_innocent_text_that_looks_like_trouble_is_let_through(innocent: Any) -> None:
    to_json(innocent)


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ("a\0b", "", "NUL"),
        ({"a": ["x", "\0"]}, ".a[1]", "NUL"),
        ({"a\0": 1}, ".(key)", "NUL"),
        (Point({"b": "\0"}), ".x.b", "NUL"),
        (Model({"a": "\0"}), ".a", "NUL"),
        ("\ud800", "", "surrogate"),
        ({"a": {"b": "x\udfff"}}, ".a.b", "surrogate"),
        ({"\ud800": 1}, ".(key)", "surrogate"),
        (Box(["\ud800"]), ".content[0]", "surrogate"),
        (NAN, "", "JSON has no nan"),
        ({"a": [1.0, INFINITY]}, ".a[1]", "JSON has no inf"),
        (Point(-INFINITY), ".x", "JSON has no -inf"),
        (Share("nan"), "", "JSON has no nan"),
        (object(), "", "object cannot be JSON"),
        ({"a": [1, lambda: None]}, ".a[1]", "function cannot be JSON"),
        (Point(ValueError("x")), ".x", "ValueError cannot be JSON"),
        ({(1, 2): 3}, "", "tuple cannot be JSON"),
        pytest.param(10**5000, "", "too many digits", id="huge"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(value: Any, path: str, reason: str) -> None:
    with pytest.raises(Unstorable, match=reason) as caught:
        to_json(value)
    assert caught.value.path == path


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(Unstorable, match="contains itself"):
        to_json(ring)


def test_an_object_whose_own_conversion_fails_is_refused() -> None:
    class Broken:
        def model_dump(self, *, mode: str) -> None:
            raise RuntimeError("cannot dump")

    with pytest.raises(Unstorable, match="cannot dump"):
        to_json({"a": Broken()})


def nested(depth: int, kind: type[Any] = list) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_what_is_nested_deeper_than_can_be_read_again_is_found(kind: type[Any]) -> None:
    assert json.loads(to_json(nested(200, kind))) == nested(200, kind)
    assert to_json([nested(2, kind)] * 500)
    for depth in (201, 500, 100_000):
        with pytest.raises(Unstorable, match="nested"):
            to_json(nested(depth, kind))


def test_an_integer_larger_than_a_double_is_found_and_a_text_of_digits_is_not() -> None:
    largest = int(float("1.7976931348623157e308"))
    assert to_json([largest - 1, -largest, "9" * 5000, sys.float_info.max])
    for number in (10**309, -(10**400), 10**5000):
        with pytest.raises(Unstorable, match=r"a\[1\].*digits|digits"):
            to_json({"a": [1, number]})


def test_a_stored_value_that_cannot_be_read_is_a_note_in_its_place() -> None:
    assert shown('{"a": [1]}') == {"a": [1]}
    assert shown("[" * 200 + "1" + "]" * 200) == nested(200)
    for text in ("[" * 300 + "]" * 300, "[" * 50_000 + "]" * 50_000):
        assert shown(text) == "(cannot be shown: it is nested more than 200 levels deep)"
    for text in ("1" + "0" * 400 + ".5", "1" + "0" * 30_000, "[1" + "0" * 400 + "]"):
        assert shown(text) == "(cannot be shown: a number has too many digits)"

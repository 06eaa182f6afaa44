"""A value becomes JSON that PostgreSQL stores, or an error that says where it cannot."""

import decimal
import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from holdfast.encoding import Unstorable, to_json


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: Any


class Box(msgspec.Struct):
    content: Any


class Model:
    """As pydantic's, without pydantic."""

    def __init__(self, data):
        self.data = data

    def model_dump(self, *, mode):
        assert mode == "json"
        return self.data


class Text(str):
    __slots__ = ()

    def __str__(self):
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
def test_what_json_does_not_know_is_written_in_its_usual_form(value, text):
    assert to_json(value).decode() == text


@pytest.mark.parametrize(
    "innocent", ["\\u0000", "null", None, ["\\\\u0000", {"null": None}], Box("\\u0000"), [None, 1.5]]
)
def test_innocent_text_that_looks_like_trouble_is_let_through(innocent):
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
        pytest.param(10**5000, "", "4300 digits", id="huge"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(value, path, reason):
    with pytest.raises(Unstorable, match=reason) as caught:
        to_json(value)
    assert caught.value.path == path


def test_a_value_that_contains_itself_is_refused():
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(Unstorable, match="contains itself"):
        to_json(ring)


def test_an_object_whose_own_conversion_fails_is_refused():
    class Broken:
        def model_dump(self, *, mode):
            raise RuntimeError("cannot dump")

    with pytest.raises(Unstorable, match="cannot dump"):
        to_json({"a": Broken()})

"""Arguments fit the handler when they are enqueued, or the error names the one that does not."""

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import wraps
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

import msgspec
import pytest

from holdfast.values.arguments import Arguments
from holdfast.values.errors import BadArguments, BadPayload
from holdfast.values.secret import Secret

T = TypeVar("T")


class Context(Generic[T]):
    __holdfast_context__ = True


class Colour(enum.Enum):
    RED = "red"


@dataclass
class User:
    name: str
    age: int


def arguments(function: Callable[..., Any]) -> Arguments:
    return Arguments("mail.welcome", function)


def encode(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return json.loads(arguments(function).encode(args, kwargs))


def refused(error: type[Exception], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with pytest.raises(error) as caught:
        arguments(function).encode(args, kwargs)
    refusal: Any = caught.value
    assert refusal.task == "mail.welcome"
    return refusal


def welcome(user_id: int, template: str = "plain", *, copies: list[str] | None = None) -> None: ...


def test_arguments_travel_by_name_however_they_were_given() -> None:
    assert encode(welcome, 7, "rich") == {"user_id": 7, "template": "rich"}
    assert encode(welcome, user_id=7, copies=["a"]) == {"user_id": 7, "copies": ["a"]}
    assert encode(welcome, 7, copies=None) == {"user_id": 7, "copies": None}


def test_a_default_is_not_stored_so_that_a_waiting_job_sees_a_new_one() -> None:
    assert encode(welcome, 7) == {"user_id": 7}
    assert arguments(welcome).decode('{"user_id":7}') == {"user_id": 7}


def test_a_missing_argument_is_named() -> None:
    error = refused(BadArguments, welcome, template="rich")
    assert str(error) == "mail.welcome: argument 'user_id' is missing"
    assert error.argument == "user_id"


def test_an_unexpected_argument_is_named_with_a_suggestion() -> None:
    error = refused(BadArguments, welcome, usr_id=7)
    assert str(error) == "mail.welcome: argument 'usr_id' does not exist. Did you mean 'user_id'?"
    assert error.argument == "usr_id"


def test_too_many_positional_arguments_are_refused() -> None:
    error = refused(BadArguments, welcome, 1, "a", ["b"])
    assert "takes 2 positional arguments, got 3. It takes user_id, template, copies=…." in str(error)


def test_an_argument_given_twice_is_refused() -> None:
    assert "argument 'user_id' is given twice" in str(refused(BadArguments, welcome, 1, user_id=2))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, "7"), (int, 7.5), (int, True), (int, None), (str, 7), (str, b"bytes"), (str, UUID(int=1)),
        (float, "1.5"), (bool, 1), (date, "not a date"), (date, datetime(2024, 1, 1)), (UUID, "123"),  # noqa: DTZ001
        (Colour, "green"), (list[int], [1, "2"]), (dict[str, int], {"a": "b"}), (dict[str, int], {1: 2}),
        (tuple[int, str], (1,)), (User, {"name": "ann"}), (User, User("ann", "old")), (Decimal, "much"),  # type: ignore[arg-type]
        (User, object()), (Annotated[int, msgspec.Meta(ge=1)], 0),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_by_name(hint: Any, value: Any) -> None:
    def handler(fine: int, given: Any) -> None: ...

    handler.__annotations__["given"] = hint
    error = refused(BadArguments, handler, fine=1, given=value)
    assert error.argument == "given"
    assert str(error).startswith("mail.welcome: argument 'given' must be ")


def test_the_error_says_what_was_expected_and_what_was_given() -> None:
    error = refused(BadArguments, welcome, user_id="seven")
    assert str(error) == "mail.welcome: argument 'user_id' must be int: Expected `int`, got `str`"


def test_the_error_shows_the_place_inside_the_argument() -> None:
    def handler(users: list[User]) -> None: ...

    error = refused(BadArguments, handler, users=[User("ann", 7), {"name": "bob", "age": "old"}])
    assert "Expected `int`, got `str` - at `users[1].age`" in str(error)


def test_the_error_does_not_show_the_value() -> None:
    assert "seven" not in str(refused(BadArguments, welcome, user_id="seven"))


@pytest.mark.parametrize("bad", ["a\0b", "\ud800", float("nan"), float("inf"), object(), {"deep": ["\0"]}])
def test_a_value_that_postgresql_cannot_store_is_refused_by_name(bad: Any) -> None:
    def handler(fine: int, data: Any) -> None: ...

    error = refused(BadPayload, handler, fine=1, data={"x": bad})
    assert error.path.startswith("data.x")
    assert f"argument {error.path!r}" in str(error)


@pytest.mark.parametrize(("hint", "bad"), [(float, float("nan")), (float | None, float("inf")), (str, "\0")])
def test_an_unstorable_value_of_the_right_type_is_refused_too(hint: Any, bad: float | str) -> None:
    def handler(data: Any) -> None: ...

    handler.__annotations__["data"] = hint
    assert refused(BadPayload, handler, data=bad).path == "data"


def test_an_argument_without_a_type_takes_any_json() -> None:
    def handler(data): ...  # type: ignore[no-untyped-def] # without a type on purpose

    assert encode(handler, {"a": [1, None, date(2024, 1, 1)]}) == {"data": {"a": [1, None, "2024-01-01"]}}


def test_dictionaries_with_other_keys_than_text_come_back_as_declared() -> None:
    def handler(names: dict[int, str]) -> None: ...

    task = arguments(handler)
    assert task.decode(task.encode((), {"names": {1: "a"}})) == {"names": {1: "a"}}


def test_a_handler_without_arguments_has_an_empty_payload() -> None:
    task = arguments(lambda: None)
    assert (task.encode((), {}), task.decode("{}")) == ("{}", {})
    assert refused(BadArguments, lambda: None, 1).argument is None


def test_extra_keywords_are_taken_where_the_handler_takes_them() -> None:
    def handler(a: int, **more: int) -> None: ...

    task = arguments(handler)
    text = task.encode((), {"a": 1, "b": 2})
    assert json.loads(text) == {"a": 1, "b": 2}
    assert task.decode(text) == {"a": 1, "b": 2}
    assert refused(BadArguments, handler, a=1, b="x").argument == "b"
    assert refused(BadArguments, handler, b=1).argument == "a"


# Declaring


def test_variadic_and_positional_only_parameters_are_refused_when_declared() -> None:
    def variadic(*names: str) -> None: ...
    def nameless(a: int, /) -> None: ...

    for function, argument in ((variadic, "names"), (nameless, "a")):
        with pytest.raises(BadArguments, match="arguments travel by name") as caught:
            arguments(function)
        assert caught.value.argument == argument


def test_a_type_that_cannot_be_told_apart_in_json_is_named() -> None:
    def handler(when: date | datetime) -> None: ...

    assert refused(BadArguments, handler, when=date(2024, 1, 1)).argument == "when"


def test_a_type_that_exists_only_for_type_checkers_is_named() -> None:
    def handler(user: "Missing") -> None: ...  # type: ignore[name-defined] # noqa: F821

    error = refused(BadArguments, handler, user=1)
    assert error.argument == "user"
    assert "TYPE_CHECKING" in str(error)


def test_types_may_be_declared_after_the_task() -> None:
    def handler(user: "DeclaredLater") -> None: ...

    task = arguments(handler)
    assert task.decode('{"user":{"name":"ann"}}') == {"user": DeclaredLater("ann")}


@dataclass
class DeclaredLater:
    name: str


def test_the_signature_is_read_through_a_decorator() -> None:
    @wraps(welcome)
    def decorated(*args: Any, **kwargs: Any) -> None: ...

    assert refused(BadArguments, decorated, user_id="seven").argument == "user_id"


# The context


@pytest.mark.parametrize(
    "hint", [Context, Context | None, Annotated[Context, "x"], "Context", "Context | None"]
)
def test_a_context_is_filled_in_by_the_worker_and_never_travels(hint: Any) -> None:
    def first(ctx: Any, user_id: int) -> None: ...
    def last(user_id: int, ctx: Any = None) -> None: ...

    for handler in (first, last):
        handler.__annotations__["ctx"] = hint
        task = arguments(handler)
        assert task.context == "ctx"
        assert task.encode((7,), {}) == '{"user_id":7}'
        assert task.decode('{"user_id":7}') == {"user_id": 7}
        assert "filled in by the worker" in str(refused(BadArguments, handler, user_id=7, ctx=None))


def test_a_handler_without_a_context_has_none() -> None:
    assert arguments(welcome).context is None


def test_a_context_cannot_be_smuggled_in_beside_extra_keywords() -> None:
    def handler(ctx: Context, **more: Any) -> None: ...  # type: ignore[type-arg]

    assert "filled in by the worker" in str(refused(BadArguments, handler, ctx=1))


# Secrets


def charge(card: Secret[str], code: Secret[int] | None = None) -> None: ...


def test_a_plain_value_becomes_a_secret_where_the_handler_wants_one() -> None:
    assert encode(charge, "4111") == encode(charge, Secret("4111")) == {"card": {"$secret": "4111"}}
    assert encode(charge, "4111", code=123)["code"] == {"$secret": 123}
    assert encode(charge, "4111", code=None)["code"] is None


def test_the_handler_gets_a_secret() -> None:
    task = arguments(charge)
    assert task.decode(task.encode(("4111",), {})) == {"card": Secret("4111")}


def test_a_secret_of_the_wrong_type_is_refused_without_showing_it() -> None:
    error = refused(BadArguments, charge, card=4111)
    assert error.argument == "card"
    assert "4111" not in str(error)


def test_a_secret_that_was_stored_in_the_open_is_refused_with_advice() -> None:
    with pytest.raises(BadArguments, match=r"written \{\"\$secret\": value\}") as caught:
        arguments(charge).decode('{"card":"4111"}')
    assert caught.value.argument == "card"


# Reading what others enqueued


@pytest.mark.parametrize(
    ("payload", "argument"),
    [
        ('{"user_id":"seven"}', "user_id"),
        ('{"template":"x"}', "user_id"),
        ('{"user_id":7,"tmplate":"x"}', "tmplate"),
        ('{"user_id":1e400}', "user_id"),
        ('{"user_id":null}', "user_id"),
        ("{}", "user_id"),
        ("[7]", None),
        ("null", None),
        ('"text"', None),
        ("not json", None),
        ("", None),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_by_name(payload: str, argument: str | None) -> None:
    for form in (payload, payload.encode()):
        with pytest.raises(BadArguments) as caught:
            arguments(welcome).decode(form)
        assert (caught.value.task, caught.value.argument) == ("mail.welcome", argument)


# Models with a validation of their own


class Model:
    """As pydantic's, without pydantic."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.n == self.n

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def model_validate(cls, data: Any) -> "Model":
        if type(data["n"]) is not int:
            raise ValueError("n must be a number")
        return cls(data["n"])

    def model_dump(self, *, mode: str) -> dict[str, int]:
        return {"n": self.n}


def test_models_are_written_and_validated_by_themselves() -> None:
    def handler(model: Model, many: list[Model] | None = None) -> None: ...

    task = arguments(handler)
    text = task.encode((), {"model": Model(1), "many": [Model(2)]})
    assert json.loads(text) == {"model": {"n": 1}, "many": [{"n": 2}]}
    assert task.decode(text) == {"model": Model(1), "many": [Model(2)]}
    assert task.encode((), {"model": {"n": 3}}) == '{"model":{"n":3}}'
    error = refused(BadArguments, handler, model={"n": "x"})
    assert error.argument == "model"
    assert "n must be a number" in str(error)


def test_a_class_that_cannot_travel_is_named() -> None:
    class Foreign: ...

    def handler(thing: Any) -> None: ...

    handler.__annotations__["thing"] = Foreign
    assert refused(BadPayload, handler, thing=Foreign()).path == "thing"
    with pytest.raises(BadArguments, match="a Foreign cannot be made from JSON"):
        arguments(handler).decode('{"thing":{}}')

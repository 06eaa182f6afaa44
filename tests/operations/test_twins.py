import asyncio
import inspect
from collections.abc import Generator, Iterable
from typing import Any
from uuid import uuid4

import pytest

from holdfast.operations.base import Blocking, Load, Namespace, operation, twin
from holdfast.operations.dead import Dead
from holdfast.values.call import Call
from holdfast.values.errors import BadInput, UnknownMethod, UnknownOption


class Carrier:
    """Answers each call with its values; notes what it carried."""

    def __init__(self) -> None:
        self.carried: list[Any] = []

    def run(self, call: Call[Any]) -> Any:
        self.carried.append(call.values)
        if "bad" in call.values:
            raise BadInput("bad")
        return call.read([tuple(call.values)])

    async def arun(self, call: Call[Any]) -> Any:
        return self.run(call)

    def load(self, jobs: Iterable[Any]) -> list[str]:
        return [f"id of {job}" for job in jobs]

    async def aload(self, jobs: Iterable[Any]) -> list[str]:
        return self.load(jobs)


class Holdfast:
    def __init__(self) -> None:
        self.carrier = Carrier()


def ask(*values: Any) -> Call[Any]:
    function: Any = None  # a Carrier calls none
    return Call(function, values, lambda rows: rows[0][0])


class Things(Namespace):
    called = "hf.things.list(…)"

    @operation
    def find(self, name: str, *, loud: bool = False) -> Call[Any]:
        """Find a thing."""
        return ask(name.upper() if loud else name)

    afind = twin(find)

    @operation
    def count(self, names: list[str]) -> Generator[Call[Any], Any, list[Any]]:
        """Count these things."""
        found = []
        for name in names:
            try:
                found.append((yield ask(name)))
            except BadInput:
                found.append(None)
        return found

    acount = twin(count)

    @operation
    def fill(self, jobs: Iterable[Any]) -> Generator[Any, Any, tuple[Any, Any]]:
        ids = yield Load(jobs)
        place = yield Blocking(lambda: "shelf")
        return ids, place

    afill = twin(fill)


@pytest.fixture
def things() -> Things:
    holdfast: Any = Holdfast()
    return Things(holdfast)


def test_an_operation_is_written_once_and_offered_twice(things: Things) -> None:
    assert things.find("a", loud=True) == "A"
    assert asyncio.run(things.afind("b")) == "b"
    carrier: Any = things.carrier
    assert carrier.carried == [("A",), ("b",)]


def test_an_operation_may_take_several_calls_and_handle_their_errors(things: Things) -> None:
    assert things.count(["a", "bad", "c"]) == ["a", None, "c"]
    assert asyncio.run(things.acount(["a", "bad", "c"])) == ["a", None, "c"]


def test_an_error_that_an_operation_does_not_handle_is_raised(things: Things) -> None:
    with pytest.raises(BadInput):
        things.find("bad")
    with pytest.raises(BadInput):
        asyncio.run(things.afind("bad"))


def test_a_step_may_load_jobs_or_block(things: Things) -> None:
    assert things.fill(["x"]) == (["id of x"], "shelf")
    assert asyncio.run(things.afill(["x"])) == (["id of x"], "shelf")


def test_an_operation_has_the_name_signature_and_docstring_of_its_method(things: Things) -> None:
    assert (things.find.__name__, things.find.__doc__) == ("find", "Find a thing.")
    assert (things.afind.__name__, things.afind.__qualname__) == ("afind", "Things.afind")
    assert list(inspect.signature(things.find).parameters) == ["name", "loud"]
    assert list(inspect.signature(things.afind).parameters) == ["name", "loud"]
    assert inspect.iscoroutinefunction(things.afind)
    assert Things.find(things, "a") == "a"


def test_an_unknown_option_is_named_with_the_nearest_one(things: Things) -> None:
    with pytest.raises(UnknownOption, match=r"find\(\) has no option 'lous'\. Did you mean 'loud'"):
        things.find("a", lous=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        things.find("a", "b", "c")  # type: ignore[arg-type, call-arg]


def test_a_connection_among_the_arguments_is_answered_with_on(things: Things) -> None:
    with pytest.raises(UnknownOption, match=r"find\(\) has no option 'conn'.*hf\.on\(conn\)"):
        things.find("a", conn="mine")  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match=r"hf\.on\(conn\)"):
        asyncio.run(things.afind("a", conn="mine"))  # type: ignore[call-arg]


def test_a_namespace_that_is_called_names_the_method_to_write(things: Things) -> None:
    with pytest.raises(UnknownMethod, match=r"hf\.things is no function.*Write hf\.things\.list\(…\)"):
        things(limit=5)  # type: ignore[operator]


def test_dead_letters_are_not_replayed_all_by_a_variable_that_was_not_set() -> None:
    holdfast: Any = Holdfast()
    dead = Dead(holdfast)
    with pytest.raises(BadInput, match="everything=True"):
        dead.replay_many(queue=None)
    with pytest.raises(BadInput, match="everything=True"):
        dead.purge_many(queue="")
    dead.purge(uuid4())

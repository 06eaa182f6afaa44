"""Options that had another name in an earlier release."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from holdfast.values.errors import UnknownOption

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse a call that uses an old keyword, and name the new one: `@renamed(amount="limit")`."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        def check(keywords: dict[str, Any]) -> None:
            for old in names.keys() & keywords.keys():
                new = names[old]
                raise UnknownOption(
                    f"{function.__name__}() has no option {old!r}: it is {new} now",
                    hint=f"Write {new}={keywords[old]!r}.",
                    option=old,
                    suggestion=new,
                )

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                check(kwargs)
                return await function(*args, **kwargs)

            return cast("Callable[P, R]", awaited)

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            check(kwargs)
            return function(*args, **kwargs)

        return called

    return mark

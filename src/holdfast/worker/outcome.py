"""Turns a handler's return value into an outcome that can be stored."""

from typing import Any

from holdfast.task import Task
from holdfast.values.errors import BadResult
from holdfast.values.job import Cancel, Done, GiveUp, Outcome, Retry, Snooze


def outcome_of(task: Task[..., Any], value: Any) -> Outcome:
    """Return the outcome that a handler returned, or `Done` with its plain value as the result."""
    match value:
        case Retry() | Snooze() | Cancel() | GiveUp():
            return value
        case Done(result):
            return Done(task.encode_result(result))
        case type() if issubclass(value, (Done, Retry, Snooze, Cancel, GiveUp)):
            raise BadResult(
                f"{task.name}: the handler returned {value.__name__} itself",
                hint=f"Return one: {value.__name__}(…).",
                task=task.name,
            )
        case _:
            return Done(task.encode_result(value))

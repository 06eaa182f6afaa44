"""What a handler returned, as an outcome that can be stored; the same wherever it ran."""

from typing import Any

from holdfast.errors import BadResult
from holdfast.job import Cancel, Done, GiveUp, Outcome, Retry, Snooze
from holdfast.task import Task

# As large as the largest payload. PostgreSQL's own limit would break the connection, at 1 GiB.
RESULT_LIMIT = 64 * 1024 * 1024


def outcome_of(task: Task[..., Any], value: Any) -> Outcome:
    """What a handler returned: an outcome, or a plain value, which is the result of a job well done."""
    match value:
        case Retry() | Snooze() | Cancel() | GiveUp():
            return value
        case Done(result):
            return Done(_encoded(task, result))
        case type() if issubclass(value, (Done, Retry, Snooze, Cancel, GiveUp)):
            raise BadResult(
                f"{task.name}: the handler returned {value.__name__} itself",
                hint=f"Return one: {value.__name__}(…).",
                task=task.name,
            )
        case _:
            return Done(_encoded(task, value))


def _encoded(task: Task[..., Any], value: Any) -> str | None:
    text = task.encode_result(value)
    if text is not None and len(text) > RESULT_LIMIT:
        raise BadResult(
            f"{task.name}: the handler's result has {len(text):,} characters of JSON",
            hint=f"At most {RESULT_LIMIT:,} can be stored; store it elsewhere and return where it is.",
            task=task.name,
        )
    return text

"""Calls about how tasks are retried."""

from datetime import timedelta
from typing import Any, NamedTuple

from holdfast.calls.base import Call, function, nothing, one
from holdfast.values.retry import RetryPolicy

_POLICY = (
    "task text, max_attempts integer, base interval, factor double precision, cap interval, "
    "jitter double precision"
)
_set_retry_policy = function("set_retry_policy", f"{_POLICY}, declared boolean")
_declare_retry_policy = function("declare_retry_policy", _POLICY)
_reset_retry_policy = function("reset_retry_policy", "task text")
_list_retry_policies = function("list_retry_policies")
_retry_delay = function("retry_delay", "task text, attempt integer, queue text")


def set_retry_policy(
    task: str, policy: RetryPolicy | None, *, max_attempts: int | None = None, declared: bool = False
) -> Call[None]:
    """With `declared` it comes from the code, and gives way to what an operator has set."""
    said: tuple[Any, ...] = (max_attempts, None, None, None, None)
    if policy is not None:
        attempts = policy.max_attempts if max_attempts is None else max_attempts
        said = (attempts, policy.base, policy.factor, policy.cap, policy.jitter)
    if declared:
        return _declare_retry_policy(nothing, task, *said)
    return _set_retry_policy(nothing, task, *said, False)


def reset_retry_policy(task: str) -> Call[bool]:
    """Answers whether there was one."""
    return _reset_retry_policy(one, task)


class PolicyRow(NamedTuple):
    """How a task is retried; what is `None` is left to its queue and the default."""

    task: str
    max_attempts: int | None
    base: timedelta | None
    factor: float | None
    cap: timedelta | None
    jitter: float | None
    declared: bool


def list_retry_policies() -> Call[list[PolicyRow]]:
    return _list_retry_policies(lambda rows: [PolicyRow._make(row) for row in rows])


def retry_delay(task: str, attempt: int, queue: str = "default") -> Call[timedelta]:
    return _retry_delay(one, task, attempt, queue)

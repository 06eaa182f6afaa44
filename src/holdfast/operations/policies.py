"""Retry policies that an operator sets for a task: `hf.policies`."""

from datetime import timedelta
from typing import Any, NamedTuple

from holdfast.operations.base import Namespace, operation, twin
from holdfast.values import limits
from holdfast.values.call import Call, function, nothing, one
from holdfast.values.retry import RetryPolicy

_POLICY = (
    "task text, max_attempts integer, base interval, factor double precision, cap interval, "
    "jitter double precision"
)
_set_retry_policy = function("set_retry_policy", f"{_POLICY}, declared boolean")
_declare_retry_policy = function("declare_retry_policy", _POLICY)
_reset_retry_policy = function("reset_retry_policy", "task text")
_list_retry_policies = function("list_retry_policies")


class PolicyRow(NamedTuple):
    """The retry policy of one task. A value of `None` comes from its queue or the default."""

    task: str
    max_attempts: int | None
    base: timedelta | None
    factor: float | None
    cap: timedelta | None
    jitter: float | None
    declared: bool


class Policies(Namespace):
    """The retry policies of the tasks in one database."""

    @operation
    def set(self, task: str, policy: RetryPolicy) -> Call[None]:
        """Set the retry policy of a task. It takes precedence over the policy that the code declares."""
        if not isinstance(policy, RetryPolicy):
            raise limits.refused("policy", policy, "must be a RetryPolicy")
        task = limits.name("task", task)
        return _set_retry_policy(nothing, task, *_values(policy, policy.max_attempts), False)

    aset = twin(set)

    @operation
    def reset(self, task: str) -> Call[bool]:
        """Remove the policy of a task, and return whether there was one."""
        return _reset_retry_policy(one, limits.name("task", task))

    areset = twin(reset)

    @operation
    def list(self) -> Call["list[PolicyRow]"]:
        """Return all policies. A task without one follows its queue and the default."""
        return _list_retry_policies(lambda rows: [PolicyRow._make(row) for row in rows])

    alist = twin(list)


def declare_policy(task: str, policy: RetryPolicy | None, max_attempts: int | None) -> Call[None]:
    """Store the policy that the code declares. It does not change a policy that an operator has set."""
    attempts = max_attempts if policy is None or max_attempts is not None else policy.max_attempts
    return _declare_retry_policy(nothing, task, *_values(policy, attempts))


def _values(policy: RetryPolicy | None, attempts: int | None) -> tuple[Any, ...]:
    if policy is None:
        return (attempts, None, None, None, None)
    return (attempts, policy.base, policy.factor, policy.cap, policy.jitter)

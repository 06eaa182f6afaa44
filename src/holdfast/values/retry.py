"""The retries of a task: declared here, computed in the database."""

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Never

from holdfast.values import limits
from holdfast.values.errors import UnknownOption


@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """Wait `base`, then `factor` times as long after each failure, never longer than `cap`.

    Up to `jitter` (a fraction) is added to each delay at random, so that jobs that failed together are not
    retried together. `base` and `cap` are a `timedelta` or seconds. Only `holdfast.retry_delay(task,
    attempt)` computes delays, so that every language waits equally long.

    >>> RetryPolicy(max_attempts=5, base=10).base
    datetime.timedelta(seconds=10)
    """

    max_attempts: int
    base: timedelta
    factor: float
    cap: timedelta
    jitter: float

    def __init__(
        self,
        *,
        max_attempts: int = 3,
        base: timedelta | float = timedelta(minutes=1),
        factor: float = 2,
        cap: timedelta | float = timedelta(hours=1),
        jitter: float = 0.1,
        **unknown: Never,
    ) -> None:
        for option in unknown:
            known = [field.name for field in fields(type(self))]
            raise UnknownOption.among(option, known, owner="a RetryPolicy")
        object.__setattr__(self, "max_attempts", limits.max_attempts(max_attempts))
        object.__setattr__(self, "base", limits.duration("base", base))
        object.__setattr__(self, "factor", limits.number("factor", factor, 1, 100))
        object.__setattr__(self, "cap", limits.duration("cap", cap))
        object.__setattr__(self, "jitter", limits.number("jitter", jitter, 0, 1))

"""A retry policy is a checked declaration; the database computes with it."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast.values.errors import BadValue, UnknownOption
from holdfast.values.retry import RetryPolicy


def test_the_defaults_are_three_attempts_from_a_minute_to_an_hour() -> None:
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.factor, policy.jitter) == (3, 2.0, 0.1)
    assert (policy.base, policy.cap) == (timedelta(minutes=1), timedelta(hours=1))


def test_seconds_do_as_well_as_a_timedelta() -> None:
    assert RetryPolicy(base=10, cap=60) == RetryPolicy(base=timedelta(seconds=10), cap=timedelta(minutes=1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0), ("max_attempts", 32768), ("max_attempts", 2.5), ("max_attempts", True),
        ("base", -1), ("base", "1 min"), ("cap", timedelta(days=-1)), ("cap", float("inf")),
        ("factor", 0.5), ("factor", 101), ("factor", float("nan")), ("factor", "2"),
        ("jitter", -0.1), ("jitter", 1.1), ("jitter", False),
    ],
)  # fmt: skip
def test_a_value_outside_its_limits_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadValue, match=f"{field} .*: must be") as caught:
        RetryPolicy(**{field: value})
    assert caught.value.field == field


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UnknownOption, match=r"has no option 'attempts'\. Did you mean 'max_attempts'\?"):
        RetryPolicy(attempts=3)  # type: ignore[arg-type]


def test_a_policy_does_not_change() -> None:
    with pytest.raises(AttributeError):
        RetryPolicy().base = timedelta(0)  # type: ignore[misc]

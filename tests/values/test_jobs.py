"""Jobs and outcomes are frozen values that check what they are given and hide what may be secret."""

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from rich.pretty import pretty_repr

from holdfast.values.errors import BadValue
from holdfast.values.job import Cancel, Done, JobSnapshot, JobState, NewJob, Priority, Retry, Snooze, Stop


def snapshot(**changes: Any) -> JobSnapshot:
    fields = {
        "id": uuid4(), "queue": "mail", "task": "mail.send", "payload": {"card": {"$secret": "4111"}},
        "priority": 100, "state": JobState.PENDING, "attempt": 0, "max_attempts": 3,
        "created_at": datetime.now(UTC),
    }  # fmt: skip
    return JobSnapshot(**{**fields, **changes})


def test_a_new_job_leaves_what_is_not_said_to_the_database() -> None:
    job = NewJob(task="mail.send")
    assert (job.payload, job.queue, job.priority) == ("{}", "default", 100)
    assert (job.run_at, job.delay, job.max_attempts, job.id, job.headers) == (None,) * 5


def test_priorities_are_named_and_ordered() -> None:
    assert Priority.USER > Priority.SYSTEM > Priority.BACKFILL
    assert type(NewJob(task="t").priority) is int


def test_payloads_are_not_shown_in_a_repr() -> None:
    job = NewJob(task="mail.send", payload='{"card":{"$secret":"4111"}}', headers='{"token":"4111"}')
    for shown in (repr(job), pretty_repr(job), repr(snapshot()), pretty_repr(snapshot())):
        assert "4111" not in shown
        assert "mail.send" in shown


@pytest.mark.parametrize("value", [NewJob(task="t"), snapshot(), Done(1), Retry(5), Snooze(5), Cancel("no")])
def test_values_do_not_change(value: Any) -> None:
    name = next(iter(getattr(type(value), "__match_args__", ())), "id")
    with pytest.raises(AttributeError):
        setattr(value, name, "other")
    assert not hasattr(value, "__dict__")


def test_a_job_has_ended_in_three_states() -> None:
    assert {state for state in JobState if state.final} == {
        JobState.COMPLETED,
        JobState.DEAD,
        JobState.CANCELLED,
    }


def test_a_delay_is_a_timedelta_or_seconds() -> None:
    assert Retry(after=90).after == timedelta(seconds=90)
    assert Retry().after is None
    assert Snooze(timedelta(hours=1)).delay == timedelta(hours=1)
    assert Snooze(0.5).delay == timedelta(milliseconds=500)


@pytest.mark.parametrize(
    "delay", [-1, timedelta(seconds=-1), float("nan"), float("inf"), 1e300, "5", True, None]
)
def test_an_absurd_delay_is_refused_by_name(delay: Any) -> None:
    with pytest.raises(BadValue, match=r"delay .*: must be a timedelta or a number of seconds") as caught:
        Snooze(delay)
    assert caught.value.field == "delay"


def test_outcomes_are_matched_by_position() -> None:
    match Retry(5, "later"):
        case Retry(after, error):
            assert (after, error) == (timedelta(seconds=5), "later")


def test_stop_carries_its_outcome_also_between_processes() -> None:
    assert pickle.loads(pickle.dumps(Stop(Cancel("gone")))).outcome == Cancel("gone")

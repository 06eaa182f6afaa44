"""Checks in the database whether a job is enqueued. Only live jobs count.

    assert_enqueued(hf, welcome, args={"user_id": 7}, delay=3600)
    refute_enqueued(hf, "mail.welcome", queue="bulk")

Only the connection of an uncommitted transaction sees its jobs: pass it as `conn`.
"""

from dataclasses import replace
from typing import Any, Unpack

from holdfast.client import Holdfast
from holdfast.operations.run_steps import Carrier, Steps, arun_steps, run_steps
from holdfast.operations.snapshots import list_jobs, stored_payload
from holdfast.task import Task
from holdfast.testing.draining import ALL
from holdfast.testing.expected_job import ExpectedJob, Wanted, listed
from holdfast.values import limits
from holdfast.values.job import JobSnapshot, JobState
from holdfast.values.secret import MASK

# In the order of a job's life, so that a job that changes its state meanwhile is seen twice, not missed.
LIVE = (JobState.SCHEDULED, JobState.PENDING, JobState.CLAIMED, JobState.RUNNING)


def assert_enqueued(
    holdfast: Holdfast,
    task: Task[..., Any] | str,
    *,
    count: int | None = None,
    conn: Any = None,
    **wanted: Unpack[Wanted],
) -> list[JobSnapshot]:
    """Return the live jobs that match, oldest first: at least one, or exactly `count`.

    `args` are some of the task's arguments. `delay` counts from the enqueue. `delay` and `run_at` are
    compared to the second. Raises an `AssertionError` that lists the nearest jobs.
    """
    expected = ExpectedJob.of("assert_enqueued", task, wanted)
    return run_steps(_asserting(expected, count), _carrier(holdfast, conn))


async def aassert_enqueued(
    holdfast: Holdfast,
    task: Task[..., Any] | str,
    *,
    count: int | None = None,
    conn: Any = None,
    **wanted: Unpack[Wanted],
) -> list[JobSnapshot]:
    """The async twin of `assert_enqueued`; `conn` is an async one."""
    expected = ExpectedJob.of("aassert_enqueued", task, wanted)
    return await arun_steps(_asserting(expected, count), _carrier(holdfast, conn))


def refute_enqueued(
    holdfast: Holdfast, task: Task[..., Any] | str, *, conn: Any = None, **wanted: Unpack[Wanted]
) -> None:
    """Raise an `AssertionError` that lists the live jobs that match, if there are any."""
    expected = ExpectedJob.of("refute_enqueued", task, wanted)
    run_steps(_refuting(expected), _carrier(holdfast, conn))


async def arefute_enqueued(
    holdfast: Holdfast, task: Task[..., Any] | str, *, conn: Any = None, **wanted: Unpack[Wanted]
) -> None:
    """The async twin of `refute_enqueued`."""
    expected = ExpectedJob.of("arefute_enqueued", task, wanted)
    await arun_steps(_refuting(expected), _carrier(holdfast, conn))


def _carrier(holdfast: Holdfast, conn: Any) -> Carrier:
    return holdfast.carrier if conn is None else holdfast.on(conn).carrier


def live(task: str | None = None) -> Steps[list[JobSnapshot]]:
    """Return every job that has not ended, oldest first."""
    found = {}
    for state in LIVE:
        for job in (yield list_jobs(task=task, state=state, amount=ALL)):
            hidden = MASK in repr(job.payload)
            found[job.id] = replace(job, payload=(yield stored_payload(job.id))) if hidden else job
    return sorted(found.values(), key=lambda job: (job.created_at, job.id))


def _matching(expected: ExpectedJob) -> Steps[list[JobSnapshot]]:
    return [job for job in (yield from live(expected.task)) if not expected.differences(job)]


def _asserting(expected: ExpectedJob, count: int | None) -> Steps[list[JobSnapshot]]:
    if count is not None:
        limits.integer("count", count, range(ALL))
    matching = yield from _matching(expected)
    found, wanted = len(matching), "a job" if count is None else f"{count} job{'s' if count != 1 else ''}"
    if found == count or (count is None and matching):
        return matching
    if count is not None and found > count:
        raise AssertionError(f"expected {wanted} {expected}; found {found}:\n{listed(matching)}")
    there = yield from _surroundings(expected)
    raise AssertionError(f"expected {wanted} {expected}; found {found or 'none'}.\n{there}")


def _refuting(expected: ExpectedJob) -> Steps[None]:
    matching = yield from _matching(expected)
    if matching:
        raise AssertionError(f"expected no job {expected}; found {len(matching)}:\n{listed(matching)}")


def _surroundings(expected: ExpectedJob) -> Steps[str]:
    """Return a text that lists the jobs that exist instead of the expected one."""
    jobs = yield from live()
    near = sorted(jobs, key=expected.distance)
    said = (
        f"The nearest of the live jobs ({len(jobs)}):\n{listed(near, expected)}"
        if jobs
        else "No job is live."
    )
    ended = [job for job in (yield list_jobs(task=expected.task, amount=100)) if job.state.final]
    if ended:
        states = ", ".join(sorted({job.state.value for job in ended}))
        said += f"\nOf {expected.task}, some have ended ({states}) and are not enqueued any more."
    return said

"""Calls that wait for the end of jobs."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.calls.base import Call, function, nothing
from holdfast.values import arrays

_await_jobs = function("await_jobs", "ids uuid[], channel text")
_await_no_more = function("await_no_more", "ids uuid[], channel text")
_ends = function("ends", "ids uuid[]", "id::text, task, state, result::text, error")


class End(NamedTuple):
    """How a job has ended; `result` is JSON text, `state` is `None` where there is no such job."""

    id: str
    task: str | None
    state: str | None
    result: str | None
    error: str | None


def await_jobs(ids: Sequence[str], channel: str) -> Call[None]:
    return _await_jobs.plain(nothing, arrays.words(ids), channel)


def await_no_more(ids: Sequence[str], channel: str) -> Call[None]:
    return _await_no_more.plain(nothing, arrays.words(ids), channel)


def ends(ids: Sequence[str]) -> Call[list[End]]:
    """Answers for those that have ended."""
    return _ends.plain(lambda rows: [End._make(row) for row in rows], arrays.words(ids))

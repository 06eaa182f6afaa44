"""Nothing is done to all jobs by an empty filter, and `limit` is the word for how many."""

import asyncio
from typing import Any

import pytest

from holdfast import BadValue, Holdfast
from holdfast.values.errors import BadInput
from tests.fixtures import Ask

EMPTY = [{}, {"queue": None}, {"queue": "", "task": None}]


@pytest.mark.parametrize("filters", EMPTY)
def test_an_empty_filter_is_refused(hf: Holdfast, filters: dict[str, Any]) -> None:
    job, dead = hf.enqueue("a"), hf.enqueue("b")
    dead.give_up()
    for verb in (hf.jobs.cancel_matching, hf.dead.replay_many, hf.dead.purge_many):
        with pytest.raises(BadInput, match="everything=True"):
            verb(**filters)
    for averb in (hf.jobs.acancel_matching, hf.dead.areplay_many, hf.dead.apurge_many):
        with pytest.raises(BadInput, match="everything=True"):
            asyncio.run(averb(**filters))
    assert (job.refresh().state, dead.refresh().state) == ("pending", "dead")


def test_everything_is_taken_if_that_is_said(hf: Holdfast) -> None:
    jobs = [hf.enqueue("a", queue=queue) for queue in ("mail", "post")]
    assert hf.jobs.cancel_matching(state="scheduled", everything=True) == (0, 0)
    assert hf.jobs.cancel_matching(everything=True) == (2, 0)
    assert {job.refresh().state for job in jobs} == {"cancelled"}


@pytest.mark.parametrize("verb", ["cancel_matching", "replay_many", "purge_many"])
@pytest.mark.parametrize("arguments", ["", "queue => ''"])
def test_sql_refuses_an_empty_filter_too(hf: Holdfast, ask: Ask, verb: str, arguments: str) -> None:
    hf.enqueue("b").give_up()
    hf.enqueue("a")
    with pytest.raises(Exception, match="say everything => true"):
        ask(f"select holdfast.{verb}({arguments})")
    assert {job.state for job in hf.jobs.list()} == {"pending", "dead"}
    ask(f"select holdfast.{verb}(everything => true)")
    assert [job.state for job in hf.jobs.list()] != ["pending", "dead"]


def test_a_limit_bounds_what_is_listed_and_what_is_done(hf: Holdfast) -> None:
    jobs = [hf.enqueue("a") for _ in range(3)]
    assert len(hf.jobs.list(limit=2)) == 2
    assert len(hf.audit.list(limit=1)) <= 1
    for job in jobs:
        job.give_up()
    assert len(hf.dead.list(limit=2)) == 2
    assert hf.dead.replay_many(task="a", limit=1) == 1
    assert hf.dead.purge_many(task="a", limit=1) == 1
    hf.schedules.add("beat", "a", every=60)
    assert len(hf.schedules.upcoming("beat", limit=2)) == 2
    with pytest.raises(BadValue, match="limit"):
        hf.jobs.list(limit=0)

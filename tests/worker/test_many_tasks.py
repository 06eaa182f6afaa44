"""A worker of very many tasks looks for few of them most of the time, and misses nothing."""

import asyncio

import pytest

from holdfast import Holdfast, JobState, calls
from holdfast.calls import Claimed
from holdfast.worker import claimer
from holdfast.worker.claimer import Lookout

NAMES = [f"task-{number}" for number in range(100)]


@pytest.fixture
def tasks(hf: Holdfast):
    async def nap() -> None:
        await asyncio.sleep(0.001)

    return [hf.task(name=name)(nap) for name in NAMES]


@pytest.fixture
def looks(monkeypatch):
    """For how many tasks each claim has asked."""
    looks: list[int] = []
    claim = calls.claim

    def noted(**options):
        looks.append(len(options["tasks"]))
        return claim(**options)

    monkeypatch.setattr(calls, "claim", noted)
    return looks


@pytest.fixture
def lookout(monkeypatch):
    monkeypatch.setattr(claimer, "FULL_LOOK_SECONDS", 60)
    return Lookout(NAMES)


def jobs(*tasks: str) -> list[Claimed]:
    return [Claimed("lease", "id", task, "{}", 1, 3, "default", 100, False, 0, None) for task in tasks]


def test_every_task_is_served_to_the_end(hf: Holdfast, tasks, drain, counts, looks, monkeypatch):
    monkeypatch.setattr(claimer, "FULL_LOOK_SECONDS", 60)
    hf.enqueue_many(tasks[0].call() for _ in range(2000))
    hf.enqueue_many(task.call() for task in tasks for _ in range(5))
    drain(concurrency=50)
    assert counts() == {"completed": 2500}
    assert min(looks) < 100
    assert looks[-1] == 100


def test_urgent_work_of_another_task_is_found_while_one_is_busy(
    hf: Holdfast, tasks, work, until, looks, counts
):
    hf.enqueue_many(tasks[0].call() for _ in range(20_000))
    work(concurrency=5)
    until(lambda: 1 in looks)
    urgent = tasks[99].options(priority=200).enqueue()
    until(lambda: urgent.refresh().state is JobState.COMPLETED)
    assert counts()["pending"] > 5000


def test_those_that_had_more_than_was_taken_are_looked_for_alone(lookout):
    assert lookout.tasks() == NAMES
    lookout.found(jobs("task-1", "task-2", "task-1"), 3)
    for _ in range(3):
        assert sorted(lookout.tasks()) == ["task-1", "task-2"]
        assert not lookout.full
        lookout.found(jobs("task-1", "task-1", "task-1"), 3)


def test_less_than_was_asked_for_leads_to_a_full_look(lookout):
    lookout.tasks()
    lookout.found(jobs("task-1", "task-1"), 2)
    lookout.tasks()
    lookout.found(jobs("task-1"), 2)
    assert lookout.tasks() == NAMES
    assert lookout.full


def test_all_are_looked_for_now_and_then(lookout, monkeypatch):
    lookout.tasks()
    lookout.found(jobs("task-1"), 1)
    assert lookout.tasks() == ["task-1"]
    monkeypatch.setattr(claimer, "FULL_LOOK_SECONDS", 0)
    assert lookout.tasks() == NAMES


def test_few_tasks_are_always_looked_for_together():
    lookout = Lookout(NAMES[:64])
    lookout.tasks()
    lookout.found(jobs("task-1"), 1)
    assert lookout.tasks() == NAMES[:64]

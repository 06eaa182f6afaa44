"""A worker of very many tasks serves them by age and priority, as one of few does."""

import asyncio

import pytest

from holdfast import Holdfast, JobState
from tests.fixtures import AsyncTask, Counts, Drain, StartWorker, Until

NAMES = [f"task-{number}" for number in range(100)]


@pytest.fixture
def order() -> list[str]:
    """The tasks of the jobs that were run, as they began."""
    return []


@pytest.fixture
def tasks(hf: Holdfast, order: list[str]) -> list[AsyncTask[None]]:
    def declared(name: str) -> AsyncTask[None]:
        async def nap() -> None:
            order.append(name)
            await asyncio.sleep(0.001)

        return hf.task(name=name)(nap)

    return [declared(name) for name in NAMES]


def test_every_task_is_served_by_the_age_of_its_jobs(
    hf: Holdfast, tasks: list[AsyncTask[None]], drain: Drain, counts: Counts, order: list[str]
) -> None:
    hf.enqueue_many(tasks[0].call() for _ in range(2000))
    hf.enqueue_many(task.call() for task in tasks[1:] for _ in range(5))
    hf.enqueue_many(tasks[0].call() for _ in range(2000))
    drain(concurrency=1)
    assert counts() == {"completed": 4495}
    assert order == [NAMES[0]] * 2000 + [name for name in NAMES[1:] for _ in range(5)] + [NAMES[0]] * 2000


def test_urgent_work_of_another_task_is_found_while_one_is_busy(
    hf: Holdfast,
    tasks: list[AsyncTask[None]],
    work: StartWorker,
    until: Until,
    counts: Counts,
    order: list[str],
) -> None:
    hf.enqueue_many(tasks[0].call() for _ in range(20_000))
    work(concurrency=5)
    until(lambda: len(order) > 100)
    urgent = tasks[99].options(priority=200).enqueue()
    until(lambda: urgent.refresh().state is JobState.COMPLETED)
    assert counts()["pending"] > 5000

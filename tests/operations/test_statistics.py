"""Statistics and health from Python."""

import asyncio

import pytest

from holdfast import BadValue, Holdfast
from tests.fixtures import StartWorker, Until


def test_a_worker_keeps_the_statistics_up_to_date(hf: Holdfast, work: StartWorker, until: Until) -> None:
    @hf.task(name="nothing", queue="mail")
    async def nothing() -> None: ...

    hf.enqueue_many(nothing.call() for _ in range(20))
    work()
    until(lambda: [row.hour.completed for row in hf.stats.recent()] == [20])
    (queue,) = hf.stats.recent(queue="mail")
    (task,) = hf.stats.recent(by="task")
    assert (queue.queue, queue.task, task.task) == ("mail", None, "nothing")
    assert (queue.waiting, queue.running, queue.dead, queue.estimated) == (0, 0, 0, False)
    assert queue.hour.wait.p50 is not None
    assert (queue.hour.wait, queue.hour.run) == (task.hour.wait, task.hour.run)
    assert sum(queue.minutes) == 20
    (mail,) = hf.health.check()
    assert (mail.queue, mail.status, mail.workers, mail.attempts) == ("mail", "OK", 1, 20)


def test_they_have_async_twins(hf: Holdfast) -> None:
    async def ask() -> list[int]:
        await hf.aenqueue("a")
        (recent,), (healthy,) = await hf.stats.arecent(), await hf.health.acheck("default")
        return [recent.waiting, healthy.waiting]

    assert asyncio.run(ask()) == [1, 1]


def test_a_wrong_word_is_refused(hf: Holdfast) -> None:
    with pytest.raises(BadValue, match="by 'worker': must be 'queue' or 'task'"):
        hf.stats.recent(by="worker")  # type: ignore[arg-type]

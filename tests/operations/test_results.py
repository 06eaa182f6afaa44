"""Waiting for a result: woken when it is there, by one connection for all who wait."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import BadValue, Cancel, Holdfast, Job, JobCancelled, JobFailed, JobNotFound
from holdfast.operations import waiting
from tests.fixtures import Ask, AsyncTask, StartWorker, Until
from tests.waiting import Told

LISTENERS = (
    "select count(*) from pg_stat_activity where datname = current_database() and query like 'listen%%wait%%'"
)


# Forks while the lock is held, as by another thread.
IN_A_CHILD = """
import os, signal, sys
from holdfast import Holdfast

job = Holdfast().job(sys.argv[1])
with job.holdfast.resources.waiting._lock:
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        signal.alarm(10)
        print(job.result(timeout=5), flush=True)
        os._exit(0)
"""


@dataclass
class Sum:
    total: int


@pytest.fixture
def add(hf: Holdfast) -> AsyncTask[Sum]:
    @hf.task(name="add")
    async def add(a: int, b: int) -> Sum:
        return Sum(a + b)

    return add


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks again by himself: who is not told waits until the test ends."""
    monkeypatch.setattr(waiting, "CHECK_SECONDS", 600.0)


def test_a_result_is_what_the_handler_returned(hf: Holdfast, add: AsyncTask[Sum], work: StartWorker) -> None:
    work()
    assert add.enqueue(2, 3).result(timeout=20) == Sum(5)
    assert asyncio.run(add.enqueue(2, 3).aresult(timeout=20)) == Sum(5)


def test_a_result_that_is_there_already_is_given_at_once(hf: Holdfast, add: AsyncTask[Sum]) -> None:
    job = add.enqueue(2, 3)
    hf.worker().run(drain=True)
    assert job.result(timeout=0) == job.result() == Sum(5)
    assert asyncio.run(job.aresult(timeout=0)) == Sum(5)
    assert hf.job(job.id).result(timedelta(seconds=20)) == Sum(5)


def test_a_task_that_is_not_known_here_has_its_result_as_it_is_stored(
    hf: Holdfast, add: AsyncTask[Sum], holdfast_dsn: str
) -> None:
    job = add.enqueue(2, 3)
    hf.worker().run(drain=True)
    with Holdfast(holdfast_dsn) as other:
        assert other.job(job.id).result(timeout=20) == {"total": 5}


def test_a_job_without_a_result_says_why(hf: Holdfast) -> None:
    @hf.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    @hf.task(name="off")
    async def off() -> Cancel:
        return Cancel("no need")

    dead, unknown = fail.enqueue(), hf.job(uuid4())
    cancelled: Job[Any] = off.enqueue()
    hf.worker().run(drain=True)
    with pytest.raises(JobFailed, match="ValueError: no") as failed:
        dead.result(timeout=20)
    assert (failed.value.id, failed.value.error) == (dead.id, "ValueError: no")
    with pytest.raises(JobCancelled) as off_error:
        cancelled.result(timeout=20)
    assert (off_error.value.id, off_error.value.reason) == (cancelled.id, "no need")
    with pytest.raises(JobNotFound):
        unknown.result(timeout=20)
    with pytest.raises(JobFailed):
        asyncio.run(dead.aresult(timeout=20))


def test_who_has_waited_for_long_enough_is_told(
    hf: Holdfast, add: AsyncTask[Sum], ask: Ask, until: Until
) -> None:
    job = add.enqueue(2, 3)
    with pytest.raises(TimeoutError, match=rf"{job.id} has not ended within 0\.1 s\. `holdfast why ID` says"):
        job.result(timeout=0.1)
    state = r"has not ended within 0\.3 s; its state is pending\. `holdfast why ID` says why\."
    with pytest.raises(TimeoutError, match=state):
        job.result(timeout=0.3)
    with pytest.raises(TimeoutError, match=state):
        asyncio.run(job.aresult(timeout=0.3))
    with pytest.raises(TimeoutError):
        asyncio.run(job.aresult(timeout=0.1))
    # What was noted of it goes when the next one comes.
    hf.worker().run(drain=True)
    assert job.result(timeout=20) == Sum(5)
    until(lambda: not ask("select from holdfast.waiter"))


def test_a_timeout_is_a_time(add: AsyncTask[Sum]) -> None:
    for timeout in (-1, "soon", float("nan")):
        with pytest.raises(BadValue) as error:
            add.enqueue(2, 3).result(timeout=timeout)  # type: ignore[arg-type]
        assert error.value.field == "timeout"


def test_many_are_gathered_in_their_order(hf: Holdfast, add: AsyncTask[Sum], work: StartWorker) -> None:
    work()
    jobs = [add.enqueue(n, 0) for n in range(50)]
    assert hf.jobs.gather(jobs, timeout=20) == [Sum(n) for n in range(50)]
    assert asyncio.run(hf.jobs.agather(jobs, timeout=20)) == [Sum(n) for n in range(50)]
    assert hf.jobs.gather([]) == []
    assert hf.jobs.gather([jobs[0], jobs[0]], timeout=20) == [Sum(0), Sum(0)]


def test_gather_raises_the_first_failure_or_returns_all(
    hf: Holdfast, add: AsyncTask[Sum], work: StartWorker
) -> None:
    @hf.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    waits = add.options(delay=3600).enqueue(1, 1)
    failing, well = fail.enqueue(), add.enqueue(2, 3)
    work()
    with pytest.raises(JobFailed):
        hf.jobs.gather([waits, failing, well], timeout=20)
    late, failed, right = hf.jobs.gather([waits, failing, well], timeout=1, return_exceptions=True)
    assert (type(late), type(failed), right) == (TimeoutError, JobFailed, Sum(5))
    with pytest.raises(JobFailed):
        asyncio.run(hf.jobs.agather([waits, failing, well], timeout=20))
    with pytest.raises(BadValue, match=r"hf\.job"):
        hf.jobs.gather([well.id])  # type: ignore[arg-type]
    with pytest.raises(BadValue, match=r"\[job\]"):
        hf.jobs.gather(well)  # type: ignore[call-overload]


def test_a_thousand_wait_over_one_connection_and_all_are_woken(
    hf: Holdfast,
    add: AsyncTask[Sum],
    work: StartWorker,
    ask: Ask,
    until: Until,
    seldom: None,
) -> None:
    jobs = hf.enqueue_many(add.call(n, 1) for n in range(1000))
    results: dict[int, Sum] = {}

    async def waiters() -> None:
        async def one(number: int) -> None:
            results[number] = await jobs[number].aresult(timeout=60)

        await asyncio.gather(*(one(number) for number in range(500)))

    threads = [threading.Thread(target=asyncio.run, args=(waiters(),))]
    threads += [
        threading.Thread(target=lambda n=n: results.__setitem__(n, jobs[n].result(timeout=60)))
        for n in range(500, 1000)
    ]
    for thread in threads:
        thread.start()
    until(lambda: ask("select count(*) from holdfast.waiter") == [(1000,)])
    assert ask(LISTENERS) == [(1,)]
    begun = time.monotonic()
    work()
    for thread in threads:
        thread.join()
    print(f"\n1,000 waiters woken within {time.monotonic() - begun:.2f} s of the worker's start")  # noqa: T201
    assert results == {n: Sum(n + 1) for n in range(1000)}
    until(lambda: not ask("select from holdfast.waiter"))


@pytest.mark.parametrize(
    ("again", "look"),
    [((), 0.2), (tuple(0.2 * n for n in range(300)), 600.0)],
    ids=["by a look at all", "by a look at what is new"],
)
def test_an_end_that_told_nobody_is_found(
    hf: Holdfast,
    add: AsyncTask[Sum],
    ask: Ask,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    again: tuple[Any, ...],
    look: float,
) -> None:
    monkeypatch.setattr(waiting, "RECHECK_SECONDS", again)
    monkeypatch.setattr(waiting, "CHECK_SECONDS", look)
    job = add.enqueue(2, 3)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(job.result(timeout=60)))
    thread.start()
    until(lambda: ask("select from holdfast.waiter"))
    ask("delete from holdfast.waiter")  # as if its end had been written before the note was seen
    hf.worker().run(drain=True)
    thread.join()
    assert found == [Sum(5)]


def test_a_lost_connection_is_made_again(
    hf: Holdfast, add: AsyncTask[Sum], ask: Ask, until: Until, seldom: None, told: Told
) -> None:
    job = add.enqueue(2, 3)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(job.result(timeout=60)))
    thread.start()
    until(lambda: ask("select from holdfast.waiter"))
    ask(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() "
        "and (query like 'listen%%wait%%' or application_name = 'holdfast waiting')"
    )
    told.wait_for("waiting.lost")
    until(lambda: ask(LISTENERS) == [(1,)])
    hf.worker().run(drain=True)
    thread.join()
    assert found == [Sum(5)]


def test_a_wait_that_could_not_be_noted_is_noted_again(
    hf: Holdfast,
    add: AsyncTask[Sum],
    ask: Ask,
    until: Until,
    seldom: None,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "RECHECK_SECONDS", ())
    jobs = [add.enqueue(n, 1) for n in range(2)]
    found: list[Any] = []
    threads = [threading.Thread(target=lambda job=job: found.append(job.result(timeout=60))) for job in jobs]
    threads[0].start()
    # Only the connection that notes waits is lost, not the one that listens.
    noting = (
        "from pg_stat_activity where datname = current_database() and application_name = 'holdfast waiting'"
    )
    until(lambda: ask("select from holdfast.waiter"))
    until(lambda: ask(f"select {noting} and state = 'idle' and query like '%%holdfast.ends(%%'"))
    ask(f"select pg_terminate_backend(pid, 5000) {noting}")
    threads[1].start()
    told.wait_for("waiting.failed")
    until(lambda: ask("select count(*) from holdfast.waiter") == [(2,)])
    hf.worker().run(drain=True)
    for thread in threads:
        thread.join()
    assert sorted(found, key=lambda found: found.total) == [Sum(1), Sum(2)]
    assert not told.named("waiting.lost")


def test_a_wait_that_is_given_up_during_a_question_leaves_no_note(
    hf: Holdfast,
    add: AsyncTask[Sum],
    ask: Ask,
    until: Until,
    seldom: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = add.enqueue(2, 3)
    hf.jobs.gather([job], timeout=0.3, return_exceptions=True)
    until(lambda: ask(LISTENERS) == [(1,)])
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 0.1)
    with psycopg.connect(hf.dsn) as other:
        other.execute("lock table holdfast.dead_letter")  # `ends` waits for it
        (late,) = hf.jobs.gather([job], timeout=0.5, return_exceptions=True)
        assert isinstance(late, TimeoutError)
        assert ask("select job_id from holdfast.waiter") == [(job.id,)]
    until(lambda: not ask("select from holdfast.waiter"))


def test_a_wait_that_is_given_up_before_it_is_noted_leaves_no_note(
    hf: Holdfast, add: AsyncTask[Sum], ask: Ask, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "BATCH", 1)
    blocked = "select from pg_locks where not granted and relation = 'holdfast.waiter'::regclass"
    first, *others = [add.enqueue(n, 1) for n in range(3)]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(first.result(timeout=60)))
    with psycopg.connect(hf.dsn) as other:
        other.execute("lock table holdfast.waiter")  # `await_jobs` waits for it
        thread.start()
        until(lambda: ask(blocked))
        hf.jobs.gather(others, timeout=0.3, return_exceptions=True)
    until(lambda: ask("select job_id from holdfast.waiter") == [(first.id,)])
    hf.worker().run(drain=True)
    thread.join()
    assert found == [Sum(1)]


def test_a_child_of_a_fork_waits_even_if_another_thread_held_the_lock(
    hf: Holdfast, add: AsyncTask[Sum]
) -> None:
    job = add.enqueue(2, 3)
    hf.worker().run(drain=True)
    forked = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD, str(job.id)],
        env={**os.environ, "HOLDFAST_DSN": hf.dsn},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert forked.stdout == "{'total': 5}\n"


def test_without_notification_results_are_polled_for(
    holdfast_dsn: str, hf: Holdfast, add: AsyncTask[Sum], work: StartWorker
) -> None:
    work()
    with Holdfast(holdfast_dsn, transaction_pooling=True) as pooled:
        assert pooled.job(add.enqueue(2, 3).id).result(timeout=20) == {"total": 5}


def test_whoever_waits_when_all_is_closed_is_told(
    hf: Holdfast, add: AsyncTask[Sum], until: Until, ask: Ask
) -> None:
    job = add.enqueue(2, 3)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            job.result()
        except Exception as error:  # noqa: BLE001 - looked at below
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: ask("select from holdfast.waiter"))
    hf.close()
    thread.join()
    assert "closed" in str(raised[0])

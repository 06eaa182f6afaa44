"""What the front door refuses, and what it says then."""

import asyncio
import multiprocessing
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from holdfast import BadValue, Holdfast, HoldfastError, JobNotFound
from tests.fixtures import Drain
from tests.waiting import Told


def test_an_empty_dsn_is_refused_and_not_taken_for_the_embedded_server() -> None:
    for dsn in ("", "  ", 3):
        with pytest.raises(BadValue, match=r"dsn .* must be a connection string"):
            Holdfast(dsn)  # type: ignore[arg-type]


def test_only_calls_of_tasks_are_enqueued(hf: Holdfast) -> None:
    task = hf.task(name="mail")(lambda: None)
    with pytest.raises(BadValue, match=r"task\.call\(…\)"):
        hf.enqueue_many([task])  # type: ignore[list-item]
    with pytest.raises(BadValue, match=r"must be a list of task calls.*\[task\.call\(…\)"):
        hf.enqueue_many(task.call())  # type: ignore[arg-type]
    with pytest.raises(BadValue, match=r"must be the name of a task.*task\.enqueue\(…\)"):
        hf.enqueue(task)  # type: ignore[arg-type]
    assert hf.jobs.list() == []


def test_a_task_is_made_of_a_function(hf: Holdfast) -> None:
    with pytest.raises(BadValue, match=r"must be a function.*name="):
        hf.task("mail")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "jobs",
    [
        lambda hf, **which: hf.jobs.list(**which),
        lambda hf, **which: asyncio.run(hf.jobs.alist(**which)),
    ],
)
def test_an_unknown_state_and_an_absurd_limit_are_named(hf: Holdfast, jobs: Callable[..., Any]) -> None:
    with pytest.raises(BadValue, match=r"state 'ded'.*Did you mean 'dead'"):
        jobs(hf, state="ded")
    for limit in (-1, 0, 100_001, True, "5"):
        with pytest.raises(BadValue, match=f"limit {limit!r}: must be an integer from 1 to 100000"):
            jobs(hf, limit=limit)
    assert jobs(hf, limit=1) == []


def test_one_id_is_not_a_list_of_ids_and_a_number_no_policy(hf: Holdfast) -> None:
    for one in (uuid4(), str(uuid4())):
        with pytest.raises(BadValue, match="must be a list of ids"):
            hf.jobs.cancel_many(one)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="must be a list of ids"):
        hf.jobs.cancel_many(hf.enqueue("mail"))  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="policy 3: must be a RetryPolicy"):
        hf.policies.set("mail.send", 3)  # type: ignore[arg-type]
    with pytest.raises(JobNotFound, match="Check the id"):
        hf.job(uuid4()).refresh()


def test_a_call_takes_no_further_payload_and_options(hf: Holdfast) -> None:
    call = hf.task(name="mail")(lambda: None).call()
    with pytest.raises(BadValue, match=r"payload 3: is part of the call already"):
        hf.enqueue(call, 3)
    with pytest.raises(BadValue, match=r"queue 'post': cannot be given with a call.*task\.options\(…\)"):
        hf.enqueue(call, queue="post")
    assert hf.jobs.list() == []


def test_a_change_of_settings_names_one(hf: Holdfast) -> None:
    with pytest.raises(BadValue, match=r"settings .*: must have at least one.*max_attempts=5"):
        hf.settings.configure("mail")


def test_a_timeout_of_recovery_may_be_in_seconds(hf: Holdfast) -> None:
    assert hf.workers.recover(60) == 0
    with pytest.raises(BadValue, match=r"timeout -1: .* this one is negative"):
        hf.workers.recover(-1)


def test_queues_are_a_list_of_names(hf: Holdfast) -> None:
    with pytest.raises(BadValue, match="queues 'mail': must be a list"):
        hf.worker(queues="mail")  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="must not be empty"):
        hf.worker(queues=[])


def test_a_timeout_that_cannot_hold_is_refused_as_it_was_written(hf: Holdfast) -> None:
    with pytest.raises(BadValue, match=r"^timeout 5: task slow is a plain function"):
        hf.task(name="slow", timeout=5)(lambda: None)


def test_a_worker_that_is_run_in_a_running_loop_names_the_twin(hf: Holdfast) -> None:
    async def main() -> None:
        hf.worker().run(drain=True)

    with pytest.raises(HoldfastError, match=r"one is running here already\. Write await worker\.arun\(\)\."):
        asyncio.run(main())


def test_a_queue_that_is_probably_misspelled_is_told_of(hf: Holdfast, drain: Drain, told: Told) -> None:
    hf.task(name="send", queue="mail")(lambda: None)
    drain(queues=["mail"])
    drain(queues=["mail", "nightly"])  # which calls may name by options(queue=…)
    assert told.named("queue.doubted") == []
    drain(queues=["mial", "mail"])
    drain(queues=["nightly"])
    assert told.named("queue.doubted") == [
        {"queue": "mial", "hint": "No task here is declared for it. Did you mean 'mail'?"},
        {"queue": "nightly", "hint": "No task here is declared for it. Known: mail."},
    ]


def _enqueue(hf: Holdfast, task: str) -> None:
    hf.enqueue(task)


def test_a_fork_has_connections_of_its_own(hf: Holdfast) -> None:
    hf.enqueue("before")
    forked = [
        multiprocessing.get_context("fork").Process(target=_enqueue, args=(hf, f"in-{n}")) for n in range(3)
    ]
    for process in forked:
        process.start()
    for process in forked:
        process.join(20)
    assert [process.exitcode for process in forked] == [0, 0, 0]
    hf.enqueue("after")
    assert {job.task for job in hf.jobs.list()} == {"before", "in-0", "in-1", "in-2", "after"}

"""What the front door refuses, and what it says then."""

import multiprocessing

import pytest

from holdfast import BadValue, Holdfast


def test_an_empty_dsn_is_refused_and_not_taken_for_the_embedded_server():
    for dsn in ("", "  ", 3):
        with pytest.raises(BadValue, match=r"dsn .* must be a connection string"):
            Holdfast(dsn)  # type: ignore[arg-type]


def test_only_calls_of_tasks_are_enqueued(hf: Holdfast):
    task = hf.task(name="mail")(lambda: None)
    with pytest.raises(BadValue, match=r"task\.call\(…\)"):
        hf.enqueue_many([task])  # type: ignore[list-item]


def test_an_unknown_state_and_an_absurd_amount_are_named(hf: Holdfast):
    with pytest.raises(BadValue, match=r"state 'ded'.*Did you mean 'dead'"):
        hf.jobs(state="ded")
    with pytest.raises(BadValue, match="amount -1"):
        hf.jobs(amount=-1)


def test_queues_are_a_list_of_names(hf: Holdfast):
    with pytest.raises(BadValue, match="queues 'mail': must be a list"):
        hf.worker(queues="mail")
    with pytest.raises(BadValue, match="must not be empty"):
        hf.worker(queues=[])


def _enqueue(hf: Holdfast, task: str) -> None:
    hf.enqueue(task)


def test_a_fork_has_connections_of_its_own(hf: Holdfast):
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
    assert {job.task for job in hf.jobs()} == {"before", "in-0", "in-1", "in-2", "after"}

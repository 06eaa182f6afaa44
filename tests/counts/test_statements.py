"""Statements and transactions: how often a job, or a worker that waits for one, goes to the server.

To record anew, write down what `pytest -s tests/counts/test_statements.py` says.
"""

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast
from holdfast.database import Session
from holdfast.task import named_job
from holdfast.values.call import Call
from holdfast.worker import claimer, duties, keeper, loop
from tests.counts.counting import Counter as CountingCounter
from tests.fixtures import StartWorker, Until
from tests.sql.sessions import Connect

# What was counted, and how much is let through: a batch more or less depends on who is faster, the worker or
# its server. Caught: a BATCH of 100 in the claimer or in the finisher, a report written on its own, a
# transaction around a call.
DRAINED = 5000
CLAIMS = {"counted": 7, "most": 18}
FINISHES = {"counted": 8, "most": 30}
# What does not depend on how many jobs there are, but on how long it takes: caught is what is sent for each.
OTHERS = {"counted": 20, "most": 500}
# Making its five connections, and preparing each function on them, are no statements but commits.
COMMITS_OF_CONNECTING = {"counted": 15, "most": 25}

# begin, one question, places, copy, commit. Caught: asking for each batch.
COPIED = {"begin": 1, "select": 1, "places": 1, "copy": 1, "commit": 1}
# With ids of the caller's: an array a thousand.
IN_ARRAYS = {"begin": 1, "select": 1, "enqueue_many": 10, "commit": 1}

# One idle minute, with the few statements of its beginning. Caught: a duty that comes twice as often, a poll
# that does not slow down, a duty that writes although there is nothing to do.
IDLE = {
    "advance": 240,
    "claim": 62,
    "fire": 61,
    "promote": 61,
    "recover": 60,
    "fold_stats": 60,
    "heartbeat": 12,
    "sleep": 1,
    "upkeep": 1,
}
IDLE_WRITES = {"counted": 84, "most": 90}
# Bytes differ from run to run, because the server prunes pages when it likes. Writes are exact.
IDLE_BYTES = {"counted": 14_100, "most": 20_000}
# claimer, fire, promote, recover, advance, fold_stats, upkeep, sweep; and in the keeper's thread: heartbeat,
# keeper, watch
LOOPS = 11


def test_one_enqueue_is_one_statement_and_one_transaction(hf: Holdfast, counter: CountingCounter) -> None:
    hf.enqueue("task")  # which connects, and makes the lane
    counter.start()
    for _ in range(100):
        hf.enqueue("task", {"user_id": 7})
    assert counter.statements() == {"enqueue": 100}, "and neither begin nor commit"
    assert counter.writes() == 100


def test_a_job_of_the_callers_transaction_is_one_statement_more(
    hf: Holdfast, connect: Connect, counter: CountingCounter
) -> None:
    caller = connect().connection
    hf.enqueue("task")
    counter.start()
    with caller.transaction():
        for _ in range(100):
            hf.on(caller).enqueue("task", {"user_id": 7})
    assert counter.statements() == {"begin": 1, "enqueue": 100, "commit": 1}
    assert counter.writes() == 1


@pytest.mark.parametrize(("own_ids", "recorded"), [(False, COPIED), (True, IN_ARRAYS)])
def test_ten_thousand_jobs_are_a_handful_of_statements_and_one_transaction(
    hf: Holdfast, counter: CountingCounter, own_ids: bool, recorded: dict[str, Any]
) -> None:
    hf.enqueue("task")
    counter.start()
    hf.enqueue_many(named_job("task", {"user_id": 7}, id=uuid4() if own_ids else None) for _ in range(10_000))
    print("\n", counter.statements())  # noqa: T201 - to be recorded
    assert counter.statements() == recorded
    assert counter.writes() == 1


def test_a_worker_claims_and_reports_in_batches(
    hf: Holdfast, counter: CountingCounter, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a fast machine: what is fetched ahead of a slow one is less, and so are its batches.
    monkeypatch.setattr(claimer, "PREFETCH_SECONDS", 3600)

    @hf.task(name="nothing")
    async def nothing() -> None: ...

    hf.enqueue_many(nothing.call() for _ in range(DRAINED))
    hf.close()
    until(counter.is_alone)
    counter.start()
    hf.worker().run(drain=True)
    hf.close()
    until(counter.is_alone)
    commits, statements = counter.commits(), counter.statements()
    print("\n", commits, "commits", statements)  # noqa: T201 - to be recorded
    assert [(stat.state, stat.jobs) for stat in hf.stats.count()] == [("completed", DRAINED)]
    assert statements["claim"] <= CLAIMS["most"]
    assert statements["finish"] <= FINISHES["most"]
    assert statements.total() - statements["claim"] - statements["finish"] <= OTHERS["most"]
    assert commits - statements.total() <= COMMITS_OF_CONNECTING["most"], "a call is one transaction"


def test_an_idle_worker_asks_little_in_a_minute_and_writes_less(
    hf: Holdfast, counter: CountingCounter, work: StartWorker, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loop of the worker has a minute of its own, which passes as fast as its steps can be run."""
    passed: dict[asyncio.Task[Any], float] = {}

    async def wait(event: asyncio.Event, seconds: float) -> None:
        loop = asyncio.current_task()
        assert loop is not None
        await asyncio.sleep(0)
        if not event.is_set():
            passed[loop] = passed.get(loop, 0) + seconds
            if passed[loop] >= 60:
                await event.wait()

    run = Session.run
    turns: defaultdict[Any, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def one_at_a_time(session: Session, call: Call[Any], **options: Any) -> Any:
        """In a real minute calls hardly ever meet; who meets an open one looks sooner, and notes it."""
        async with turns[asyncio.get_running_loop()]:
            return await run(session, call, **options)

    @hf.task(name="nothing")
    async def nothing() -> None: ...

    monkeypatch.setattr(loop, "wait", wait)
    monkeypatch.setattr(Session, "run", one_at_a_time)
    # The keeper's minute passes faster than the worker's loop turns, which looks like a blocked one.
    monkeypatch.setattr(keeper, "RELEASE_SECONDS", 3600)
    # Workers vary some pauses, and a minute has one or two upkeeps.
    monkeypatch.setattr(duties, "random", SimpleNamespace(uniform=lambda _low, _high: 1.0))
    counter.start()
    work()
    until(lambda: len(passed) == LOOPS and min(passed.values()) >= 60, say=lambda: passed)
    statements, writes, size = counter.statements(), counter.writes(), counter.wal_bytes()
    print("\n", statements, writes, "writes", size, "bytes")  # noqa: T201 - to be recorded
    for name, recorded in IDLE.items():
        assert statements[name] <= recorded + 3, name
    assert statements["disown"] == 0, "no claim has failed"
    assert statements.total() <= sum(IDLE.values()) + 30
    assert writes <= IDLE_WRITES["most"]
    assert size <= IDLE_BYTES["most"]

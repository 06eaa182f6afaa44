"""Statements and transactions: how often a job, or a worker that waits for one, goes to the server.

To record anew, write down what `pytest -s tests/counts/test_statements.py` says.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast
from holdfast.database import Session
from holdfast.task import named_job
from holdfast.values.call import Call
from holdfast.worker import claimer, demand, duties, keeper, loop
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
# Making its connections, and preparing each function on them, are no statements but commits.
COMMITS_OF_CONNECTING = {"counted": 15, "most": 25}

# begin, one question, places, copy, commit. Caught: asking for each batch.
COPIED = {"begin": 1, "select": 1, "places": 1, "copy": 1, "commit": 1}
# With ids of the caller's: an array a thousand.
IN_ARRAYS = {"begin": 1, "select": 1, "enqueue_many": 10, "commit": 1}

# One idle minute. Caught: a duty that comes twice as often, a poll
# that comes sooner, a duty that writes although there is nothing to do.
IDLE = {"do_duties": 30, "heartbeat": 12, "claim": 12, "upkeep": 1, "sleep": 0, "promote": 0, "fire": 0}
IDLE_WRITES = {"counted": 76, "most": 82}
# Bytes differ from run to run, because the server prunes pages when it likes. Writes are exact.
IDLE_BYTES = {"counted": 9_400, "most": 13_500}
# A worker registers, connects and falls asleep before its minute.
STARTUP, MINUTE = 10.0, 60.0
# The loops of an idle worker that repeat: claimer, duties and connections; and in the keeper's thread:
# heartbeat, keeper and watch. The others wait until they are needed.
LOOPS = 6


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
    monkeypatch.setattr(demand, "PREFETCH_SECONDS", 3600)

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


class Minute:
    """A minute that passes as fast as the loops of a worker can run their steps, for all of them together.

    When every loop waits, the clocks of the worker and of the database move to the earliest end of a wait.
    `begin` is called when the worker has started.
    """

    def __init__(self, move: Callable[[float], Any], begin: Callable[[], None]) -> None:
        self.now = 0.0
        self._move = move
        self._begin: Callable[[], None] | None = begin
        self._known: set[Any] = set()
        self._waiting: dict[Any, tuple[float, Callable[[], Any]]] = {}
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self.now

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Take the place of `loop.wait`."""
        task, running = asyncio.current_task(), asyncio.get_running_loop()
        until = self.now + max(seconds, 0.001)  # a rounding error would be waited for without end
        with self._lock:
            self._known.add(task)
            self._waiting[task] = (until, lambda: running.call_soon_threadsafe(event.set))
        await asyncio.sleep(0)
        self._pass()
        try:
            await event.wait()
        finally:
            with self._lock:
                self._waiting.pop(task, None)

    def _pass(self) -> None:
        with self._lock:
            if len(self._known) < LOOPS or len(self._waiting) < len(self._known) or self.has_passed():
                return
            if self.now >= STARTUP and self._begin:
                self._begin()
                self._begin = None
            task, (until, wake) = min(self._waiting.items(), key=lambda item: item[1][0])
            del self._waiting[task]
            if until > self.now:
                self._move(until - self.now)
                self.now = until
        wake()

    def has_passed(self) -> bool:
        return self.now >= STARTUP + MINUTE


def test_an_idle_worker_asks_little_in_a_minute_and_writes_less(
    hf: Holdfast,
    counter: CountingCounter,
    connect: Connect,
    work: StartWorker,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = connect()
    minute = Minute(lambda seconds: clock("select holdfast.test_advance(%s)", seconds), counter.start)
    run = Session.run
    turns: defaultdict[Any, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def one_at_a_time(session: Session, call: Call[Any], **options: Any) -> Any:
        """In a real minute calls hardly ever meet; who meets an open one looks sooner, and notes it."""
        async with turns[asyncio.get_running_loop()]:
            return await run(session, call, **options)

    @hf.task(name="nothing")
    async def nothing() -> None: ...

    monkeypatch.setattr(loop, "wait", minute.wait)
    monkeypatch.setattr(claimer, "time", SimpleNamespace(monotonic=minute.monotonic))
    monkeypatch.setattr(Session, "run", one_at_a_time)
    # The keeper's minute passes faster than the worker's loop turns, which looks like a blocked one.
    monkeypatch.setattr(keeper, "RELEASE_SECONDS", 3600)
    monkeypatch.setattr(duties, "random", SimpleNamespace(uniform=lambda _low, _high: 1.0))
    work()
    until(minute.has_passed, timeout=60, say=lambda: minute.now)
    statements, writes = counter.statements(), counter.writes()
    size = counter.wal_bytes(without="test_advance")
    writes -= statements.pop("test_advance")
    print("\n", statements, writes, "writes", size, "bytes")  # noqa: T201 - to be recorded
    for name, recorded in IDLE.items():
        assert statements[name] <= recorded + 3, name
    assert statements["disown"] == 0, "no claim has failed"
    assert statements.total() < MINUTE, "an idle worker runs less than one transaction a second"
    assert writes <= IDLE_WRITES["most"]
    assert size <= IDLE_BYTES["most"]

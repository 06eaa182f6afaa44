"""Drain while a million jobs wait: of the same task, and of a task that the worker does not know."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from bench.in_postgres import PostgresPeer
from bench.measure import POLL_SECONDS, Bench, Figures, Measure, in_turn, look
from bench.measures.drain import hundred_thousand
from bench.peer import Done, Peer
from bench.processes import AgentFailed, Workers
from bench.server import Server

MILLION = 1_000_000
PEERS = frozenset({"holdfast", "graphile-worker", "pgqueuer", "awa-pg", "pgmq"})
TURN_SECONDS = 0.15
SETTLING_SECONDS = 5.0
_BUSY = """
  select exists (
    select from pg_stat_activity
    where datname = current_database() and state = 'active' and pid <> pg_backend_pid()
      and backend_type in ('client backend', 'parallel worker') -- the vacuum is nobody's
      -- Who waits for a worker that stands still, or for one of its locks, has nothing to do.
      and coalesce(wait_event_type, '') not in ('Client', 'Lock')
  )"""


@dataclass(frozen=True)
class Settled:
    """How many jobs have been waiting, and upon how many of which other task."""

    amount: int
    upon: tuple[int, str] | None = None


def _known(bench: Bench, peer: Peer, round_: int) -> Figures:
    return _compared(bench, peer, round_, lambda _: Settled(bench.amount(MILLION)))


def _unknown(bench: Bench, peer: Peer, round_: int) -> Figures:
    return _compared(
        bench, peer, round_, lambda amount: Settled(amount, upon=(bench.amount(MILLION), "stranger"))
    )


def _compared(bench: Bench, peer: Peer, round_: int, backlog: Callable[[int], Settled]) -> Figures:
    """The same jobs without and with the backlog, both vacuumed and analyzed, as what waits for long is.

    By turns, one worker standing still while the other works: a machine is faster or slower from one second
    to the next by more than what is to be told apart. Each on a server of its own, now this one, now that: in
    one memory, what the backlog drives out would be missed by both.
    """
    assert isinstance(peer, PostgresPeer)
    amount = hundred_thousand(bench, peer)
    stocks = {"without": Settled(amount), "jobs_per_s": backlog(amount)}
    # Every other round, so that each side has begun on each server.
    servers = in_turn([bench.server, bench.keep("elsewhere", bench.server.another)], round_ // 2)
    with ExitStack() as stack:
        drains = {
            name: stack.enter_context(_prepared(peer, server, stock, amount))
            for (name, stock), server in in_turn(zip(stocks.items(), servers, strict=True), round_)
        }
        patience = 60 + 10 * bench.options.seconds
        try:
            for drain in drains.values():
                drain.workers.until_ready()
            while going := [drain for drain in drains.values() if not drain.over]:
                for drain in going:
                    drain.turn(patience)
        finally:
            for drain in drains.values():
                drain.workers.resume()  # a backend that waits for one that stands still holds up every drop
    rates = {name: amount / drain.seconds for name, drain in drains.items()}
    return {**rates, "ratio": rates["jobs_per_s"] / rates["without"], "jobs": amount}


@dataclass
class _Drain:
    """One of two that take turns."""

    watch: "psycopg.Connection[tuple[Any, ...]]"
    workers: Workers
    done: Done
    amount: int
    seconds: float = 0.0
    over: bool = False

    def turn(self, patience: float) -> None:
        begun = self._go_on()
        while (ended := look(self.done, self.workers, self.amount)) is None:
            if time.monotonic() - begun > TURN_SECONDS:
                break
        self.workers.pause()
        paused = time.monotonic()
        while self._busy() and time.monotonic() - paused < SETTLING_SECONDS:
            time.sleep(POLL_SECONDS)
        self.over = ended is not None
        self.seconds += (ended or time.monotonic()) - begun
        if not self.over and self.seconds > patience:
            raise AgentFailed(
                f"not finished after {patience:.0f} s ({self.workers.ran} handlers were called)"
            )

    def _go_on(self) -> float:
        """Since when it works: the first time from its first job on."""
        if self.workers.first is None:
            self.workers.go()
            self.workers.until_ran(1, patience=60)
            assert self.workers.first is not None
            return self.workers.first
        self.workers.resume()
        return time.monotonic()

    def _busy(self) -> bool:
        """Whether the server still works for it: that belongs to its turn."""
        [[busy]] = self.watch.execute(_BUSY, prepare=True).fetchall()
        return bool(busy)


@contextmanager
def _prepared(peer: PostgresPeer, server: Server, stock: Settled, amount: int) -> Iterator[_Drain]:
    with (
        peer.settled(server, stock.amount, ("noop",), upon=stock.upon) as place,
        place.connect() as watch,
        peer.workers(place) as workers,
        # Those behind others are looked up from the end: the server's memory is not to be full of the others.
        peer.goal(place, amount, workers, newest=stock.upon is not None) as done,
    ):
        yield _Drain(watch, workers, done, amount)


BACKLOG = Measure(
    "backlog",
    "drain with a million waiting",
    _known,
    "jobs_per_s",
    "jobs/s",
    others_once=True,
    times=4,
    only=PEERS,
)
BACKLOG_UNKNOWN = Measure(
    "backlog_unknown",
    "drain with a million waiting of a task that the worker does not know",
    _unknown,
    "jobs_per_s",
    "jobs/s",
    others_once=True,
    times=4,
    only=PEERS,
)

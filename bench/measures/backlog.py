"""Drain while a million jobs wait: of the same task, and of a task that the worker does not know."""

from collections.abc import Callable

from bench.measure import Bench, Figures, Measure
from bench.measures.drain import Settled, drain, hundred_thousand
from bench.peer import Peer

MILLION = 1_000_000
PEERS = frozenset({"holdfast", "graphile-worker", "pgqueuer", "awa-pg", "pgmq"})


def _known(bench: Bench, peer: Peer, _round: int) -> Figures:
    return _compared(bench, peer, lambda _: Settled(bench.amount(MILLION)))


def _unknown(bench: Bench, peer: Peer, _round: int) -> Figures:
    return _compared(bench, peer, lambda amount: Settled(amount, upon=(bench.amount(MILLION), "stranger")))


def _compared(bench: Bench, peer: Peer, backlog: Callable[[int], Settled]) -> Figures:
    """The same jobs without and with the backlog, both vacuumed and analyzed, as what waits for long is."""
    amount = hundred_thousand(bench, peer)
    plain = drain(bench, peer, amount, settled=Settled(amount))["jobs_per_s"]
    rate = drain(bench, peer, amount, settled=backlog(amount))["jobs_per_s"]
    return {"jobs_per_s": rate, "without": plain, "ratio": rate / plain, "jobs": amount}


BACKLOG = Measure(
    "backlog",
    "drain with a million waiting",
    _known,
    "jobs_per_s",
    "jobs/s",
    others_once=True,
    times=2,
    only=PEERS,
)
BACKLOG_UNKNOWN = Measure(
    "backlog_unknown",
    "drain with a million waiting of a task that the worker does not know",
    _unknown,
    "jobs_per_s",
    "jobs/s",
    others_once=True,
    times=2,
    only=PEERS,
)

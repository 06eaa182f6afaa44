"""Drain while a million jobs wait: of the same task, and of a task that the worker does not know."""

from collections.abc import Callable

from bench.measure import Bench, Figures, Measure, in_turn
from bench.measures.drain import Settled, drain, hundred_thousand, steady
from bench.peer import Peer

MILLION = 1_000_000
PEERS = frozenset({"holdfast", "graphile-worker", "pgqueuer", "awa-pg", "pgmq"})


def _known(bench: Bench, peer: Peer, round_: int) -> Figures:
    return _compared(bench, peer, round_, lambda _: Settled(bench.amount(MILLION)))


def _unknown(bench: Bench, peer: Peer, round_: int) -> Figures:
    return _compared(
        bench, peer, round_, lambda amount: Settled(amount, upon=(bench.amount(MILLION), "stranger"))
    )


def _compared(bench: Bench, peer: Peer, round_: int, backlog: Callable[[int], Settled]) -> Figures:
    """The same jobs without and with the backlog, both vacuumed and analyzed, as what waits for long is."""
    amount = hundred_thousand(bench, peer)
    stocks = {"without": Settled(amount), "jobs_per_s": backlog(amount)}
    found = {
        name: drain(bench, peer, amount, settled=stock) for name, stock in in_turn(stocks.items(), round_)
    }
    rates = {name: figures["jobs_per_s"] for name, figures in found.items()}
    return {**rates, "ratio": steady(found["jobs_per_s"]) / steady(found["without"]), "jobs": amount}


BACKLOG = Measure(
    "backlog",
    "drain with a million waiting",
    _known,
    "jobs_per_s",
    "jobs/s",
    others_once=True,
    times=5,
    only=PEERS,
)
BACKLOG_UNKNOWN = Measure(
    "backlog_unknown",
    "drain with a million waiting of a task that the worker does not know",
    _unknown,
    "jobs_per_s",
    "jobs/s",
    others_once=True,
    times=5,
    only=PEERS,
)

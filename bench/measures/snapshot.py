"""Rounds of enqueue and drain, alternating between three databases:

plain   nobody else is there
held    one session has a snapshot open from the beginning to the end
open    one transaction has enqueued a job at the beginning and does not commit
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench.in_postgres import PostgresPeer
from bench.measure import Bench, Figures, Measure, median_ratio, until
from bench.measures.backlog import PEERS
from bench.peer import Peer
from bench.processes import AgentFailed, Producer
from bench.server import Database

JOBS, ROUNDS = 100_000, 10
VARIANTS = ("plain", "held", "open")


@dataclass
class _Track:
    """One of the three databases, and its rate in each round."""

    database: Database
    producer: Producer
    rates: list[float] = field(default_factory=list)
    failed: str = ""


def _snapshot(bench: Bench, peer: Peer, _round: int) -> Figures:
    assert isinstance(peer, PostgresPeer)
    amount = _size(bench, peer)
    with ExitStack() as stack:
        tracks = {name: stack.enter_context(_track(bench, peer, name)) for name in VARIANTS}
        tracks["open"].failed = peer.open_blocks
        for number in range(ROUNDS):
            for name in _rotated(number):
                _churn(bench, peer, tracks[name], amount)
    rates = {name: [round(rate) for rate in track.rates] for name, track in tracks.items()}
    last = {name: statistics.median(each[-3:]) for name, each in rates.items() if not tracks[name].failed}
    figures: Figures = {**rates, "jobs": amount}
    figures |= {f"last_{name}": rate for name, rate in last.items()}
    for name in ("held", "open"):
        if name in last and "plain" in last:
            last_rounds = zip(rates[name][-3:], rates["plain"][-3:], strict=True)
            figures[f"{name}_ratio"] = median_ratio(last_rounds)
    notes = [f"{name} failed: {track.failed}" for name, track in tracks.items() if track.failed]
    return figures | ({"note": "; ".join(notes)} if notes else {})


def _size(bench: Bench, peer: Peer) -> int:
    """Holdfast's rounds are the 100,000 that its target names; the others' fit into the time."""
    if peer.name == "holdfast":
        return bench.amount(JOBS)
    rates = bench.rates[peer.name]
    seconds_each = 2 * bench.options.seconds / ROUNDS
    return min(bench.amount(JOBS), int(seconds_each / (1 / rates.bulk + 1 / rates.drain)))


@contextmanager
def _track(bench: Bench, peer: PostgresPeer, name: str) -> Iterator[_Track]:
    with (
        peer.empty(bench.server) as database,
        peer.producer(database) as producer,
        database.connect() as bystander,
    ):
        match name:
            case "held":
                bystander.execute("begin isolation level repeatable read")
                bystander.execute("select count(*) from pg_class")
            case "open" if not peer.open_blocks:
                bystander.execute("begin")
                bystander.execute(peer.enqueue_sql)
        yield _Track(database, producer)
        bystander.execute("rollback")


def _churn(bench: Bench, peer: PostgresPeer, track: _Track, amount: int) -> None:
    """One round; a database that has failed takes no further part."""
    if track.failed:
        return
    patience = 10 + 4 * bench.options.seconds
    try:
        track.producer.ask("bulk", amount=amount, tasks=["noop"], patience=patience)
        with peer.workers(track.database) as workers, peer.goal(track.database, amount, workers) as done:
            workers.go()
            ended = until(done, workers, amount, patience=patience)
            assert workers.first is not None
            track.rates.append(amount / (ended - workers.first))
    except (AgentFailed, RuntimeError) as error:
        track.failed = f"in round {len(track.rates) + 1}, {error}"


def _rotated(number: int) -> tuple[str, ...]:
    at = number % len(VARIANTS)
    return VARIANTS[at:] + VARIANTS[:at]


SNAPSHOT = Measure(
    "snapshot",
    "ten rounds of 100,000 while a snapshot is held, or a transaction that enqueued stays open",
    _snapshot,
    "last_held",
    "jobs/s",
    once=True,
    only=PEERS,
)

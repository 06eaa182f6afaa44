"""Rounds of enqueue and drain, alternating between three databases:

plain   nobody else is there
held    one session has a snapshot open from the beginning to the end
open    one transaction has enqueued a job at the beginning and does not commit; on a server of its own, since
        that is felt in all databases of a server
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench.in_postgres import PostgresPeer
from bench.measure import Bench, Figures, Given, Measure, in_turn, median_ratio, until
from bench.measures.backlog import PEERS
from bench.peer import Peer
from bench.processes import AgentFailed, Producer
from bench.server import Database, Server

JOBS, ROUNDS, LAST = 100_000, 10, 3
VARIANTS = ("plain", "held", "open")


@dataclass
class _Track:
    """One of the three databases, and its rate in each round."""

    database: Database
    producer: Producer
    rates: list[float] = field(default_factory=list)
    # The same on a machine with its processors for itself.
    steady: list[float] = field(default_factory=list)
    failed: str = ""


def _snapshot(bench: Bench, peer: Peer, _round: int) -> Figures:
    assert isinstance(peer, PostgresPeer)
    amount = _size(bench, peer)
    # Ours is judged by it, and single rounds differ by a third: so by nine pairs, not three.
    series = [_series(bench, peer, amount, turn) for turn in range(3 if peer.judged else 1)]
    # All that the ratios are made of; else the medians alone would be kept.
    steady = [{name: [round(rate) for rate in each[name].steady] for name in VARIANTS} for each in series]
    figures: Figures = {"jobs": amount, "series": steady}
    notes = []
    for name in VARIANTS:
        tracks = [each[name] for each in series]
        figures[name] = [
            round(statistics.median(rates)) for rates in zip(*(t.rates for t in tracks), strict=False)
        ]
        if failed := [track.failed for track in tracks if track.failed]:
            notes.append(f"{name} failed: {failed[0]}")
            continue
        figures[f"last_{name}"] = statistics.median(rate for track in tracks for rate in track.rates[-LAST:])
        if name != "plain" and "last_plain" in figures:
            plain = (rate for each in series for rate in each["plain"].steady[-LAST:])
            ours = (rate for track in tracks for rate in track.steady[-LAST:])
            figures[f"{name}_ratio"] = median_ratio(zip(ours, plain, strict=True))
    return figures | ({"note": "; ".join(notes)} if notes else {})


def _series(bench: Bench, peer: PostgresPeer, amount: int, turn: int) -> dict[str, _Track]:
    """All rounds in all three databases."""
    elsewhere = bench.keep("elsewhere", bench.server.another)
    with ExitStack() as stack:
        servers = {"plain": bench.server, "held": bench.server, "open": elsewhere}
        tracks = {name: stack.enter_context(_track(peer, servers[name], name)) for name in VARIANTS}
        tracks["open"].failed = peer.open_blocks
        for number in range(ROUNDS):
            # Of the last three, by which it is judged, each variant begins one and ends one.
            for name in in_turn(VARIANTS, number - 1 + LAST * turn):
                _churn(bench, peer, tracks[name], amount)
    return tracks


def _size(bench: Bench, peer: Peer) -> int:
    """The others' rounds fit into the time."""
    if peer.judged:
        return bench.amount(JOBS)
    rates = bench.rates[peer.name]
    seconds_each = 2 * bench.options.seconds / ROUNDS
    return min(bench.amount(JOBS), int(seconds_each / (1 / rates.bulk + 1 / rates.drain)))


@contextmanager
def _track(peer: PostgresPeer, server: Server, name: str) -> Iterator[_Track]:
    with (
        peer.empty(server) as database,
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
        with (
            peer.workers(track.database) as workers,
            peer.goal(track.database, amount, workers, newest=True) as done,
        ):
            workers.go()
            given = Given()
            ended = until(done, workers, amount, patience=patience)
            assert workers.first is not None
            track.rates.append(amount / (ended - workers.first))
            track.steady.append(track.rates[-1] / given.share())
    except (AgentFailed, RuntimeError) as error:
        track.failed = f"in round {len(track.rates) + 1}, {error}"


SNAPSHOT = Measure(
    "snapshot",
    "ten rounds of 100,000 while a snapshot is held, or a transaction that enqueued stays open",
    _snapshot,
    "last_held",
    "jobs/s",
    once=True,
    only=PEERS,
)

"""How fast jobs are enqueued: one by one, in bulk, and by many at a time while workers are busy."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Bench, Figures, Given, Measure, in_turn
from bench.peer import Peer
from bench.processes import Producer

PROCESSES, PRODUCERS_EACH = 4, 4
RACE_SECONDS = 3.0
BUSY_CONCURRENCY = 20
# Enough jobs of 100 ms to keep 20 slots busy for longer than the race takes.
BUSY_JOBS = 4_000


def _enqueue_one(bench: Bench, peer: Peer, _round: int) -> Figures:
    """Many short rounds: a quarter of a second each, one peer right after the other."""
    amount = max(int(bench.rates[peer.name].one * bench.options.seconds / 12 * bench.options.scale), 20)
    producer = bench.keep(peer.name, lambda: _ready(bench, peer))
    answer = producer.ask("one", amount=amount)
    return {"jobs_per_s": amount / answer["seconds"], "jobs": amount}


@contextmanager
def _ready(bench: Bench, peer: Peer) -> Iterator[Producer]:
    with peer.empty(bench.server) as place, peer.producer(place) as producer:
        producer.ask("one", amount=20)
        yield producer


def _enqueue_bulk(bench: Bench, peer: Peer, _round: int) -> Figures:
    amount = min(bench.amount(100_000), int(bench.rates[peer.name].bulk * bench.options.seconds / 2))
    with peer.empty(bench.server) as place, peer.producer(place) as producer:
        producer.ask("bulk", amount=100, tasks=["noop"])
        answer = producer.ask("bulk", amount=amount, tasks=["noop"])
    return {"jobs_per_s": amount / answer["seconds"], "jobs": amount}


def _producers(bench: Bench, peer: Peer, round_: int) -> Figures:
    if peer.name != "holdfast":
        return {"jobs_per_s": _race(bench, peer, notify=True)[0]}
    ways = {"jobs_per_s": True, "without_notify": False}
    found = {name: _race(bench, peer, notify=way) for name, way in in_turn(ways.items(), round_)}
    (rate, share), (silent, silent_share) = found["jobs_per_s"], found["without_notify"]
    return {"jobs_per_s": rate, "without_notify": silent, "ratio": rate / share * silent_share / silent}


def _race(bench: Bench, peer: Peer, *, notify: bool) -> tuple[float, float]:
    """Jobs per second of 16 producers: four processes with four connections each; and what was given."""
    silence = {} if notify else {"PGOPTIONS": "-c holdfast.notify=off"}
    with peer.empty(bench.server) as place:
        crew = [peer.producer(place, environ=silence) for _ in range(PROCESSES)]
        try:
            crew[0].ask("bulk", amount=BUSY_JOBS, tasks=["doze"])
            with peer.workers(place, concurrency=BUSY_CONCURRENCY, notify=notify) as workers:
                workers.go()
                workers.until_ran(BUSY_CONCURRENCY, patience=30)
                time.sleep(0.5)
                given = Given()
                for producer in crew:
                    producer.begin("race", producers=PRODUCERS_EACH, seconds=RACE_SECONDS)
                answers = [producer.end() for producer in crew]
                share = given.share()
                workers.check()
        finally:
            for producer in crew:
                producer.stop()
    return float(sum(answer["amount"] / answer["seconds"] for answer in answers)), share


ENQUEUE_ONE = Measure(
    "enqueue_one", "enqueue one by one, one connection", _enqueue_one, "jobs_per_s", "jobs/s", times=20
)
ENQUEUE_BULK = Measure("enqueue_bulk", "enqueue in bulk", _enqueue_bulk, "jobs_per_s", "jobs/s")
PRODUCERS = Measure(
    "producers",
    "16 producers, one job at a time, while a worker is busy",
    _producers,
    "jobs_per_s",
    "jobs/s",
    others_once=True,
)

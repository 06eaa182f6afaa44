"""How soon a job starts on an idle queue: from just before its enqueue to the first line of its handler."""

import random
import time

from bench.measure import Bench, Figures, Measure, percentiles
from bench.peer import Peer
from bench.processes import Producer, Workers

WARM_UP = 20


def _pickup(bench: Bench, peer: Peer, round_: int) -> Figures:
    with peer.empty(bench.server) as place, peer.producer(place) as producer, peer.workers(place) as workers:
        workers.go()
        warm_up(producer, workers)
        return idle(bench, producer, workers, seed=round_)


def warm_up(producer: Producer, workers: Workers) -> None:
    """A worker that has run a few jobs is ready, whatever else its start may consist of."""
    producer.ask("stamp", gaps=[0.05] * WARM_UP)
    workers.until_ran(WARM_UP, patience=60)
    time.sleep(1)
    workers.forget_waits()


def idle(bench: Bench, producer: Producer, workers: Workers, *, seed: int) -> Figures:
    """One job at a time, at irregular moments, 10 to 50 ms apart."""
    chance = random.Random(seed)
    amount = bench.options.samples
    producer.ask("stamp", gaps=[chance.uniform(0.01, 0.05) for _ in range(amount)])
    workers.until_ran(WARM_UP + amount, patience=60)
    time.sleep(0.1)  # the last ones are on their way to us
    return percentiles(workers.waits)


PICKUP = Measure("pickup", "pickup latency on an idle queue", _pickup, "p50", "ms", higher_is_better=False)

"""How late delayed jobs start, and what a hundred thousand due at once do to the urgent ones."""

import random
import time

from bench.measure import Bench, Figures, Measure, percentiles
from bench.measures.pickup import WARM_UP, idle, warm_up
from bench.peer import Peer

DELAYED_JOBS = 100
FLOOD_JOBS = 100_000
MARGIN_SECONDS = 4.0


def _delayed(bench: Bench, peer: Peer, round_: int) -> Figures:
    """Due at irregular moments, from half a second after the last was enqueued."""
    amount = min(DELAYED_JOBS, bench.options.samples)
    enqueueing = amount / bench.rates[peer.name].one * 2
    chance = random.Random(round_)
    delays = sorted(0.5 + enqueueing + chance.uniform(0, 3) for _ in range(amount))
    with peer.empty(bench.server) as place, peer.producer(place) as producer, peer.workers(place) as workers:
        workers.go()
        warm_up(producer, workers)
        producer.ask("scatter", delays=delays)
        workers.until_ran(WARM_UP + amount, patience=delays[-1] + 60)
        time.sleep(0.1)
        return percentiles(workers.waits)


def _flood(bench: Bench, peer: Peer, round_: int) -> Figures:
    """Urgent jobs one after another, first with all idle, then from the moment when the others fall due."""
    amount, rates = bench.drainable(peer, FLOOD_JOBS), bench.rates[peer.name]
    due_in = amount / rates.bulk * 1.5 + bench.options.samples * 0.035 + MARGIN_SECONDS
    with peer.empty(bench.server) as place, peer.producer(place) as producer, peer.workers(place) as workers:
        workers.go()
        warm_up(producer, workers)
        begun = time.monotonic()
        producer.ask("bulk", amount=amount, tasks=["noop"], delay=due_in)
        quiet = idle(bench, producer, workers, seed=round_)
        workers.forget_waits()
        left = begun + due_in - time.monotonic()
        if left < 0:
            raise RuntimeError(f"{peer.name}: the jobs fell due before all were enqueued")
        time.sleep(left)
        # As many as fit into the time in which the flood is worked off.
        urgent = min(max(int(amount / rates.drain / 0.012), 30), 400)
        producer.ask("stamp", gaps=[0.01] * urgent, urgent=True)
        workers.until_ran(WARM_UP + bench.options.samples + amount + urgent, patience=120)
        time.sleep(0.1)
        figures = percentiles(workers.waits)
    return {**figures, "jobs": amount, "idle_p99": quiet["p99"], "ratio": figures["p99"] / quiet["p99"]}


DELAYED = Measure(
    "delayed",
    "lateness of delayed jobs on an idle queue",
    _delayed,
    "p95",
    "ms",
    higher_is_better=False,
    others_once=True,
)
FLOOD = Measure(
    "flood",
    "pickup of urgent jobs while 100,000 others fall due at once",
    _flood,
    "p99",
    "ms",
    higher_is_better=False,
    others_once=True,
    times=2,
    only=frozenset({"holdfast", "graphile-worker", "pgqueuer"}),
)

"""The rate of a producer of single jobs, alone and beside an idle worker, and the pickup of its jobs."""

import statistics
import time

from bench.fleet import PEERS
from bench.measure import Bench, Figures, Given, Measure, in_turn, median_ratio, percentiles
from bench.measures.pickup import WARM_UP, warm_up
from bench.peer import Peer, Place
from bench.processes import Producer

TURNS, SECONDS = 3, 3.0
WAYS = ("alone", "beside")


def _stream(bench: Bench, peer: Peer, round_: int) -> Figures:
    """Alternate between a database without any worker, and one with a worker that waits for jobs."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    steady: dict[str, list[float]] = {way: [] for way in WAYS}
    waits: list[float] = []
    with (
        peer.empty(bench.server) as unattended,
        peer.empty(bench.server) as attended,
        peer.producer(unattended) as alone,
        peer.producer(attended) as beside,
    ):
        for turn in range(TURNS):
            for way in in_turn(WAYS, round_ + turn):
                if way == "alone":
                    rate, share = _alone(alone)
                else:
                    rate, share = _beside(peer, attended, beside, waits)
                rates[way].append(rate)
                steady[way].append(rate / share)
    return {
        "jobs_per_s": statistics.median(rates["beside"]),
        "alone": statistics.median(rates["alone"]),
        "ratio": median_ratio(zip(steady["beside"], steady["alone"], strict=True)),
        **percentiles(waits),
    }


def _alone(producer: Producer) -> tuple[float, float]:
    producer.ask("one", amount=WARM_UP)
    given = Given()
    return _rate(producer.ask("stream", seconds=SECONDS)), given.share()


def _beside(peer: Peer, place: Place, producer: Producer, waits: list[float]) -> tuple[float, float]:
    """Start a worker for this turn alone, and add the pickup of its jobs to `waits`."""
    with peer.workers(place) as workers:
        workers.go()
        warm_up(producer, workers)
        given = Given()
        answer = producer.ask("stream", seconds=SECONDS)
        share = given.share()
        workers.until_ran(WARM_UP + answer["amount"], patience=60)
        time.sleep(0.1)  # the last ones are on their way to us
        waits += workers.waits
    return _rate(answer), share


def _rate(answer: Figures) -> float:
    return float(answer["amount"] / answer["seconds"])


STREAM = Measure(
    "stream",
    "single jobs as fast as one producer can, beside an idle worker by alone",
    _stream,
    "ratio",
    "of the rate alone",
    others_once=True,
    only=PEERS,
)

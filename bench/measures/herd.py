"""The pickup of a single job by many idle workers, and the claims for it that find nothing."""

import random
import time
from collections.abc import Sequence

from bench.fleet import PEERS, Fleet, sizes, start_fleet
from bench.measure import Bench, Figures, Measure, percentiles
from bench.peer import Peer
from bench.processes import Producer

WARM_UP, WARM_UP_GAP = 20, 0.02
LEAST_GAP, LONGEST_GAP = 0.02, 0.05

_CLAIMS = """
  select coalesce(sum(calls), 0) from pg_stat_user_functions
  where schemaname = 'holdfast' and funcname = 'claim'
"""


def _herd(bench: Bench, peer: Peer, round_: int) -> Figures:
    """Enqueue one job at a time for 1, 10 and 50 idle workers; for those of the other peers, 10."""
    chance = random.Random(round_)
    gaps = [chance.uniform(LEAST_GAP, LONGEST_GAP) for _ in range(bench.options.samples)]
    measure = _pickup_and_claims if peer.judged else _pickup
    figures: Figures = {}
    for size in sizes(peer):
        with (
            start_fleet(bench, peer, size, track_functions="pl") as fleet,
            peer.producer(fleet.place) as producer,
        ):
            _warm_up(fleet, producer)
            found = measure(fleet, producer, gaps)
        figures |= {f"{name}_{size}": value for name, value in found.items()}
    return figures | ({"ratio": figures["p50_10"] / figures["p50_1"]} if peer.judged else {})


def _warm_up(fleet: Fleet, producer: Producer) -> None:
    """Run some jobs on most workers: the first ones of each take longer."""
    amount = WARM_UP + 2 * fleet.size
    producer.ask("stamp", gaps=[WARM_UP_GAP] * amount)
    fleet.workers.until_ran(amount, patience=60)
    fleet.settle()
    fleet.workers.forget_waits()


def _pickup(fleet: Fleet, producer: Producer, gaps: Sequence[float]) -> Figures:
    already = fleet.workers.ran
    producer.ask("stamp", gaps=gaps)
    fleet.workers.until_ran(already + len(gaps), patience=60)
    time.sleep(0.1)  # the last ones are on their way to us
    return percentiles(fleet.workers.waits)


def _pickup_and_claims(fleet: Fleet, producer: Producer, gaps: Sequence[float]) -> Figures:
    """Return the empty claims for each job too, and the polls of the same time without jobs."""
    idle_since, claims_at_first = time.monotonic(), _claims(fleet)
    time.sleep(sum(gaps))
    begun, claims_before = time.monotonic(), _claims(fleet)
    figures = _pickup(fleet, producer, gaps)
    seconds = time.monotonic() - begun
    fleet.stop()
    jobs, claims = len(gaps), _claims(fleet) - claims_before
    # Jobs that come one at a time are claimed one at a time, so one claim of each was not empty.
    if claims < jobs:
        raise RuntimeError(f"{claims} calls of holdfast.claim() for {jobs} jobs: they were claimed otherwise")
    polls = (claims_before - claims_at_first) / (begun - idle_since) * seconds
    return {**figures, "empty": (claims - jobs) / jobs, "idle_polls": polls / jobs}


def _claims(fleet: Fleet) -> int:
    with fleet.place.connect() as connection:
        [[calls]] = connection.execute(_CLAIMS).fetchall()
    return int(calls)


HERD = Measure(
    "herd",
    "pickup of single jobs by 1, 10 and 50 idle workers, and their empty claims",
    _herd,
    "p50_10",
    "ms",
    higher_is_better=False,
    once=True,
    only=PEERS,
)

"""How fast waiting jobs are run: from the first handler called until the database has all as finished."""
# ruff: noqa: RUF001 - the sign for times is meant

import random
from collections.abc import Callable
from dataclasses import dataclass

from bench.measure import Bench, Figures, Measure, until
from bench.peer import Peer

REALISTIC_CONCURRENCY = 100
PRIORITIES = (150, 100, 30)


@dataclass(frozen=True)
class Settled:
    """How many jobs have been waiting, and upon how many of which other task."""

    amount: int
    upon: tuple[int, str] | None = None


def drain(
    bench: Bench,
    peer: Peer,
    amount: int,
    *,
    tasks: tuple[str, ...] = ("noop",),
    processes: int = 1,
    concurrency: int | None = None,
    settled: Settled | None = None,
) -> Figures:
    """Run `amount` jobs that were enqueued just now, or the first of those that have long been waiting."""
    if settled is None:
        stock = peer.burst(bench.server, amount, tasks)
    else:
        stock = peer.settled(bench.server, settled.amount, tasks, upon=settled.upon)
    with (
        stock as place,
        peer.workers(place, processes=processes, concurrency=concurrency) as workers,
        peer.goal(place, amount, workers) as done,
    ):
        workers.go()
        ended = until(done, workers, amount, patience=60 + 10 * bench.options.seconds)
        assert workers.first is not None
        return {
            "jobs_per_s": amount / (ended - workers.first),
            "jobs": amount,
            "rss_mb": workers.rss(),
        }


def hundred_thousand(bench: Bench, peer: Peer) -> int:
    """As many of 100,000 as fit into two cells; for a peer to which 20,000 are too many, as many of those."""
    few = bench.drainable(peer, 20_000)
    return few if few < bench.amount(20_000) else bench.drainable(peer, 100_000, 2 * bench.options.seconds)


def _twenty_thousand(bench: Bench, peer: Peer) -> int:
    return bench.drainable(peer, 20_000)


def _measure(wanted: int, size: Callable[[Bench, Peer], int], processes: int) -> Measure:
    def run(bench: Bench, peer: Peer, round_: int) -> Figures:
        amount = size(bench, peer)
        key = (peer.name, amount, processes, round_)
        if key not in bench.drains:
            bench.drains[key] = drain(bench, peer, amount, processes=processes)
        return dict(bench.drains[key])

    plural = "process" if processes == 1 else "processes"
    return Measure(
        f"drain_{wanted // 1000}k_{processes}p",
        f"drain {wanted:,} no-op jobs, {processes} {plural}",
        run,
        "jobs_per_s",
        "jobs/s",
        times=4 if (wanted, processes) == (100_000, 1) else 1,
    )


def _realistic(bench: Bench, peer: Peer, _round: int) -> Figures:
    amount = bench.drainable(peer, 100_000)
    return drain(bench, peer, amount, tasks=("nap",), concurrency=REALISTIC_CONCURRENCY)


def _spread(bench: Bench, peer: Peer, _round: int) -> Figures:
    amount = bench.drainable(peer, 100_000)
    rates = {
        name: drain(bench, peer, amount, tasks=tasks)["jobs_per_s"]
        for name, tasks in (("one_task", ("noop",)), ("thirty_tasks", _THIRTY), ("skewed", _SKEWED))
    }
    return {
        **rates,
        "jobs": amount,
        "thirty_ratio": rates["thirty_tasks"] / rates["one_task"],
        "skewed_ratio": rates["skewed"] / rates["one_task"],
    }


def _skewed() -> tuple[str, ...]:
    """Three priorities of ten tasks, one of the thirty lanes holding nine tenths of the jobs."""
    lanes = [f"spread.{task}/{priority}" for priority in PRIORITIES for task in range(10)]
    full = lanes[15]
    cycle = [full] * 271 + [lane for lane in lanes if lane != full]
    random.Random(1).shuffle(cycle)
    return tuple(cycle)


_THIRTY = tuple(f"spread.{number}" for number in range(30))
_SKEWED = _skewed()

DRAIN = [
    _measure(wanted, size, processes)
    for wanted, size in ((20_000, _twenty_thousand), (100_000, hundred_thousand))
    for processes in (1, 2)
]
REALISTIC = Measure(
    "realistic",
    "drain 100,000 async jobs that sleep 1 ms, concurrency 100",
    _realistic,
    "jobs_per_s",
    "jobs/s",
    times=3,
)
SPREAD = Measure(
    "spread",
    "drain 100,000 jobs of 30 tasks, and of 3 priorities × 10 tasks with nine tenths in one",
    _spread,
    "thirty_ratio",
    "of the rate with one task",
    only=frozenset({"holdfast"}),
)

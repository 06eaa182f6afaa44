"""How fast waiting jobs are run: from the first handler called until the database has all as finished."""
# ruff: noqa: RUF001 - the sign for times is meant

import random
from collections.abc import Callable

from bench.measure import Bench, Figures, Given, Measure, in_turn, until
from bench.peer import Peer

REALISTIC_CONCURRENCY = 100
PRIORITIES = (150, 100, 30)


def drain(
    bench: Bench,
    peer: Peer,
    amount: int,
    *,
    tasks: tuple[str, ...] = ("noop",),
    processes: int = 1,
    concurrency: int | None = None,
) -> Figures:
    """Run `amount` jobs that were enqueued just now."""
    with (
        peer.burst(bench.server, amount, tasks) as place,
        peer.workers(place, processes=processes, concurrency=concurrency) as workers,
        peer.goal(place, amount, workers) as done,
    ):
        workers.go()
        given = Given()
        ended = until(done, workers, amount, patience=60 + 10 * bench.options.seconds)
        assert workers.first is not None
        return {
            "jobs_per_s": amount / (ended - workers.first),
            "given": given.share(),
            "jobs": amount,
            "rss_mb": workers.rss(),
        }


def steady(figures: Figures) -> float:
    """The rate that it would have been on a machine with its processors for itself."""
    return float(figures["jobs_per_s"] / figures["given"])


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
        # One process is what is judged: so all peers of a round one right after the other.
        if key not in bench.drains or processes == 1:
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
    amount = hundred_thousand(bench, peer)
    return drain(bench, peer, amount, tasks=("nap",), concurrency=REALISTIC_CONCURRENCY)


def _spread(bench: Bench, peer: Peer, round_: int) -> Figures:
    amount = bench.drainable(peer, 100_000)
    kinds = [("one_task", ("noop",)), ("thirty_tasks", _THIRTY), ("skewed", _SKEWED)]
    found = {name: drain(bench, peer, amount, tasks=tasks) for name, tasks in in_turn(kinds, round_)}
    return {
        **{name: figures["jobs_per_s"] for name, figures in found.items()},
        "jobs": amount,
        "thirty_ratio": steady(found["thirty_tasks"]) / steady(found["one_task"]),
        "skewed_ratio": steady(found["skewed"]) / steady(found["one_task"]),
    }


def _cores(bench: Bench, peer: Peer, round_: int) -> Figures:
    """Drain by one and by two processes: jobs that compute, and no-op jobs."""
    kinds = [(task, processes) for task in ("compute", "noop") for processes in (1, 2)]
    rates = {}
    for task, processes in in_turn(kinds, round_):
        amount = bench.amount(20_000 if task == "compute" else 100_000)
        rates[task, processes] = drain(bench, peer, amount, tasks=(task,), processes=processes)["jobs_per_s"]
    return {
        "compute_one": rates["compute", 1],
        "compute_ratio": rates["compute", 2] / rates["compute", 1],
        "noop_one": rates["noop", 1],
        "noop_ratio": rates["noop", 2] / rates["noop", 1],
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
CORES = Measure(
    "cores",
    "drain by two processes: 20,000 jobs that compute for 200 µs, and 100,000 no-op jobs",
    _cores,
    "compute_ratio",
    "of the rate with one process",
    times=2,
    only=frozenset({"holdfast"}),
)
SPREAD = Measure(
    "spread",
    "drain 100,000 jobs of 30 tasks, and of 3 priorities × 10 tasks with nine tenths in one",
    _spread,
    "thirty_ratio",
    "of the rate with one task",
    times=2,
    only=frozenset({"holdfast"}),
)

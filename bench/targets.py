"""What Holdfast sets itself to reach, judged by the medians of the rounds of one run."""
# ruff: noqa: RUF001 - the sign for times is meant

from collections.abc import Callable
from dataclasses import dataclass

from bench.results import Results

US = "holdfast"
# Those on PostgreSQL, which are there wherever this runs.
PEERS = frozenset({"graphile-worker", "pgmq", "pgqueuer", "awa-pg", "chancy", "procrastinate"})


@dataclass(frozen=True)
class Verdict:
    """One line: what was promised, what was found."""

    target: str
    found: str
    passed: bool | None

    @property
    def word(self) -> str:
        return {True: "PASS", False: "FAIL", None: "not measured"}[self.passed]


def judge(results: Results) -> list[Verdict]:
    """Every target; those that this run did not measure say so."""
    return [target(results) for target in TARGETS]


Target = Callable[[Results], Verdict]


def _at_least(text: str, least: float, ratio: Callable[[Results], float | None]) -> Target:
    def target(results: Results) -> Verdict:
        found = ratio(results)
        if found is None:
            return Verdict(text, "–", None)
        return Verdict(text, f"{found:.2f}×", found >= least)

    return target


def _at_most(text: str, most: float, value: Callable[[Results], float | None], unit: str = "×") -> Target:
    def target(results: Results) -> Verdict:
        found = value(results)
        if found is None:
            return Verdict(text, "–", None)
        return Verdict(text, f"{found:.2f}{unit}", found <= most)

    return target


def _over(measure: str, peer: str) -> Callable[[Results], float | None]:
    """Our rate by a peer's."""
    return lambda results: results.ratio(measure, US, peer, "jobs_per_s")


def _over_best(measure: str, *, broker: str | None = None) -> Callable[[Results], float | None]:
    """Our rate by the best peer's."""
    return lambda results: min(_ratios(results, measure, "jobs_per_s", broker), default=None)


def _under_best(measure: str, figure: str, *, broker: str | None = None) -> Callable[[Results], float | None]:
    """Our latency by the best peer's."""
    return lambda results: max(_ratios(results, measure, figure, broker), default=None)


def _own(measure: str, figure: str) -> Callable[[Results], float | None]:
    return lambda results: results.figure(measure, US, figure)


def _memory_growth(results: Results) -> float | None:
    before, after = (results.figure("memory", US, figure) for figure in ("rss_mb", "rss_mb_after"))
    return None if before is None or after is None else after / before


def _ratios(results: Results, measure: str, figure: str, broker: str | None) -> list[float]:
    """Our figure by that of each peer; nothing where one is missing or failed that might be the best."""
    found = {
        name: ratio
        for name, about in results.peers.items()
        if name != US and (broker is None or about["broker"] == broker)
        if (ratio := results.ratio(measure, US, name, figure)) is not None
    }
    return [] if PEERS - found.keys() else list(found.values())


POSTGRES = "PostgreSQL"

TARGETS: list[Target] = [
    *(
        _at_least(
            f"drain a burst of 100,000 no-op jobs, 1 process: at least {least}× {peer}",
            least,
            _over("drain_100k_1p", peer),
        )
        for peer, least in (
            ("graphile-worker", 2),
            ("pgqueuer", 4),
            ("awa-pg", 8),
            ("procrastinate", 100),
            ("celery", 30),
        )
    ),
    _at_least("1 ms async job, concurrency 100: at least 2× the best peer", 2, _over_best("realistic")),
    _at_least("30 tasks: at least 0.7 of the rate with one", 0.7, _own("spread", "thirty_ratio")),
    _at_least(
        "3 priorities × 10 tasks, nine tenths in one: at least 0.7 of the rate with one task",
        0.7,
        _own("spread", "skewed_ratio"),
    ),
    _at_least(
        "jobs that compute for 200 µs: 2 processes at least 1.5× one", 1.5, _own("cores", "compute_ratio")
    ),
    _at_least("no-op jobs: 2 processes no slower than one", 1.0, _own("cores", "noop_ratio")),
    _at_least("bulk enqueue: at least 1.5× the best peer", 1.5, _over_best("enqueue_bulk")),
    _at_least(
        "single enqueue: at least 0.95× the best PostgreSQL peer",
        0.95,
        _over_best("enqueue_one", broker=POSTGRES),
    ),
    _at_most(
        "pickup p50: at most 0.8× the best PostgreSQL peer's",
        0.8,
        _under_best("pickup", "p50", broker=POSTGRES),
    ),
    _at_most(
        "pickup p99: at most 1.25× the best PostgreSQL peer's",
        1.25,
        _under_best("pickup", "p99", broker=POSTGRES),
    ),
    _at_least("a million waiting: at least 0.95 of the rate without", 0.95, _own("backlog", "ratio")),
    _at_least(
        "a million waiting of an unknown task: at least 0.95 of the rate without",
        0.95,
        _own("backlog_unknown", "ratio"),
    ),
    _at_least(
        "snapshot held, the last three of ten rounds: at least 0.9 of those without",
        0.9,
        _own("snapshot", "held_ratio"),
    ),
    _at_least("the same while a transaction that enqueued stays open", 0.9, _own("snapshot", "open_ratio")),
    _at_most("delayed jobs on an idle queue: p95 at most 50 ms late", 50, _own("delayed", "p95"), " ms"),
    _at_most("100,000 due at once: urgent pickup p99 at most 3× idle", 3, _own("flood", "ratio")),
    _at_least(
        "16 producers, worker busy: with notification at least 0.9 of without",
        0.9,
        _own("producers", "ratio"),
    ),
    _at_most(
        "50 idle workers: a server with max_connections = 120 is enough",
        120,
        _own("idle", "max_connections_50"),
        "",
    ),
    _at_most("50 idle workers: at most 2 connections each", 2, _own("idle", "most_50"), ""),
    _at_most(
        "50 idle workers: at most 40 transactions/s in total", 40, _own("idle", "transactions_50"), "/s"
    ),
    _at_most("50 idle workers: server at most 5 % of one core", 5, _own("idle", "cpu_50"), " %"),
    _at_most("50 idle workers: at most 2 empty claims for each job", 2, _own("herd", "empty_50"), ""),
    _at_most("pickup p50 with 10 idle workers: at most 2× that with one", 2, _own("herd", "ratio")),
    _at_least(
        "stream of single jobs: beside a worker at least 0.8 of the rate alone", 0.8, _own("stream", "ratio")
    ),
    _at_most("stream of single jobs: pickup p99 at most 10 ms", 10, _own("stream", "p99"), " ms"),
    _at_most("memory after 100,000 jobs: at most 60 MB", 60, _own("memory", "rss_mb"), " MB"),
    # The allocator's last few percent are noise, not growth.
    _at_most("memory after a further million: not more (within 5 %)", 1.05, _memory_growth),
]

"""What a measure is, and what its cells have at hand."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from bench.peer import Done, Peer
from bench.processes import AgentFailed, Workers
from bench.server import Server

T = TypeVar("T")
Figures = dict[str, Any]

# How often the database is asked near the end, and how often the workers are looked at before: a peer that
# keeps both cores busy would pay for each question.
POLL_SECONDS, SELDOM_SECONDS = 0.004, 0.02


@dataclass(frozen=True)
class Options:
    """How large and how long."""

    # What a cell is sized to take, roughly; some have a second part of the same length.
    seconds: float = 4.0
    # A factor on all amounts, for trying the benchmark out.
    scale: float = 1.0
    samples: int = 200
    million: bool = False


@dataclass(frozen=True)
class Rates:
    """A peer's rough speed, by which cells are sized."""

    one: float
    bulk: float
    drain: float


@dataclass
class Bench:
    """What a cell has at hand."""

    server: Server
    options: Options
    rates: dict[str, Rates] = field(default_factory=dict)
    # Drains of this run: where a slow peer's 100k are as few as its 20k, some need not be drained twice.
    drains: dict[tuple[str, int, int, int], Figures] = field(default_factory=dict)
    # Numbers of workers, by peer, that need more connections than the server has: see start_fleet().
    crowded: set[tuple[str, int]] = field(default_factory=set)
    # What the rounds of a measure share: see keep().
    _kept: dict[str, Any] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)

    def keep(self, name: str, make: Callable[[], AbstractContextManager[T]]) -> T:
        """What is needed in all rounds of a measure, made in the first: so that rounds can be short."""
        if name not in self._kept:
            self._kept[name] = self._open.enter_context(make())
        return cast("T", self._kept[name])

    def put_away(self) -> None:
        """The measure has ended."""
        self._kept.clear()
        self._open.close()

    def amount(self, wanted: int) -> int:
        """What is wanted, in the scale of this run."""
        return max(int(wanted * self.options.scale), 100)

    def drainable(self, peer: Peer, wanted: int, seconds: float | None = None) -> int:
        """What is wanted, or as many jobs as the peer drains within the time of a cell."""
        if peer.judged:
            return self.amount(wanted)
        rates, seconds = self.rates[peer.name], seconds or self.options.seconds
        fits = rates.drain * seconds
        if peer.broker == "Redis":  # its jobs are enqueued anew for each cell
            fits = min(fits, rates.bulk * seconds)
        return _rounded(min(self.amount(wanted), fits))


@dataclass(frozen=True)
class Measure:
    """One row of the results: a cell for each peer and round."""

    name: str
    title: str
    run: Callable[[Bench, Peer, int], Figures]
    # The figure that the tables show and compare, and which way is better.
    figure: str
    unit: str
    higher_is_better: bool = True
    # Once for the whole run, where the cell has rounds of its own or does not vary.
    once: bool = False
    # Holdfast is judged by it against itself: the others are measured once.
    others_once: bool = False
    # How many times as many rounds Holdfast gets, where cells differ more than what is to be told apart; and
    # those near the best, of which there are some in rates alone.
    times: int = 1
    # Which peers are measured; all of them if none is named.
    only: frozenset[str] = frozenset()


class Given:
    """The share of its processors' time that the machine was given, from here on.

    A virtual one has to share them: what it wanted to run and could not, since its host ran somebody else, is
    known as stolen. A rate by this share is what it would have been otherwise, as far as the work is for
    processors; so two rates of the same work can be compared although the neighbours were not the same.
    """

    def __init__(self) -> None:
        self._before = _times()

    def share(self) -> float:
        spent = [now - before for before, now in zip(self._before, _times(), strict=True)]
        return 1 - spent[_STOLEN] / sum(spent) if any(spent) else 1.0


_STOLEN = 7


def _times() -> list[int]:
    """Of all processors: user, nice, system, idle, iowait, irq, softirq, stolen. Nothing where none tells."""
    try:
        return [int(each) for each in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    except OSError:
        return []


def in_turn(those: Iterable[T], round_: int) -> list[T]:
    """All of them, in another order each round: over twice as many rounds as there are, each comes as often
    in every place and after every other.

    For whatever one leaves behind, dirty pages or a Redis that writes its file, is felt by the next.
    """
    each = list(those)
    zigzag = [(step + 1) // 2 * (-1) ** (step + 1) for step in range(len(each))]  # 0, 1, -1, 2, -2 …
    order = [each[(round_ + step) % len(each)] for step in zigzag]
    return order[::-1] if each and round_ // len(each) % 2 else order


def until(done: Done, workers: Workers, amount: int, *, patience: float) -> float:
    """When all was done, on the monotonic clock: the beginning of the look that found it so."""
    deadline = time.monotonic() + patience
    while (ended := look(done, workers, amount)) is None:
        if time.monotonic() > deadline:
            raise AgentFailed(f"not finished after {patience:.0f} s ({workers.ran} handlers were called)")
    return ended


def look(done: Done, workers: Workers, amount: int) -> float | None:
    """When all was done, if it is; else only after a rest."""
    # So many handlers called: a worker says that every 20 ms.
    near = amount - max(amount // 20, min(amount // 2, 1_000))
    now = time.monotonic()
    if workers.ran > near and workers.first is not None and done():
        return now
    workers.check()
    time.sleep(POLL_SECONDS if workers.ran > near else SELDOM_SECONDS)
    return None


def median_ratio(pairs: Iterable[tuple[float, float]]) -> float | None:
    """The median of what the first is by the second, pair by pair; none of none.

    The machine is a fifth faster or slower from one minute to the next, which hits both sides of a pair, but
    not the medians of the two.
    """
    ratios = [one / other for one, other in pairs]
    return statistics.median(ratios) if ratios else None


def percentiles(waits: Sequence[float]) -> Figures:
    """p50, p95 and p99, each a value that occurred."""
    ordered = sorted(waits)
    if not ordered:
        raise AgentFailed("no stamped job was seen")
    ranks = {name: math.ceil(share * len(ordered)) - 1 for name, share in _SHARES.items()}
    return {name: ordered[rank] for name, rank in ranks.items()} | {"samples": len(ordered)}


_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def _rounded(amount: float) -> int:
    """To two digits, so that the sizes can be read."""
    if amount < 100:
        return 100
    step = 10 ** (int(math.log10(amount)) - 1)
    return int(amount // step * step)

"""Families of samples, and the text that Prometheus reads (version 0.0.4 of its format)."""

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

# The label of values that are counted together.
OTHER = "(other)"

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]

# From a millisecond to an hour, because jobs can take either.
JOB_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
ROUND_TRIP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Sample(NamedTuple):
    suffix: str
    labels: Labels
    value: float


@dataclass(slots=True)
class Family:
    """All samples of one name."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        self.samples.append(Sample("", tuple(labels.items()), value))


class Histogram:
    """A histogram of seconds. It is not thread-safe."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float] = JOB_SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_many(self, values: Sequence[float]) -> None:
        bounds, counts = self._bounds, self._counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def samples(self, labels: Mapping[str, str]) -> Iterator[Sample]:
        """Yield cumulative samples, as Prometheus expects them."""
        own, total = tuple(labels.items()), 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            yield Sample("_bucket", (*own, ("le", _number(bound))), total)
        yield Sample("_sum", own, self._sum)
        yield Sample("_count", own, total)


def exposition(families: Iterable[Family]) -> str:
    """Return the text of all families that have samples."""
    return "".join(line for family in families if family.samples for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.help, quotes=False)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for suffix, labels, value in family.samples:
        pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
        yield f"{family.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {_number(value)}\n"


def _number(value: float) -> str:
    if math.isinf(value) or math.isnan(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


_SPECIAL = {"\\": "\\\\", "\n": "\\n", '"': '\\"'}


def _escaped(text: str, *, quotes: bool = True) -> str:
    marks = r'[\\\n"]' if quotes else r"[\\\n]"
    return re.sub(marks, lambda mark: _SPECIAL[mark[0]], text)

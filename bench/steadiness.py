"""Whether the machine was as fast all the time: its cores may be shared with others, which no load shows.

A look is a fixed loop on each core, of 5 ms or so.
"""

import os
import time
from dataclasses import dataclass, field

TURNS = 60_000
SLOW = 4 / 3


@dataclass
class Steadiness:
    """How long the loop took, look by look and core by core."""

    looks: list[list[float]] = field(default_factory=list)

    def look(self) -> None:
        cores = os.sched_getaffinity(0)
        try:
            self.looks.append([_pace(core) for core in sorted(cores)])
        finally:
            os.sched_setaffinity(0, cores)

    @property
    def slow(self) -> float:
        """The share of looks that found a core a third slower than the fastest one ever was."""
        best = min(min(look) for look in self.looks)
        return sum(max(look) > SLOW * best for look in self.looks) / len(self.looks)

    def __str__(self) -> str:
        return f"a core was slowed down in {self.slow:.0%} of {len(self.looks)} looks"


def _pace(core: int) -> float:
    os.sched_setaffinity(0, {core})
    begun, total = time.perf_counter(), 0
    for number in range(TURNS):
        total += number * number
    return time.perf_counter() - begun

"""Counts how many jobs end in a second, now and over the last periods."""

from collections import deque

BLOCKS = " ▁▂▃▄▅▆▇█"
PERIOD = 0.5
WINDOW = 4
LENGTH = 24


class Throughput:
    """A counter with periods of half a second. It returns the average of the last two seconds."""

    def __init__(self) -> None:
        self._ended = 0
        self._began = 0.0
        self._periods: deque[int] = deque(maxlen=LENGTH)

    def note(self, seconds: float, ended: int) -> None:
        while seconds - self._began >= PERIOD:
            self._periods.append(ended - self._ended)
            self._ended = ended
            self._began += PERIOD

    @property
    def per_second(self) -> float:
        recent = list(self._periods)[-WINDOW:]
        return sum(recent) / (len(recent) * PERIOD) if recent else 0.0

    @property
    def line(self) -> str:
        """Return the last periods as a line of small bars."""
        highest = max(self._periods, default=0) or 1
        return "".join(BLOCKS[round(amount / highest * (len(BLOCKS) - 1))] for amount in self._periods)

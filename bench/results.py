"""What a run found: measure → peer → figures, round by round and as medians."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from bench.measure import Figures, median_ratio


@dataclass
class Cell:
    """One peer under one measure."""

    rounds: list[Figures] = field(default_factory=list)
    # Why there is no figure, or what is special about it.
    note: str = ""

    @property
    def median(self) -> Figures:
        """Figure by figure; what is no number stands as in the first round."""
        if not self.rounds:
            return {}
        return {name: _median([each[name] for each in self.rounds]) for name in self.rounds[0]}

    def as_json(self) -> dict[str, Any]:
        return {"median": self.median, "rounds": self.rounds} | ({"note": self.note} if self.note else {})


@dataclass
class Results:
    """Everything that is reported."""

    facts: dict[str, str]
    # name → version, settings, source, broker; or why it was skipped.
    peers: dict[str, dict[str, str]]
    skipped: dict[str, str]
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)

    def cell(self, measure: str, peer: str) -> Cell:
        return self.cells.setdefault(measure, {}).setdefault(peer, Cell())

    def figure(self, measure: str, peer: str, figure: str) -> float | None:
        """The median, if it was measured."""
        value = self.cells.get(measure, {}).get(peer, Cell()).median.get(figure)
        return None if value is None else float(value)

    def ratio(self, measure: str, one: str, other: str, figure: str) -> float | None:
        """One peer's figure by another's: the median of what it was in each round."""
        cells = self.cells.get(measure, {})
        rounds = zip(cells.get(one, Cell()).rounds, cells.get(other, Cell()).rounds, strict=False)
        return median_ratio((ours[figure], theirs[figure]) for ours, theirs in rounds)

    def measures_as_json(self) -> dict[str, Any]:
        return {
            measure: {peer: cell.as_json() for peer, cell in cells.items()}
            for measure, cells in self.cells.items()
        }


def _median(values: list[Any]) -> Any:
    return statistics.median(values) if isinstance(values[0], int | float) else values[0]

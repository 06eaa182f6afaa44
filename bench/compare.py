"""`python -m bench.compare --base COMMIT`: this checkout against an earlier commit of it, without peers.

Both sides are driven by the agent of this checkout, one right after the other, in an order that alternates
from round to round. A ratio is taken within each round; above 1 always means that this checkout is better.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import psycopg

from bench import server
from bench.cli import _amount, _names
from bench.comparisons import ALL, Row
from bench.environments import HERE
from bench.measure import Bench, Figures, Options, Rates, in_turn
from bench.peers.holdfast import Holdfast
from bench.processes import AgentFailed
from bench.run import probe, tell
from bench.server import Database

ROOT = HERE.parent
LEAST = 0.95
MIGRATE = """
import sys
from holdfast import Holdfast
with Holdfast(sys.argv[1]) as client:
    client.migrate()
"""


class Side(Holdfast):
    """One of the two checkouts."""

    # Release 0.1.0 has no table `live`.
    table: ClassVar[str] = "holdfast.job"

    def __init__(self, name: str, interpreter: Path) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc] # the two differ in nothing else
        self._interpreter = interpreter

    @property
    def interpreter(self) -> Path:
        return self._interpreter

    def prepare(self, database: Database) -> None:
        subprocess.run([self.interpreter, "-c", MIGRATE, database.dsn], check=True, capture_output=True)
        with database.connect() as connection:
            connection.execute("select * from holdfast.tick()")


@dataclass
class Found:
    """The figures of a row, round by round."""

    row: Row
    base: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        pairs = zip(self.new, self.base, strict=True)
        return [new / base if self.row.higher_is_better else base / new for new, base in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server and the checkout go with us
    try:
        commit = _git("rev-parse", "--short", "--verify", "--end-of-options", f"{given.base}^{{commit}}")
    except subprocess.CalledProcessError:
        tell(f"--base: there is no commit {given.base}")
        return 2
    found: dict[str, Found] = {}
    begun = time.monotonic()
    with ExitStack() as stack:
        tell(f"installing {commit}")
        interpreter = stack.enter_context(_checkout(commit))
        postgres, facts = stack.enter_context(server.start(given.dsn, given.home))
        sides = [Side("base", interpreter), Side("new", Path(sys.executable))]
        bench = Bench(postgres, Options(scale=given.scale, samples=given.samples))
        stack.callback(bench.put_away)
        _size_up(bench, sides)
        for number in range(given.rounds):
            for name in given.measures or ALL:
                _compare(bench, sides, name, number, found)
            tell(
                f"round {number + 1} of {given.rounds} ended after {(time.monotonic() - begun) / 60:.1f} min"
            )
        for side in sides:
            side.forget(postgres)
    if given.json:
        sys.stdout.write(json.dumps(_as_json(found)) + "\n")
    else:
        new = _git("rev-parse", "--short", "HEAD") + (
            " with changes" if _git("status", "--porcelain") else ""
        )
        sys.stdout.write(_table(found, f"{commit} (base) and {new} (new), {given.rounds} rounds"))
        sys.stdout.write(f"{facts['machine']}, PostgreSQL {facts['postgresql']}, load {facts['load']}\n")
    return 0


def _compare(bench: Bench, sides: Sequence[Side], name: str, number: int, found: dict[str, Found]) -> None:
    """One round of one measure. A round in which a side fails counts for neither, and is reported."""
    comparison = ALL[name]
    figures: dict[str, list[Figures]] = {side.name: [] for side in sides}
    try:
        for turn in range(comparison.turns):
            for side in in_turn(sides, number + turn):
                figures[side.name].append(comparison.run(bench, side, number))
    except (AgentFailed, RuntimeError, psycopg.Error) as error:
        tell(f"FAILED {name}, round {number + 1}, {side.name}: {' '.join(str(error).split())[-300:]}")
        return
    for row_name, row in comparison.rows.items():
        row_found = found.setdefault(row_name, Found(row))
        row_found.base.append(statistics.median(each[row_name] for each in figures["base"]))
        row_found.new.append(statistics.median(each[row_name] for each in figures["new"]))
        tell(f"  {row_name:20} base {row_found.base[-1]:12,.2f}  new {row_found.new[-1]:12,.2f} {row.unit}")


def _size_up(bench: Bench, sides: Sequence[Side]) -> None:
    """Both sides get the same amounts of work: those that suit the slower one."""
    probed = [Rates(**probe(bench, side)) for side in sides]
    slower = replace(
        probed[0],
        one=min(each.one for each in probed),
        bulk=min(each.bulk for each in probed),
        drain=min(each.drain for each in probed),
    )
    for side in sides:
        bench.rates[side.name] = slower


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """The interpreter of an environment with the code of this commit; both are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hfbench-base-") as directory:
        tree, environment = Path(directory, "tree"), Path(directory, "environment")
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            # What the two need besides has the same versions on both sides.
            pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
            constraints = ["--constraint", str(ROOT / "constraints.txt")]
            subprocess.run([*pip, *constraints, str(tree), "uvloop"], check=True)
            yield environment / "bin" / "python"
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _table(found: Mapping[str, Found], title: str) -> str:
    head = f"{'measure':20} {'base':>12} {'new':>12} {'':7} {'ratio':>6}   range of ratios"
    lines = [
        title,
        "A ratio above 1 means that new is better; it is base / new for times and memory.",
        "",
        head,
    ]
    for name, each in found.items():
        lines.append(
            f"{name:20} {statistics.median(each.base):12,.2f} {statistics.median(each.new):12,.2f} "
            f"{each.row.unit:7} {each.ratio:6.3f}   {min(each.ratios):.3f} to {max(each.ratios):.3f}"
            + (f"   BELOW {LEAST}" if each.ratio < LEAST else "")
        )
    return "\n".join(lines) + "\n\n"


def _as_json(found: Mapping[str, Found]) -> dict[str, object]:
    return {
        name: {"unit": each.row.unit, "base": each.base, "new": each.new, "ratio": each.ratio}
        for name, each in found.items()
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--base", required=True, help="the commit to compare with, from that of 0.1.0 on")
    parser.add_argument("--rounds", type=_amount(int), default=5, help="alternating rounds (default 5)")
    parser.add_argument("--measures", type=_names(ALL), help=f"some of: {', '.join(ALL)}")
    parser.add_argument(
        "--scale", type=_amount(float), default=0.5, help="a factor on all amounts (default 0.5)"
    )
    parser.add_argument(
        "--samples", type=_amount(int), default=200, help="jobs per latency measure (default 200)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: measure → figures")
    parser.add_argument("--dsn", help="a superuser's DSN of a server; databases are made and dropped there")
    parser.add_argument("--home", type=Path, help="where the private server keeps its data (default: TMPDIR)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

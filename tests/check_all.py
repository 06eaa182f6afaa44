"""Run every check that is too long for `make test`, and print which of them are green: `make check-all`.

python tests/check_all.py                    all checks
python tests/check_all.py mutants wheel      only these
python tests/check_all.py --write            all, and put the results on docs/operations/proof.md
python tests/check_all.py --seeds 10         torture with ten seeds instead of two
python tests/check_all.py --abreast 2        two checks at a time
"""
# ruff: noqa: T201 - a script for the terminal

import argparse
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

HOUSE = Path(__file__).parent.parent
PROOF = HOUSE / "docs" / "operations" / "proof.md"


class Check(NamedTuple):
    """A make target, what it shows, and the lines of its output that say so."""

    target: str
    shows: str
    telling: str


CHECKS = [
    Check(
        "test-matrix",
        "every test, on PostgreSQL 15 to 18 and each Python present",
        r"^(?:PostgreSQL|Python) [\d.]+: .*",
    ),
    Check("mutants", "each guard is watched by a test", r"^\d+ mutants, .*|^ALIVE .*"),
    Check("fuzz", "20,000 cron expressions agree with cronsim", r"^=* ?\d+ (?:passed|failed).*"),
    Check("torture", "nothing is lost or run twice unseen", r"^seed .*|^  .*|^\d+ seeds.*"),
    Check("wheel", "the wheel holds all SQL and runs the demo", r"^wheel: .*"),
]


class Outcome(NamedTuple):
    check: Check
    green: bool
    seconds: float
    telling: list[str]

    def __str__(self) -> str:
        state = "green" if self.green else "FAILED"
        return f"{state:6} {self.seconds / 60:5.1f} min  make {self.check.target}: {self.check.shows}"


def run(check: Check, seeds: int) -> Outcome:
    """Run one check; its output goes to the terminal as it comes."""
    print(f"== make {check.target}", flush=True)
    begun = time.monotonic()
    lines = []
    command = ["make", "--no-print-directory", check.target, f"SEEDS={seeds}"]
    with subprocess.Popen(
        command, cwd=HOUSE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{check.target}: {line}", end="", flush=True)
            lines.append(line.rstrip())
    telling = [line for line in lines if re.match(check.telling, line)]
    return Outcome(check, process.returncode == 0, time.monotonic() - begun, telling)


def rows_of(outcome: Outcome, commit: str, today: str) -> tuple[str, list[str]]:
    """Return the row of the table, and the lines of output, that the page shows for a check."""
    check, result = outcome.check, "green" if outcome.green else "**failed**"
    cells = (
        f"`make {check.target}`",
        check.shows,
        result,
        f"{outcome.seconds / 60:.0f} min",
        today,
        f"`{commit}`",
    )
    return f"| {' | '.join(cells)} |", [f"$ make {check.target}", *outcome.telling]


def known(part: str) -> dict[str, tuple[str, list[str]]]:
    """Return what the page shows so far, by target."""
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `make ([a-z-]+)` .*$", part, re.MULTILINE)}
    output = part.partition("```text\n")[2].rpartition("\n```")[0]
    blocks = {block.split("\n")[0]: block.rstrip().split("\n")[1:] for block in output.split("$ make ")}
    return {target: (row, [f"$ make {target}", *blocks.get(target, [])]) for target, row in rows.items()}


def write(outcomes: list[Outcome]) -> None:
    """Replace the results of these checks on the page, and keep those of the others."""
    commit = subprocess.run(
        ["git", "-C", str(HOUSE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    today = datetime.now(UTC).date().isoformat()
    head, rest = PROOF.read_text(encoding="utf-8").split("<!-- last result -->\n", 1)
    part, tail = rest.split("<!-- end of last result -->", 1)
    shown = known(part) | {it.check.target: rows_of(it, commit, today) for it in outcomes}
    in_order = [shown[check.target] for check in CHECKS if check.target in shown]
    lines = [
        "| command | what it shows | result | time | date | commit |",
        "|---|---|---|---|---|---|",
        *(row for row, _ in in_order),
        "",
        "```text",
        *"\n\n".join("\n".join(output) for _, output in in_order).split("\n"),
        "```",
    ]
    text = "\n".join(lines)
    PROOF.write_text(
        f"{head}<!-- last result -->\n{text}\n<!-- end of last result -->{tail}", encoding="utf-8"
    )
    print(f"written to {PROOF.relative_to(HOUSE)}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [check.target for check in CHECKS]
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help=f"put the result on {PROOF.relative_to(HOUSE)}")
    parser.add_argument("--seeds", type=int, default=2, help="how many seeds of torture (default 2)")
    parser.add_argument("--abreast", type=int, default=1, help="how many checks at a time (default 1)")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(names):
        parser.error(f"unknown target {min(unknown)}; choose from {', '.join(names)}")
    wanted = [check for check in CHECKS if not given.targets or check.target in given.targets]
    with ThreadPoolExecutor(given.abreast) as pool:
        outcomes = list(pool.map(lambda check: run(check, given.seeds), wanted))
    print("\n" + "\n".join(str(outcome) for outcome in outcomes))
    if given.write:
        write(outcomes)
    return any(not outcome.green for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())

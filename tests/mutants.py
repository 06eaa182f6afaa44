"""Remove one guard at a time and check that a test notices: `make mutants`.

    python tests/mutants.py                 every mutant
    python tests/mutants.py claim.sql       the mutants of one SQL file
    python tests/mutants.py "any lease"     the mutants whose names contain these words

Each mutant is one change to one SQL function. It names the tests that must then fail, and only those run. A
mutant that survives is a promise that no test checks. `mutants/claim.toml` holds the mutants of `claim.sql`.
"""
# ruff: noqa: T201 - a script for the terminal

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HOUSE = Path(__file__).parent.parent
DATA = Path(__file__).parent / "mutants"
SQL = Path("src/holdfast/sql/functions")
# A test mostly waits for its server, so two tests can share two cores.
ABREAST = 2


class Mutant(NamedTuple):
    name: str
    file: Path
    guard: str
    instead: str
    tests: str


def load() -> Iterator[Mutant]:
    """Read the mutants of each SQL file."""
    for data in sorted(DATA.glob("*.toml")):
        (file,) = (HOUSE / SQL).glob(f"*/{data.stem}.sql")
        for fields in tomllib.loads(data.read_text(encoding="utf-8"))["mutant"]:
            yield Mutant(file=file.relative_to(HOUSE), **fields)


MUTANTS = list(load())


def main() -> int:
    begun = time.monotonic()
    mutants = [mutant for mutant in MUTANTS if _is_wanted(mutant, sys.argv[1:])]
    for mutant in mutants:
        _without_guard(mutant, (HOUSE / mutant.file).read_text())
    if fails(None, sorted({test for mutant in mutants for test in mutant.tests.split()})):
        raise SystemExit("a test fails although nothing was taken away: that proves nothing")
    print(
        f"control {time.monotonic() - begun:5.1f} s  with every guard in its place, all tests pass",
        flush=True,
    )
    with ThreadPoolExecutor(ABREAST) as pool:
        survived = sum(pool.map(survives, mutants))
    print(f"{len(mutants)} mutants, {survived} alive, in {time.monotonic() - begun:.0f} s")
    return bool(survived)


def _is_wanted(mutant: Mutant, words: Sequence[str]) -> bool:
    return not words or any(word in mutant.name or word == mutant.file.name for word in words)


def survives(mutant: Mutant) -> bool:
    """Return whether all tests of a mutant pass without its guard."""
    since = time.monotonic()
    caught = fails(mutant, mutant.tests.split())
    print(
        f"{'caught' if caught else 'ALIVE ':7} {time.monotonic() - since:5.1f} s  {mutant.name}", flush=True
    )
    return not caught


def fails(mutant: Mutant | None, tests: Sequence[str]) -> bool:
    """Return whether one of the tests fails on a copy of the source without the mutant's guard."""
    with tempfile.TemporaryDirectory(prefix="hf-mutant-") as directory:
        shutil.copytree(HOUSE / "src", Path(directory, "src"), ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            file = Path(directory) / mutant.file
            file.write_text(_without_guard(mutant, file.read_text()))
        run = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
                *(str(HOUSE / "tests" / test) for test in tests),
            ],
            cwd=HOUSE,
            # A statement that waits for a lock which it should skip then fails.
            env={**os.environ, "PYTHONPATH": str(Path(directory, "src")), "PGOPTIONS": "-c lock_timeout=5s"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        summary = run.stdout.strip().splitlines()[-1]
        if run.returncode not in (0, 1) or " error" in summary or "SyntaxError" in run.stdout:
            # The mutant could not be installed or read, so it proves nothing.
            raise SystemExit(f"{mutant and mutant.name}:\n{run.stdout[-3000:]}\n{run.stderr}")
        if mutant is None and run.returncode:
            print(run.stdout[-3000:])
        return run.returncode == 1


def _without_guard(mutant: Mutant, text: str) -> str:
    if text.count(mutant.guard) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.file.name} has its guard {text.count(mutant.guard)} times")
    return text.replace(mutant.guard, mutant.instead)


if __name__ == "__main__":
    sys.exit(main())

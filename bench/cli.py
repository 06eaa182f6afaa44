"""`python -m bench`: choose peers, measures and rounds; see README.md."""

import argparse
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import psycopg

from bench import measures, peers, report, server
from bench.environments import HERE
from bench.measure import Bench, Options
from bench.peer import Peer
from bench.results import Results
from bench.run import Run, install, tell
from bench.targets import judge
from holdfast.values.errors import suggest

N = TypeVar("N", int, float)
RESULTS = HERE / "results"
QUIET = 0.5
DEFAULTS = {"rounds": 3, "scale": 1.0, "seconds": 3.0, "samples": 200}
QUICK = argparse.Namespace(
    peers=["holdfast", "graphile-worker", "pgqueuer"],
    measures=["enqueue_one", "enqueue_bulk", "drain_20k_1p", "realistic", "pickup"],
    seconds=1.0,
    samples=60,
)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    usual = all(getattr(given, name) == value for name, value in DEFAULTS.items())
    whole = usual and not (given.quick or given.peers or given.measures)
    directory = given.results or (RESULTS if whole else RESULTS / "partial")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server and the agents go with us
    if given.quick:
        given.peers = given.peers or QUICK.peers
        given.measures = given.measures or QUICK.measures
        given.seconds, given.samples = QUICK.seconds, QUICK.samples
    if given.dsn and (trouble := _unreachable(given.dsn)):
        tell(f"--dsn: the server does not answer: {trouble}")
        return 2
    chosen = [peers.ALL[name]() for name in given.peers or peers.ALL]
    wanted = [measures.ALL[name] for name in given.measures or measures.ALL]
    ready, skipped = install(chosen)
    if given.install:
        return 1 if skipped else 0
    options = Options(
        seconds=given.seconds,
        scale=given.scale,
        samples=given.samples,
        million=given.million,
    )
    with server.start(given.dsn, given.home) as (postgres, facts):
        _warn(facts)
        about = {"command": _command(given), "commit": _commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        results = Results(about | facts, _about(ready), skipped)
        run = Run(Bench(postgres, options), ready, results, minutes=given.minutes)
        run.go(wanted, given.rounds, quick=given.quick)
    # Fewer rounds, or other amounts, say nothing about them.
    verdicts = judge(results) if given.scale == 1 and given.rounds >= DEFAULTS["rounds"] else []
    text = report.markdown(results, verdicts, given.rounds)
    written = report.write(results, verdicts, text, directory)
    if given.json:
        sys.stdout.write(json.dumps(results.measures_as_json(), ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(text)
    tell(f"written: {', '.join(path.name for path in written)} in {directory.name}/")
    return 0


def _unreachable(dsn: str) -> str | None:
    """Why it cannot be used, said before anything is installed."""
    try:
        psycopg.connect(dsn, connect_timeout=10).close()
    except psycopg.Error as error:
        return " ".join(str(error).split())
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--peers", type=_names(peers.ALL), help=f"some of: {', '.join(peers.ALL)}")
    parser.add_argument("--measures", type=_names(measures.ALL), help=f"some of: {', '.join(measures.ALL)}")
    parser.add_argument(
        "--rounds", type=_amount(int), default=DEFAULTS["rounds"], help="alternating rounds (default 3)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: measure → peer → figures")
    parser.add_argument(
        "--quick", action="store_true", help="three peers, five measures, under three minutes"
    )
    parser.add_argument("--million", action="store_true", help="also a further million jobs for the memory")
    parser.add_argument(
        "--seconds",
        type=_amount(float),
        default=DEFAULTS["seconds"],
        help="what a cell is sized to (default 3)",
    )
    parser.add_argument(
        "--minutes", type=_amount(float), default=57.0, help="no cell begins after this (default 57)"
    )
    parser.add_argument(
        "--samples",
        type=_amount(int),
        default=DEFAULTS["samples"],
        help="jobs per latency cell (default 200)",
    )
    parser.add_argument(
        "--scale",
        type=_amount(float),
        default=DEFAULTS["scale"],
        help="a factor on all amounts, to try it out",
    )
    parser.add_argument(
        "--dsn", help="a superuser's DSN of another server; databases are made and dropped there"
    )
    parser.add_argument("--home", type=Path, help="where the private server keeps its data (default: TMPDIR)")
    parser.add_argument(
        "--results", type=Path, help="where the results go (default: bench/results, or partial/ in it)"
    )
    parser.add_argument("--install", action="store_true", help="only install the peers")
    return parser


def _names(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    """Names out of these, separated by commas."""

    def names(text: str) -> list[str]:
        found = text.replace(",", " ").split()
        if not found:
            raise argparse.ArgumentTypeError(f"names none: choose from {', '.join(known)}")
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name}. {suggest(name, known)}")
        return found

    return names


def _amount(kind: Callable[[str], N]) -> Callable[[str], N]:
    """A number above zero."""

    def amount(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not 0 < value < math.inf:
            whole = "whole " if kind is int else ""
            raise argparse.ArgumentTypeError(f"{text}: must be a {whole}number above 0")
        return value

    return amount


def _about(ready: Sequence[Peer]) -> dict[str, dict[str, str]]:
    return {
        peer.name: {
            "version": peer.version,
            "settings": peer.settings,
            "source": peer.source,
            "broker": peer.broker,
        }
        for peer in ready
    }


def _command(given: argparse.Namespace) -> str:
    """What to type to repeat this, without paths and passwords."""
    words = ["python -m bench"]
    words += [f"--{name}" for name in ("quick", "million") if getattr(given, name)]
    if not given.quick:
        words += [
            f"--{name} {','.join(getattr(given, name))}"
            for name in ("peers", "measures")
            if getattr(given, name)
        ]
    words += [
        f"--{name} {value:g}"
        for name, usual in DEFAULTS.items()
        if (value := getattr(given, name)) != usual and not given.quick
    ]
    return " ".join(words)


def _commit() -> str:
    """Which code was measured."""

    def git(*words: str) -> str:
        return subprocess.check_output(
            ["git", *words], cwd=HERE, text=True, stderr=subprocess.DEVNULL
        ).strip()

    try:
        changed = git("status", "--porcelain", "--", ".", "../src", ":(exclude)results")
        return git("rev-parse", "--short", "HEAD") + (", with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _warn(facts: dict[str, str]) -> None:
    if float(facts["load"].split()[0]) > QUIET:
        tell(f"WARNING: the machine is not quiet (load {facts['load']}); read the ratios with care")

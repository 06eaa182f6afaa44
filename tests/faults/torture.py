"""Everything that can break, breaks, while thousands of jobs run; then the database's own history is checked.

    python -m tests.faults.torture --seeds 10 --jobs 10000 --faults 60

Real worker processes and a real server, with a proxy before it. A seeded nemesis kills, stops, cuts and
silences; a producer goes on enqueueing and cancelling, through the proxy too. When it is over, every job must
have ended, in time, and the checker looks for what must never have happened. The seed repeats the choice of
faults and jobs, not the moments at which they meet.
"""
# ruff: noqa: T201 - a script for the terminal

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from holdfast.embedded.binaries import newest_in_wheels
from tests.faults.torture_arena import arena
from tests.faults.torture_checker import HISTORY, Verdict, check, settle
from tests.faults.torture_faults import FAULTS
from tests.faults.torture_producer import Producer


def torture(seed: int, jobs: int, faults: int) -> Verdict:
    """Every kind of fault once, then more of them by chance, while the jobs come in."""
    verdict = Verdict(seed, jobs, faults)
    with arena(seed) as place:
        place.ask(HISTORY)
        place.replace_the_dead()
        producer = Producer(place, jobs, seed, pace=faults * 1.5 / jobs)
        producer.start()
        kinds = place.chance.sample(FAULTS, len(FAULTS))
        kinds += [place.chance.choice(FAULTS) for _ in range(faults - len(kinds))]
        for fault in kinds[:faults]:
            time.sleep(place.chance.uniform(0.2, 1.0))
            fault(place)
            place.faults[fault.__name__] += 1
            place.replace_the_dead()
        place.end_transactions()
        producer.faults_are_over.set()
        producer.join()
        verdict.settled = settle(place)
        check(place, producer, verdict)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--abreast", type=int, default=1, help="how many seeds at a time")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=len(FAULTS))
    given = parser.parse_args()
    os.environ.setdefault("HOLDFAST_PG_BIN", str(newest_in_wheels()))  # as all tests
    broken = 0
    seeds = range(given.seed, given.seed + given.seeds)
    with ProcessPoolExecutor(given.abreast, max_tasks_per_child=1) as pool:
        for verdict in pool.map(torture, seeds, repeat(given.jobs), repeat(given.faults)):
            print(verdict, flush=True)
            broken += bool(verdict.violations)
    print(f"{given.seeds} seeds, {broken} with violations")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())

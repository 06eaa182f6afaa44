"""Everything that can break, breaks, while thousands of jobs run; then the database's own history is checked.

    python tests/faults/torture.py --seeds 10 --jobs 10000 --faults 60

Real worker processes and a real server, with a proxy between them. A seeded nemesis kills, stops, cuts and
silences; producers go on enqueueing and cancelling. When it is over, every job must have ended, in time, and
the checker looks for what must never have happened. The seed repeats the choice of faults and jobs, not the
moments at which they meet.
"""
# ruff: noqa: T201, E402, E501 - a script for the terminal, with long queries

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import psycopg
from proxy import Proxy

from holdfast import Holdfast, HoldfastError, embedded

APP = Path(__file__).with_name("torture_app.py")
SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200"}
LEASE = 2.0
WORKERS = 3
# After the last fault: recovery waits a lease after an outage and another to judge, then come the retries.
SETTLED_WITHIN = 60.0

HISTORY = """
create table effect (job_id uuid not null);
create table history (
  n bigint generated always as identity primary key,
  job_id uuid not null,
  event text not null,
  lease uuid,
  attempt integer not null,
  max_attempts integer not null
);
create function keep_history() returns trigger language plpgsql security definer as $$
begin
  if tg_table_name = 'job' then
    insert into public.history (job_id, event, lease, attempt, max_attempts)
    values (new.id, case when new.state = 'claimed' then 'claimed' else 'given back' end, new.lease, new.attempt, new.max_attempts);
  else
    insert into public.history (job_id, event, lease, attempt, max_attempts)
    values (new.id, coalesce(to_jsonb(new) ->> 'state', 'dead'), new.lease, new.attempt, new.max_attempts);
  end if;
  return null;
end $$;
create trigger keep_history after update on holdfast.job
for each row when (old.lease is distinct from new.lease) execute function keep_history();
create trigger keep_history after insert on holdfast.finished for each row execute function keep_history();
create trigger keep_history after insert on holdfast.dead_letter for each row execute function keep_history();
"""

# What must not be. Each question is answered with the jobs that break the promise.
VIOLATIONS = {
    "a job has ended more than once": """
        select job_id from history where event in ('completed', 'cancelled', 'dead') group by job_id having count(*) > 1""",
    "a job is in more than one place": """
        select id from (
          select id from holdfast.job union all select id from holdfast.finished union all select id from holdfast.dead_letter
        ) j group by id having count(*) > 1""",
    "a report counted under a lease that was not the current one": """
        select e.job_id
        from history e
        cross join lateral (
          select h.lease, h.event from history h where h.job_id = e.job_id and h.n < e.n order by h.n desc limit 1
        ) before
        where e.event = 'completed' and (before.event <> 'claimed' or before.lease is distinct from e.lease)""",
    "more attempts than allowed": "select job_id from history where attempt > max_attempts",
    "an attempt was handed out twice at the same time": """
        select e.job_id
        from history e
        join history n on n.job_id = e.job_id and n.n = (select min(h.n) from history h where h.job_id = e.job_id and h.n > e.n)
        where e.event = 'claimed' and n.event = 'claimed' and n.attempt > e.attempt""",
    "an effect without its completion": """
        select e.job_id from effect e
        where not exists (select from holdfast.finished f where f.id = e.job_id and f.state = 'completed')""",
    "an effect more than once": "select job_id from effect group by job_id having count(*) > 1",
    "a completion without its effect": """
        select f.id from holdfast.finished f
        where f.task in ('effect', 'aeffect') and f.state = 'completed'
          and not exists (select from effect e where e.job_id = f.id)""",
    "a job that kills its worker is not dead": """
        select id from holdfast.jobs where task = 'poison' and state not in ('dead', 'cancelled')""",
    "a job is not finished": "select id from holdfast.job",
}


class Arena:
    """A server, a proxy in front of it, workers behind the proxy, and producers."""

    def __init__(self, home: Path, chance: random.Random) -> None:
        self.chance = chance
        self.home = home
        self.marks = home.parent / f"{home.name}.marks"
        self.marks.touch()
        self._shares = [embedded.start(home, settings=SETTINGS)]
        self.dsn = self._shares[0].dsn
        with Holdfast(self.dsn) as hf:
            hf.migrate()
        self.ask(HISTORY)
        self.proxy = Proxy(self.dsn)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.faults: Counter[str] = Counter()

    def ask(self, question: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(question, values or None)
            return cursor.fetchall() if cursor.description else []

    # Workers.

    def hire(self, **options: Any) -> None:
        given = json.dumps(
            {"concurrency": 10, "lease_time": LEASE, "poll_interval": 0.5, "grace": 1, **options}
        )
        environ = {**os.environ, "HOLDFAST_DSN": self.proxy.dsn, "TORTURE_MARKS": str(self.marks)}
        worker = subprocess.Popen(
            [sys.executable, APP, given], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.workers.append(worker)

    def replace_the_dead(self) -> None:
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < WORKERS:
            self.hire()

    def some_worker(self) -> subprocess.Popen[bytes]:
        self.replace_the_dead()
        return self.chance.choice(self.workers)

    # The server.

    def postmaster(self) -> int:
        return int((self.home / "data" / "postmaster.pid").read_text().splitlines()[0])

    def stop_server(self, how: signal.Signals) -> None:
        pid = self.postmaster()
        os.kill(pid, how)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)
        raise AssertionError("the server did not stop")

    def start_server(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                self._shares.append(embedded.start(self.home, settings=SETTINGS))
            except embedded.EmbeddedError:  # its children are still on their way out
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def until_it_answers(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                self.ask("select 1")
            except psycopg.Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def log(self) -> str:
        return "".join(
            path.read_text(errors="replace") for path in self.home.rglob("*log*") if path.is_file()
        )

    def close(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()
        for share in self._shares:
            share.stop()
        self.marks.unlink()


# Faults. Each leaves everything as it should be again, or as the workers must put right by themselves.


def kill_worker(arena: Arena) -> None:
    arena.some_worker().kill()


def stop_worker_for_a_while(arena: Arena) -> None:
    worker = arena.some_worker()
    worker.send_signal(signal.SIGSTOP)
    time.sleep(arena.chance.choice([0.5, LEASE * 2]))
    worker.send_signal(signal.SIGCONT)


def end_worker_in_good_order(arena: Arena) -> None:
    arena.some_worker().terminate()


def worker_a_day_ahead(arena: Arena) -> None:
    arena.some_worker().kill()
    arena.hire(shift=86_400)


def worker_a_day_behind(arena: Arena) -> None:
    arena.some_worker().kill()
    arena.hire(shift=-86_400)


def terminate_backends(arena: Arena) -> None:
    arena.ask(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name like 'holdfast%%' order by random() limit 3"
    )


def kill_backend(arena: Arena) -> None:
    """The server ends all the others too, and recovers."""
    pids = arena.ask(
        "select pid from pg_stat_activity where application_name like 'holdfast%%' and state is not null"
    )
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(arena.chance.choice(pids)[0], signal.SIGKILL)
        arena.until_it_answers()


def kill_postmaster(arena: Arena) -> None:
    arena.stop_server(signal.SIGKILL)
    arena.start_server()


def restart_at_once(arena: Arena) -> None:
    arena.stop_server(signal.SIGQUIT)
    arena.start_server()


def stop_server_for_long(arena: Arena) -> None:
    arena.stop_server(signal.SIGINT)
    time.sleep(LEASE * 1.5)
    arena.start_server()


def cut_connections(arena: Arena) -> None:
    arena.proxy.cut(arena.chance.choice(["claimer", "finisher", "duties", "keeper", "listener", "all"]))


def silence_connections(arena: Arena) -> None:
    arena.proxy.silence(arena.chance.choice(["claimer", "finisher", "duties", "keeper", "listener"]))


def lose_replies(arena: Arena) -> None:
    """The answer to a commit never arrives."""
    purpose = arena.chance.choice(["claimer", "finisher", "keeper"])
    arena.proxy.swallow(lambda of, _data: of == purpose, times=arena.chance.randint(1, 3))


FAULTS: list[Callable[[Arena], None]] = [
    kill_worker,
    stop_worker_for_a_while,
    end_worker_in_good_order,
    worker_a_day_ahead,
    worker_a_day_behind,
    terminate_backends,
    kill_backend,
    kill_postmaster,
    restart_at_once,
    stop_server_for_long,
    cut_connections,
    silence_connections,
    lose_replies,
]


class Producer(threading.Thread):
    """Enqueues one job after another under ids of its own; each for sure, whatever happens in between."""

    def __init__(self, arena: Arena, amount: int, seed: int, *, pace: float) -> None:
        """`pace` is how long it waits after each, so that jobs come in as long as there are faults."""
        super().__init__()
        self.acknowledged: set[UUID] = set()
        self._pace = pace
        self._arena = arena
        self._amount = amount
        self._chance = random.Random(seed)

    def run(self) -> None:
        with Holdfast(self._arena.dsn) as hf:
            while len(self.acknowledged) < self._amount:
                task, payload = self._job()
                job_id = uuid4()
                while True:
                    try:
                        hf.enqueue(task, payload, id=job_id, priority=self._chance.choice([50, 100, 150]))
                    except HoldfastError:
                        time.sleep(0.05)  # whether it is there or not: the same id again is the same job
                    else:
                        break
                self.acknowledged.add(job_id)
                if self._chance.random() < 0.03:
                    with contextlib.suppress(HoldfastError):
                        hf.job(job_id).cancel()
                time.sleep(self._pace)

    def _job(self) -> tuple[str, dict[str, Any]]:
        chance = self._chance
        seconds = chance.choice([0, 0, 0.01, 0.3])
        return chance.choices(
            [
                ("noop", {}),
                ("slow", {"seconds": seconds}),
                ("thread", {"seconds": seconds}),
                ("flaky", {"failures": chance.randint(1, 2)}),
                ("snooze", {}),
                ("effect", {"seconds": seconds}),
                ("aeffect", {"seconds": seconds}),
                ("once", {"seconds": seconds}),
                ("process", {"ends": chance.choice(["well", "well", "well", "badly"])}),
                ("poison", {}),
            ],
            weights=[40, 8, 8, 10, 4, 10, 10, 8, 1.8, 0.2],
        )[0]


class Verdict:
    """What a run has found."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.jobs = 0
        self.states: dict[str, int] = {}
        self.faults: Counter[str] = Counter()
        self.violations: dict[str, int] = {}
        self.settled = 0.0

    def __str__(self) -> str:
        faults = ", ".join(
            f"{name.replace('_', ' ')} {amount}" for name, amount in sorted(self.faults.items())
        )
        lines = [
            f"seed {self.seed}: {self.jobs:,} jobs {self.states}, settled {self.settled:.1f} s after the last fault",
            f"  {sum(self.faults.values())} faults of {len(self.faults)} kinds: {faults}",
            f"  {sum(self.violations.values())} violations",
        ]
        lines += [f"  VIOLATION {name}: {amount} jobs" for name, amount in self.violations.items()]
        if self.violations:
            lines.append(f"  repeat it: python tests/faults/torture.py --seed {self.seed} --jobs {self.jobs}")
        return "\n".join(lines)


@contextlib.contextmanager
def arena(seed: int) -> Iterator[Arena]:
    with tempfile.TemporaryDirectory(prefix="hf-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        home = Path(directory, "home")
        home.mkdir(mode=0o755)
        place = Arena(home, random.Random(seed))
        try:
            with place.proxy:
                yield place
        finally:
            place.close()


def torture(seed: int, jobs: int, faults: int) -> Verdict:
    """Every kind of fault once, then more of them by chance, while the jobs come in."""
    verdict = Verdict(seed)
    with arena(seed) as place:
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
        producer.join()
        verdict.settled = _settle(place)
        _check(place, producer.acknowledged, verdict)
    return verdict


def _settle(place: Arena) -> float:
    """Wait until all jobs have ended; workers that a job has killed are replaced, as they would be anywhere."""
    begun = time.monotonic()
    while time.monotonic() - begun < SETTLED_WITHIN:
        place.replace_the_dead()
        with contextlib.suppress(psycopg.Error):
            if place.ask("select count(*) from holdfast.job") == [(0,)]:
                break
        time.sleep(0.2)
    return time.monotonic() - begun


def _check(place: Arena, acknowledged: set[UUID], verdict: Verdict) -> None:
    verdict.jobs = len(acknowledged)
    verdict.faults = place.faults
    verdict.states = dict(
        place.ask("select state, count(*) from holdfast.jobs group by state order by state")
    )
    known = {row[0] for row in place.ask("select id from holdfast.jobs")}
    found = {name: len(place.ask(question)) for name, question in VIOLATIONS.items()}
    found["an acknowledged job is lost"] = len(acknowledged - known)
    marks = Counter(place.marks.read_text().split())
    found["a job that may run once ran twice"] = sum(amount > 1 for amount in marks.values())
    found["a deadlock in the server's log"] = place.log().count("deadlock detected")
    verdict.violations = {name: amount for name, amount in found.items() if amount}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=len(FAULTS))
    given = parser.parse_args()
    broken = 0
    for seed in range(given.seed, given.seed + given.seeds):
        verdict = torture(seed, given.jobs, given.faults)
        print(verdict, flush=True)
        broken += bool(verdict.violations)
    print(f"{given.seeds} seeds, {broken} with violations")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())

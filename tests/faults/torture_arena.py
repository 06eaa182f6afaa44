"""Where the torture takes place: a server of its own, a proxy before it, and workers that come and go."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Holdfast, embedded
from holdfast.testing.homes import temporary_home
from tests.faults.proxy import Proxy
from tests.waiting import until

APP = Path(__file__).with_name("torture_app.py")
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "log_line_prefix": "%m [%p] %e ",  # with the SQLSTATE
}
LEASE = 2.0
LONGEST = LEASE * 1.5  # now and then so long that another runs a job before one who was cut off is back
WORKERS = 3
CONCURRENCY = 10


class Arena:
    """A server with a proxy before it, and workers that come through the proxy."""

    def __init__(self, home: Path, chance: random.Random) -> None:
        self.chance = chance
        self.home = home
        self.notes = home.parent / f"{home.name}.notes"
        self.notes.touch()
        self._log = home / "server.log"
        self._logs: list[str] = []
        self._shares = [embedded.start(home, settings=SETTINGS)]
        self.dsn = self._shares[0].dsn
        with Holdfast(self.dsn) as hf:
            hf.migrate()
        self.proxy = Proxy(self.dsn)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.given_up: list[int] = []
        self.faults: Counter[str] = Counter()
        self._open: list[threading.Thread] = []

    def ask(self, question: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(question, values or None)
            return cursor.fetchall() if cursor.description else []

    # Transactions that stay open.

    def leave_open(
        self, work: Callable[[psycopg.Connection[Any]], object], *, then: Callable[[], object] = lambda: None
    ) -> None:
        """Do this in a transaction that stays open for seconds, whatever else happens; then commit or not."""
        seconds, commits = self.chance.uniform(1.0, LEASE * 2), self.chance.random() < 0.5
        begun = threading.Event()

        def run() -> None:
            with contextlib.suppress(psycopg.Error):  # a fault of the server ends it earlier
                try:
                    with psycopg.connect(self.dsn) as connection:
                        work(connection)
                        begun.set()
                        time.sleep(seconds)
                        (connection.commit if commits else connection.rollback)()
                finally:
                    begun.set()
                    then()

        self._open.append(threading.Thread(target=run, daemon=True))
        self._open[-1].start()
        begun.wait()

    def end_transactions(self) -> None:
        for each in self._open:
            each.join()

    # Workers.

    def hire(self, **options: Any) -> None:
        given = json.dumps(
            {"concurrency": CONCURRENCY, "lease_time": LEASE, "poll_interval": 0.5, "grace": 1, **options}
        )
        environ = {**os.environ, "HOLDFAST_DSN": self.proxy.dsn, "TORTURE_NOTES": str(self.notes)}
        worker = subprocess.Popen(
            [sys.executable, APP, given], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.workers.append(worker)

    def replace_the_dead(self) -> int:
        """Hire new workers for those that have ended; how many of these were killed."""
        ended = [worker for worker in self.workers if worker.poll() is not None]
        killed = [worker for worker in ended if worker.returncode == -signal.SIGKILL]
        self.given_up += [worker.pid for worker in ended if worker not in killed and worker.returncode]
        self.workers = [worker for worker in self.workers if worker not in ended]
        while len(self.workers) < WORKERS:
            self.hire()
        return len(killed)

    def some_worker(self) -> subprocess.Popen[bytes]:
        self.replace_the_dead()
        return self.chance.choice(self.workers)

    def ask_the_workers(self) -> str:
        """Where each of them is just now."""
        for worker in self.workers:
            worker.send_signal(signal.SIGUSR1)
        time.sleep(2)
        answers = {worker.pid: Path(f"{self.notes}.{worker.pid}") for worker in self.workers}
        return "\n".join(
            f"worker {pid}: {path.read_text() if path.exists() else 'does not answer'}"
            for pid, path in answers.items()
        )

    # The lines.

    def lose(self, answers: Callable[[str, bytes], bool], *, times: int = 1) -> None:
        """Let the next answers like these be lost, and wait until they are."""
        lost = self.proxy.swallowed + times
        self.proxy.swallow(answers, times=times)

        def are_lost() -> bool:
            self.replace_the_dead()
            return self.proxy.swallowed == lost

        until(are_lost, timeout=30)

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
        self._logs.append(self._log.read_text(errors="replace"))  # only the last two are kept
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
        """All that the server has said, with SQLSTATEs, through all its lives."""
        return "".join([*self._logs, self._log.read_text(errors="replace")])

    def close(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()
        for share in self._shares:
            share.stop()
        self.notes.unlink()


@contextlib.contextmanager
def arena(seed: int) -> Iterator[Arena]:
    with temporary_home() as directory:
        home = directory / "home"
        home.mkdir(mode=0o755)
        place = Arena(home, random.Random(seed))
        try:
            with place.proxy:
                yield place
        finally:
            place.close()

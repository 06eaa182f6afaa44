"""Shows Holdfast in a quarter of a minute: `holdfast demo`.

    tasks             the tasks: start reading here
    plan              the jobs to enqueue, and how each should end
    environment       the database, and the time limit
    worker_processes  the workers, each in its own process (`worker`); one of them is killed
    snapshot          the state of jobs and workers, read from the database, and what has changed
    screen            shows the state and the changes
    report            compares the plan with the outcome

It needs only Python. Without a DSN it starts its own PostgreSQL, and removes it afterwards. On your own
database it uses only queues named `demo.*`.
"""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from holdfast import HoldfastError
from holdfast.demo.environment import CLEAN_UP_SECONDS, database_for_demo, time_limit
from holdfast.demo.plan import PLAN, KindOfJob, Planned, enqueue_plan
from holdfast.demo.report import compare, print_report
from holdfast.demo.screen import Screen
from holdfast.demo.snapshot import Snapshot, changes, label, take_snapshot
from holdfast.demo.tasks import hf
from holdfast.demo.worker_processes import WorkerFailed, WorkerProcesses
from holdfast.values.secret import mask_dsn

LIMIT = 45.0
POLL_SECONDS = 0.15
KILL_AT_PERCENT = 40


def main(dsn: str | None = None, *, plan: Sequence[Planned] = PLAN, limit: float = LIMIT) -> int:
    """Watch jobs run, fail, retry and finish. Return 0 if all of them ended as planned and in time."""
    console = Console(highlight=False)
    try:
        with time_limit(limit + CLEAN_UP_SECONDS), database_for_demo(dsn), hf:
            return Demo(console, dsn, plan, limit).run()
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130
    except (HoldfastError, WorkerFailed, TimeoutError) as error:
        console.print(Text(f"The demo failed: {error}", "bold red"), soft_wrap=True)
        return 1


class Demo:
    """One run of the demo."""

    def __init__(self, console: Console, dsn: str | None, plan: Sequence[Planned], limit: float) -> None:
        self._console = console
        self._dsn = dsn
        self._plan = plan
        self._limit = limit
        self._started = time.monotonic()
        self._workers = WorkerProcesses()
        self._screen = Screen(console)
        self._kinds: KindOfJob = {}
        self._snapshot = Snapshot()

    def run(self) -> int:
        with self._screen, self._workers:
            self._connect()
            self._start_workers("anchor", "buoy")
            self._enqueue()
            self._watch_until(self._everything_has_ended)
        comparisons = list(compare(self._plan, self._snapshot, self._workers.killed))
        print_report(self._console, comparisons, jobs_ended=self._snapshot.ended, seconds=self._seconds)
        return 0 if all(comparison.as_planned for comparison in comparisons) else 1

    def _connect(self) -> None:
        self._say(f"connecting to {mask_dsn(self._dsn)}" if self._dsn else "starting an embedded PostgreSQL")
        hf.verify()
        with hf.database.connection() as connection:
            self._say(f"PostgreSQL {connection.info.server_version // 10_000} is up")

    def _start_workers(self, *names: str) -> None:
        for name in names:
            self._workers.start(name)
        if not self._watch_until(lambda: self._snapshot.workers.keys() >= set(names)):
            raise TimeoutError(f"{' and '.join(names)} did not start")
        self._say(f"{' and '.join(names)} are at work, each in its own process")

    def _enqueue(self) -> None:
        self._kinds = enqueue_plan(self._plan)
        rolled_back = sum(kind.end is None for kind in self._kinds.values())
        more = f", {rolled_back} more is rolled back with its order" if rolled_back else ""
        self._say(f"{len(self._kinds) - rolled_back} jobs are enqueued{more}")

    def _watch_until(self, reached: Callable[[], bool]) -> bool:
        """Show what happens until a condition is met. Return whether it was met in time."""
        while not reached():
            if self._seconds > self._limit:
                return False
            time.sleep(POLL_SECONDS)
            self._workers.check()
            before = self._snapshot
            self._snapshot = take_snapshot(self._seconds, self._kinds, self._workers.pids)
            for sentence in changes(before, self._snapshot):
                self._screen.say(self._snapshot.seconds, sentence)
            self._kill_a_worker()
            self._screen.show(self._snapshot)
        return True

    def _everything_has_ended(self) -> bool:
        killed = self._workers.killed
        return all(self._snapshot.has_ended(kind) for kind in self._plan if kind.end) and (
            killed is None or self._snapshot.is_lost(killed)
        )

    def _kill_a_worker(self) -> None:
        """Kill a worker once, in the middle of a job that should survive it, and start another."""
        for job in self._snapshot.in_progress:
            if self._workers.killed or not self._kinds[job.id].loses_a_worker:
                return
            if (job.progress or 0) >= KILL_AT_PERCENT and job.worker_name in self._workers.names:
                self._workers.kill(job.worker_name)
                self._say(f"{job.worker_name} is killed with -9, with {label(job)} at {job.progress} %")
                self._workers.start("capstan")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _say(self, sentence: str) -> None:
        self._screen.say(self._seconds, sentence)

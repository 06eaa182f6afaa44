"""Shows Holdfast in a quarter of a minute: `holdfast demo`.

    jobs      the tasks: start reading here
    plan      the jobs to enqueue, and how each should end
    crew      the workers, each a process of its own; one of them is killed
    picture   the state of jobs and workers, read from the database
    view      the screen: the state and the news
    verdict   compares the plan with the outcome

It needs nothing but Python. Without an address it brings its own PostgreSQL, and removes it afterwards. On
your own database it uses only queues named `demo.*`.
"""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from holdfast import HoldfastError
from holdfast.demo.crew import Crew, WorkerFailed
from holdfast.demo.jobs import hf
from holdfast.demo.news import news
from holdfast.demo.picture import Picture, label, look
from holdfast.demo.plan import PLAN, Cast, Planned, enqueue
from holdfast.demo.stage import CLEAN_UP_SECONDS, on_a_database, within
from holdfast.demo.summary import print_summary
from holdfast.demo.verdict import judge
from holdfast.demo.view import View
from holdfast.values.secret import mask_dsn

LIMIT = 45.0
SECONDS_BETWEEN_LOOKS = 0.15
KILL_AT_PERCENT = 40


def main(dsn: str | None = None, *, plan: Sequence[Planned] = PLAN, limit: float = LIMIT) -> int:
    """Watch jobs run, fail, retry and finish. Return 0 if each of them ended as planned and in time."""
    console = Console(highlight=False)
    try:
        with within(limit + CLEAN_UP_SECONDS), on_a_database(dsn), hf:
            return Show(console, dsn, plan, limit).run()
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130
    except (HoldfastError, WorkerFailed, TimeoutError) as error:
        console.print(Text(f"The demo failed: {error}", "bold red"), soft_wrap=True)
        return 1


class Show:
    """One run of the demo."""

    def __init__(self, console: Console, dsn: str | None, plan: Sequence[Planned], limit: float) -> None:
        self._console = console
        self._dsn = dsn
        self._plan = plan
        self._limit = limit
        self._begun = time.monotonic()
        self._crew = Crew()
        self._view = View(console)
        self._cast: Cast = {}
        self._picture = Picture()

    def run(self) -> int:
        with self._view, self._crew:
            self._connect()
            self._hire("anchor", "buoy")
            self._enqueue()
            self._until(self._everything_has_ended)
        verdicts = list(judge(self._plan, self._picture, self._crew.killed))
        print_summary(self._console, verdicts, jobs_ended=self._picture.ended, seconds=self._seconds)
        return 0 if all(verdict.as_planned for verdict in verdicts) else 1

    def _connect(self) -> None:
        self._say(f"connecting to {mask_dsn(self._dsn)}" if self._dsn else "starting a PostgreSQL of its own")
        hf.verify()
        with hf.database.connection() as connection:
            self._say(f"PostgreSQL {connection.info.server_version // 10_000} is up")

    def _hire(self, *names: str) -> None:
        for name in names:
            self._crew.start(name)
        if not self._until(lambda: self._picture.workers.keys() >= set(names)):
            raise TimeoutError(f"{' and '.join(names)} did not come to work")
        self._say(f"{' and '.join(names)} are at work, a process each")

    def _enqueue(self) -> None:
        self._cast = enqueue(self._plan)
        rolled_back = sum(kind.end is None for kind in self._cast.values())
        more = f", {rolled_back} more is rolled back with its order" if rolled_back else ""
        self._say(f"{len(self._cast) - rolled_back} jobs are enqueued{more}")

    def _until(self, reached: Callable[[], bool]) -> bool:
        """Watch until a condition is met or the time is up."""
        while not reached():
            if self._seconds > self._limit:
                return False
            time.sleep(SECONDS_BETWEEN_LOOKS)
            self._crew.check()
            before, self._picture = self._picture, look(self._seconds, self._cast, self._crew.pids)
            for sentence in news(before, self._picture):
                self._view.say(self._picture.seconds, sentence)
            self._kill_a_worker()
            self._view.show(self._picture)
        return True

    def _everything_has_ended(self) -> bool:
        killed = self._crew.killed
        return all(self._picture.has_ended(kind) for kind in self._plan if kind.end) and (
            killed is None or self._picture.is_lost(killed)
        )

    def _kill_a_worker(self) -> None:
        """Kill a worker once, in the middle of a job that should survive it, and start another."""
        for job in self._picture.in_progress:
            if self._crew.killed or not self._cast[job.id].loses_a_worker:
                return
            if (job.progress or 0) >= KILL_AT_PERCENT and job.worker_name in self._crew.names:
                self._crew.kill(job.worker_name)
                self._say(f"{job.worker_name} is killed with -9, with {label(job)} at {job.progress} %")
                self._crew.start("capstan")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _say(self, sentence: str) -> None:
        self._view.say(self._seconds, sentence)

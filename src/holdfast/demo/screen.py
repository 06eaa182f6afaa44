"""The screen of the demo: what happens, line by line, and on a terminal a board below that is repainted."""

from collections import deque
from typing import Self

from rich.bar import Bar
from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast import JobState, Priority
from holdfast.demo.snapshot import Snapshot, label

STATES = {
    JobState.SCHEDULED: "cyan",
    JobState.PENDING: "blue",
    JobState.CLAIMED: "yellow",
    JobState.RUNNING: "bright_yellow",
    JobState.COMPLETED: "green",
    JobState.DEAD: "red",
    JobState.CANCELLED: "magenta",
}
WORDS = {
    "bold green": ("completed", "at work", "is claimed again"),
    "bold red": ("failed", "dead", "killed with -9", "taken back"),
    "bold magenta": ("cancelled", "rolled back"),
}
QUIET = "bright_black"
ROWS_IN_PROGRESS = 4
SECONDS_BETWEEN_LINES = 2.0
# Throughput is counted in periods. The bars show the last of them; the number is an average of the newest.
PERIOD_SECONDS = 0.5
MOST_BARS = 24
AVERAGED = 4
BLOCKS = " ▁▂▃▄▅▆▇█"


class Screen:
    """Without a terminal, as in a pipe or a log, the board is a plain line every two seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._board = Live(console=console, auto_refresh=False, transient=True)
        self._throughput = Throughput()
        self._next_line_at = 0.0

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._board.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._board.stop()

    def say(self, seconds: float, sentence: str) -> None:
        """Print a line about what has happened."""
        if not self._console.is_interactive:
            self._console.print(Text(f"{seconds:5.1f} s  {sentence}"), soft_wrap=True)
            return
        line = Table.grid(padding=(0, 2))
        line.add_row(Text(f"{seconds:5.1f} s", QUIET, no_wrap=True), _coloured(sentence))
        self._console.print(line)

    def show(self, snapshot: Snapshot) -> None:
        """Show the current state."""
        self._throughput.note(snapshot.seconds, snapshot.ended)
        if self._console.is_interactive:
            self._board.update(board(snapshot, self._throughput), refresh=True)
        elif snapshot.jobs and snapshot.seconds >= self._next_line_at:
            self._next_line_at = snapshot.seconds + SECONDS_BETWEEN_LINES
            self.say(snapshot.seconds, status(snapshot, self._throughput))


class Throughput:
    """Counts the jobs that end in each period."""

    def __init__(self) -> None:
        self._ended = 0
        self._began = 0.0
        self._periods: deque[int] = deque(maxlen=MOST_BARS)

    def note(self, seconds: float, ended: int) -> None:
        while seconds - self._began >= PERIOD_SECONDS:
            self._periods.append(ended - self._ended)
            self._ended = ended
            self._began += PERIOD_SECONDS

    @property
    def per_second(self) -> float:
        recent = list(self._periods)[-AVERAGED:]
        return sum(recent) / (len(recent) * PERIOD_SECONDS) if recent else 0.0

    @property
    def line(self) -> str:
        """Return the last periods as a line of small bars."""
        highest = max(self._periods, default=0) or 1
        return "".join(BLOCKS[round(amount / highest * (len(BLOCKS) - 1))] for amount in self._periods)


def status(snapshot: Snapshot, throughput: Throughput) -> str:
    """Return the current state as a line."""
    counts = [f"{snapshot.states[state]} {state}" for state in JobState if snapshot.states[state]]
    return f"{', '.join(counts)} ({throughput.per_second:.0f} jobs/s)"


def board(snapshot: Snapshot, throughput: Throughput) -> RenderableType:
    """Return the current state as a board."""
    halves = Table.grid(expand=True, padding=(0, 2))
    halves.add_column(ratio=2)
    halves.add_column(ratio=3, min_width=48)
    right = Group(_priorities(snapshot), Text(), _pace(snapshot, throughput))
    halves.add_row(_states(snapshot), right)
    return Panel(
        Group(halves, Text(), _in_progress(snapshot)),
        title="[bold]Holdfast",
        subtitle=f"{snapshot.ended} of {len(snapshot.jobs)} jobs have ended after {snapshot.seconds:.1f} s",
        box=ROUNDED,
        border_style=QUIET,
    )


def _states(snapshot: Snapshot) -> Table:
    table = _name_number_bar()
    for state, colour in STATES.items():
        amount = snapshot.states[state]
        bar = Bar(max(len(snapshot.jobs), 1), 0, amount, color=colour)
        table.add_row(Text(state, colour), str(amount), bar)
    return table


def _priorities(snapshot: Snapshot) -> Table:
    table = _name_number_bar()
    for priority in Priority:
        jobs = [job for job in snapshot.jobs.values() if job.priority == priority]
        ended = sum(job.state.final for job in jobs)
        bar = _progress_bar(ended, len(jobs), "green")
        table.add_row(f"priority {priority:3}", f"{ended} of {len(jobs)}", bar)
    return table


def _pace(snapshot: Snapshot, throughput: Throughput) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_row("jobs/s", Text(f"{throughput.per_second:.0f} ").append(throughput.line, "cyan"))
    workers = [_coloured_status(worker.name, worker.status) for worker in snapshot.workers.values()]
    table.add_row("workers", Text(" · ").join(workers))
    return table


def _in_progress(snapshot: Snapshot) -> Table:
    table = _name_number_bar()
    for _ in range(3):
        table.add_column(no_wrap=True)
    jobs = snapshot.in_progress[:ROWS_IN_PROGRESS]
    for job in jobs:
        percent = job.progress or 0
        bar = _progress_bar(percent, 100, "bright_yellow")
        attempt = Text(f"attempt {job.attempt}", "" if job.attempt == 1 else "bold green")
        table.add_row(label(job), f"{percent} %", bar, f"{job.stage:10}", f"on {job.worker_name:7}", attempt)
    for _ in range(ROWS_IN_PROGRESS - len(jobs)):  # the board keeps its height
        table.add_row()
    return table


def _name_number_bar() -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right", min_width=4)
    table.add_column(ratio=1)
    return table


def _progress_bar(amount: int, total: int, colour: str) -> ProgressBar:
    return ProgressBar(max(total, 1), amount, style="grey30", complete_style=colour, finished_style=colour)


def _coloured(sentence: str) -> Text:
    text = Text(sentence)
    for style, words in WORDS.items():
        text.highlight_words(words, style)
    return text


def _coloured_status(name: str, status: str) -> Text:
    return Text(f"{name} ").append(
        status, {"busy": "yellow", "idle": "green", "lost": "bold red"}.get(status, QUIET)
    )

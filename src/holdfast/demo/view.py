"""The screen of the demo: the story line by line and, on a terminal, a board below that is repainted."""

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
from holdfast.demo.picture import Picture, label
from holdfast.demo.throughput import Throughput

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


class View:
    """Without a terminal (a pipe, a log), the board is a plain line every two seconds."""

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
        """Add a line to the story."""
        if not self._console.is_interactive:
            self._console.print(Text(f"{seconds:5.1f} s  {sentence}"), soft_wrap=True)
            return
        line = Table.grid(padding=(0, 2))
        line.add_row(Text(f"{seconds:5.1f} s", QUIET, no_wrap=True), _coloured(sentence))
        self._console.print(line)

    def show(self, picture: Picture) -> None:
        """Show the current state."""
        self._throughput.note(picture.seconds, picture.ended)
        if self._console.is_interactive:
            self._board.update(board(picture, self._throughput), refresh=True)
        elif picture.jobs and picture.seconds >= self._next_line_at:
            self._next_line_at = picture.seconds + SECONDS_BETWEEN_LINES
            self.say(picture.seconds, status(picture, self._throughput))


def status(picture: Picture, throughput: Throughput) -> str:
    """Return the current state as a line."""
    counts = [f"{picture.states[state]} {state}" for state in JobState if picture.states[state]]
    return f"{', '.join(counts)} ({throughput.per_second:.0f} jobs/s)"


def board(picture: Picture, throughput: Throughput) -> RenderableType:
    """Return the current state as a board."""
    halves = Table.grid(expand=True, padding=(0, 2))
    halves.add_column(ratio=2)
    halves.add_column(ratio=3, min_width=48)
    right = Group(_priorities(picture), Text(), _pace(picture, throughput))
    halves.add_row(_states(picture), right)
    return Panel(
        Group(halves, Text(), _in_progress(picture)),
        title="[bold]Holdfast",
        subtitle=f"{picture.ended} of {len(picture.jobs)} jobs have ended after {picture.seconds:.1f} s",
        box=ROUNDED,
        border_style=QUIET,
    )


def _states(picture: Picture) -> Table:
    table = _name_number_bar()
    for state, colour in STATES.items():
        amount = picture.states[state]
        bar = Bar(max(len(picture.jobs), 1), 0, amount, color=colour)
        table.add_row(Text(state, colour), str(amount), bar)
    return table


def _priorities(picture: Picture) -> Table:
    table = _name_number_bar()
    for priority in Priority:
        jobs = [job for job in picture.jobs.values() if job.priority == priority]
        ended = sum(job.state.final for job in jobs)
        bar = _progress_bar(ended, len(jobs), "green")
        table.add_row(f"priority {priority:3}", f"{ended} of {len(jobs)}", bar)
    return table


def _pace(picture: Picture, throughput: Throughput) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_row("jobs/s", Text(f"{throughput.per_second:.0f} ").append(throughput.line, "cyan"))
    workers = [_coloured_status(worker.name, worker.status) for worker in picture.workers.values()]
    table.add_row("workers", Text(" · ").join(workers))
    return table


def _in_progress(picture: Picture) -> Table:
    table = _name_number_bar()
    for _ in range(3):
        table.add_column(no_wrap=True)
    jobs = picture.in_progress[:ROWS_IN_PROGRESS]
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

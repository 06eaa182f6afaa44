"""The end of the demo: what happened, and where to read more."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from holdfast.demo import jobs
from holdfast.demo.verdict import Verdict

READ_ON = """
  The tasks you saw    {jobs}
  The first of yours   the guide "Tutorial"
  How it all works     the other guides; make docs builds a site of them"""


def print_summary(console: Console, verdicts: Sequence[Verdict], *, jobs_ended: int, seconds: float) -> None:
    lines = [Text(), Text(f"{'':26}{'planned':28}happened", "bright_black")]
    lines += [_row(verdict) for verdict in verdicts]
    lines += [Text(), _conclusion(verdicts, jobs_ended, seconds), Text(READ_ON.format(jobs=_place()))]
    console.print(Text("\n").join(lines), soft_wrap=True)


def _row(verdict: Verdict) -> Text:
    mark, style = ("✓", "green") if verdict.as_planned else ("✗", "bold red")
    row = Text(f"  {mark} ", style)
    row.append(f"{verdict.amount:3} {verdict.what:16}  {verdict.planned:26}  ", "default")
    return row.append(verdict.happened, "default" if verdict.as_planned else style)


def _conclusion(verdicts: Sequence[Verdict], jobs_ended: int, seconds: float) -> Text:
    failed = [verdict.what for verdict in verdicts if not verdict.as_planned]
    if failed:
        return Text(f"Not as planned after {seconds:.0f} s: {', '.join(failed)}.", "bold red")
    return Text(f"All {jobs_ended} jobs ended as planned, in {seconds:.0f} s.", "bold green")


def _place() -> Path:
    here, place = Path.cwd(), Path(jobs.__file__)
    return place.relative_to(here) if place.is_relative_to(here) else place

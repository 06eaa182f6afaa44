"""The end of the demo: compares the plan with the outcome, and says where to read more."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.text import Text

from holdfast import JobSnapshot
from holdfast.demo import tasks
from holdfast.demo.plan import Planned
from holdfast.demo.snapshot import Snapshot, outcome

READ_ON = """
  The tasks you saw    {tasks}
  Your first task      the guide "Tutorial"
  How it works         the other guides; make docs builds a site of them"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A part of the plan, and what happened."""

    amount: int
    what: str
    planned: str
    happened: str
    as_planned: bool


def compare(plan: Sequence[Planned], snapshot: Snapshot, killed: str | None) -> Iterator[Comparison]:
    """Compare each part of the plan with its jobs, and check the killed worker and the priorities."""
    for kind in plan:
        jobs = snapshot.of(kind)
        yield Comparison(
            len(kind.jobs), kind.what, kind.expected, outcome(kind, jobs), _as_planned(kind, jobs)
        )
    if any(kind.loses_a_worker for kind in plan):
        yield _of_the_killed_worker(snapshot, killed)
    yield from _of_the_priorities(snapshot)


def _as_planned(kind: Planned, jobs: Sequence[JobSnapshot]) -> bool:
    if kind.end is None:
        return not jobs
    return len(jobs) == len(kind.jobs) and all(
        job.state is kind.end and job.attempt >= kind.attempts and not _early(job) for job in jobs
    )


def _early(job: JobSnapshot) -> bool:
    return bool(job.claimed_at and job.run_at and job.claimed_at < job.run_at)


def _of_the_killed_worker(snapshot: Snapshot, name: str | None) -> Comparison:
    worker = snapshot.workers.get(name or "")
    recovered = worker.recovered if worker else 0
    return Comparison(
        1,
        "worker",
        "killed with -9",
        f"{recovered} jobs were taken back" if name else "no worker was killed",
        recovered > 0,
    )


def _of_the_priorities(snapshot: Snapshot) -> Iterator[Comparison]:
    """Compare waiting times: all jobs were enqueued at once, so more urgent ones must have waited less."""
    waits: dict[int, list[float]] = {}
    for job in snapshot.jobs.values():
        if job.claimed_at and job.run_at == job.created_at:
            waits.setdefault(-job.priority, []).append((job.claimed_at - job.created_at).total_seconds())
    medians = [median(waits[urgency]) for urgency in sorted(waits)]
    if len(medians) > 1:
        waited = " < ".join(f"{wait:.1f}" for wait in medians) + " s, median"
        in_order = medians == sorted(medians)
        yield Comparison(len(medians), "priorities", "the urgent wait less", waited, in_order)


def print_report(
    console: Console, comparisons: Sequence[Comparison], *, jobs_ended: int, seconds: float
) -> None:
    lines = [Text(), Text(f"{'':26}{'planned':28}happened", "bright_black")]
    lines += [_row(comparison) for comparison in comparisons]
    lines += [
        Text(),
        _conclusion(comparisons, jobs_ended, seconds),
        Text(READ_ON.format(tasks=_tasks_file())),
    ]
    console.print(Text("\n").join(lines), soft_wrap=True)


def _row(comparison: Comparison) -> Text:
    mark, style = ("✓", "green") if comparison.as_planned else ("✗", "bold red")
    row = Text(f"  {mark} ", style)
    row.append(f"{comparison.amount:3} {comparison.what:16}  {comparison.planned:26}  ", "default")
    return row.append(comparison.happened, "default" if comparison.as_planned else style)


def _conclusion(comparisons: Sequence[Comparison], jobs_ended: int, seconds: float) -> Text:
    failed = [comparison.what for comparison in comparisons if not comparison.as_planned]
    if failed:
        return Text(f"Not as planned after {seconds:.0f} s: {', '.join(failed)}.", "bold red")
    return Text(f"All {jobs_ended} jobs ended as planned, in {seconds:.0f} s.", "bold green")


def _tasks_file() -> Path:
    here, place = Path.cwd(), Path(tasks.__file__)
    return place.relative_to(here) if place.is_relative_to(here) else place

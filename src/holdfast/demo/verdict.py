"""Compares the plan with the outcome."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from holdfast import JobSnapshot
from holdfast.demo.picture import Picture
from holdfast.demo.plan import Planned


@dataclass(frozen=True, slots=True)
class Verdict:
    amount: int
    what: str
    planned: str
    happened: str
    as_planned: bool


def judge(plan: Sequence[Planned], picture: Picture, killed: str | None) -> Iterator[Verdict]:
    for kind in plan:
        jobs = picture.of(kind)
        yield Verdict(len(kind.jobs), kind.what, kind.fate, outcome(kind, jobs), _as_planned(kind, jobs))
    if any(kind.loses_a_worker for kind in plan):
        yield _of_the_killed(picture, killed)
    yield from _of_the_order(picture)


def outcome(kind: Planned, jobs: Sequence[JobSnapshot]) -> str:
    """Return how these jobs have ended, in a few words."""
    if not jobs and kind.end is None:
        return "never existed"
    states = [f"{amount} {state}" for state, amount in Counter(job.state for job in jobs).most_common()]
    if missing := len(kind.jobs) - len(jobs):
        states.append(f"{missing} missing")
    attempts = sorted({job.attempt for job in jobs})
    if attempts and attempts[-1] > 1:
        between = "-".join(str(number) for number in dict.fromkeys((attempts[0], attempts[-1])))
        states.append(f"{between} attempts")
    return ", ".join(states)


def _as_planned(kind: Planned, jobs: Sequence[JobSnapshot]) -> bool:
    if kind.end is None:
        return not jobs
    return len(jobs) == len(kind.jobs) and all(
        job.state is kind.end and job.attempt >= kind.attempts and not _early(job) for job in jobs
    )


def _early(job: JobSnapshot) -> bool:
    return bool(job.claimed_at and job.run_at and job.claimed_at < job.run_at)


def _of_the_killed(picture: Picture, name: str | None) -> Verdict:
    worker = picture.workers.get(name or "")
    recovered = worker.recovered if worker else 0
    return Verdict(
        1,
        "worker",
        "killed with -9",
        f"{recovered} jobs were taken back" if name else "nobody was killed",
        recovered > 0,
    )


def _of_the_order(picture: Picture) -> Iterator[Verdict]:
    """Compare waiting times: all jobs were enqueued at once, so more urgent ones must have waited less."""
    waits: dict[int, list[float]] = {}
    for job in picture.jobs.values():
        if job.claimed_at and job.run_at == job.created_at:
            waits.setdefault(-job.priority, []).append((job.claimed_at - job.created_at).total_seconds())
    medians = [median(waits[urgency]) for urgency in sorted(waits)]
    if len(medians) > 1:
        told = " < ".join(f"{wait:.1f}" for wait in medians) + " s, median"
        in_order = medians == sorted(medians)
        yield Verdict(len(medians), "priorities", "the urgent wait less", told, in_order)

"""The jobs to enqueue, and how each should end. The demo succeeds if all of them do."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from holdfast import JobState, NewJob
from holdfast.demo.tasks import (
    catalogue,
    confirmation,
    hf,
    newsletter,
    payment,
    reindex,
    reminder,
    thumbnail,
    video,
    welcome,
)


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """Jobs of one kind: they should end in this state (`None`: never exist), after this many attempts."""

    what: str
    expected: str
    jobs: Sequence[NewJob]
    end: JobState | None = JobState.COMPLETED
    attempts: int = 1
    loses_a_worker: bool = False


PLAN = (
    Planned("welcome mails", "priority 150: a user waits", [welcome.call(user=n) for n in range(1, 61)]),
    Planned("thumbnails", "priority 100: the usual", [thumbnail.call(picture=n) for n in range(1, 121)]),
    Planned("index entries", "priority 30: a backfill", [reindex.call(product=n) for n in range(1, 91)]),
    Planned(
        "reminders",
        "delayed, and never early",
        [reminder.options(delay=n / 2).call(appointment=n) for n in range(2, 21)],
    ),
    Planned(
        "payments", "fail twice, then succeed", [payment.call(invoice=n) for n in range(1, 13)], attempts=3
    ),
    Planned(
        "broken catalogue",
        "fails until it is dead",
        [catalogue.call(file="spring.csv")],
        end=JobState.DEAD,
        attempts=2,
    ),
    Planned(
        "videos",
        "long; one loses its worker",
        [video.call(number=n) for n in range(1, 5)],
        loses_a_worker=True,
    ),
    Planned(
        "newsletter",
        "cancelled before its time",
        [newsletter.options(delay=3600).call(issue=1)],
        end=JobState.CANCELLED,
        attempts=0,
    ),
    Planned("confirmation", "rolled back with its order", [confirmation.call(order=13)], end=None),
)

KindOfJob = dict[UUID, Planned]
"""Which part of the plan each job belongs to."""


def enqueue_plan(plan: Sequence[Planned]) -> KindOfJob:
    """Enqueue everything in one call, and return the part of the plan of each job."""
    calls = [(job, kind) for kind in plan for job in kind.jobs if kind.end is not None]
    random.Random(4).shuffle(calls)  # noqa: S311 - mixed, as on a busy day
    jobs = hf.enqueue_many(job for job, _ in calls)
    kinds = {job.id: kind for job, (_, kind) in zip(jobs, calls, strict=True)}
    for job in jobs:
        if kinds[job.id].end is JobState.CANCELLED:
            job.cancel()
    for kind in plan:
        if kind.end is None:
            kinds |= dict.fromkeys(_enqueue_and_roll_back(kind.jobs), kind)
    return kinds


class SoldOut(Exception):  # noqa: N818 - bad luck, not a mistake
    """Another customer got the last one."""


def _enqueue_and_roll_back(jobs: Sequence[NewJob]) -> list[UUID]:
    enqueued: list[UUID] = []
    with suppress(SoldOut), hf.database.connection() as conn, conn.transaction():
        # The order would be stored here, on the same connection. If that fails, the jobs are gone too.
        enqueued = [job.id for job in hf.on(conn).enqueue_many(jobs)]
        raise SoldOut
    return enqueued

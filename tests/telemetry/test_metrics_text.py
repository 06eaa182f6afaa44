"""What is counted can be read by Prometheus, whatever it is named and however much of it there is."""

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.operations.claiming import Claimed, Refusal, Report
from holdfast.telemetry import Counted, emit, subscribe
from holdfast.telemetry.metrics import Family, Metrics, exposition
from holdfast.telemetry.metrics.process import MOST_KEYS, OTHER


def read(families: Any) -> dict[Any, float]:
    """What the client of Prometheus makes of it: values by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(families))
        for sample in family.samples
    }


def claimed(number: int = 1, **fields: Any) -> Claimed:
    given = {"task": "welcome", "attempt": 1, "max_attempts": 3, "queue": "mail", "created": 0, **fields}
    return Claimed(
        lease="l", id=str(number), payload="{}", priority=100, suspect=False, headers=None, **given
    )


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics()
    unsubscribe = subscribe(metrics)
    yield metrics
    unsubscribe()


def finish(*pairs: Any, refused: Any = ()) -> None:
    emit(
        "jobs.finished",
        worker="w",
        jobs=Counted(job for job, _ in pairs),
        reports=Counted(report for _, report in pairs),
        refused=Counted(refused),
        seconds=0.01,
    )


def counted(metrics: Metrics) -> dict[str, float]:
    """The counters by queue and task, without the prefix."""
    return {
        name.removeprefix("holdfast_").removesuffix("_total"): value
        for (name, *labels), value in read(metrics.families()).items()
        if ("task", "welcome") in labels and name.endswith("_total") and value
    }


def test_labels_of_any_text_come_back_as_they_were() -> None:
    nasty = 'a"b\\c\nd{}=, ü'
    family = Family("holdfast_thing", "gauge", "Said with a \\ and a\nnew line.")
    family.add(1.5, queue=nasty)
    family.add(math.inf, queue="endless")
    (parsed,) = text_string_to_metric_families(exposition([family]))
    assert parsed.documentation == "Said with a \\ and a\nnew line."
    assert [(s.labels["queue"], s.value) for s in parsed.samples] == [(nasty, 1.5), ("endless", math.inf)]


def test_each_end_of_a_job_counts_under_its_name(metrics: Metrics) -> None:
    job, last = claimed(), claimed(attempt=3)
    finish(
        (job, Report("1", "l", "completed", seconds=0.2)),
        (job, Report("1", "l", "failed", seconds=2.0)),
        (last, Report("1", "l", "failed", seconds=2.0)),
        (job, Report("1", "l", "failed", retry=False, seconds=2.0)),
        (job, Report("1", "l", "snoozed", seconds=0.1)),
        (job, Report("1", "l", "cancelled")),
        (job, Report("1", "l", "released")),
        (last, Report("1", "l", "interrupted")),
        (None, Report("2", "l", "completed")),
    )
    finish((claimed(9), Report("9", "l", "completed")), refused=[Refusal("9", "HF003", "lost", None, None)])
    assert counted(metrics) == {
        "jobs_completed": 1,
        "jobs_failed": 3,
        "jobs_retried": 1,
        "jobs_dead": 3,
        "jobs_cancelled": 1,
        "jobs_snoozed": 1,
        "jobs_released": 1,
        "jobs_interrupted": 1,
        "reports_refused": 1,
    }


def test_run_times_fall_into_cumulative_buckets(metrics: Metrics) -> None:
    finish(*((claimed(), Report("1", "l", "completed", seconds=it)) for it in (0.0005, 0.3, 0.4, 9000.0)))
    values = read(metrics.families())
    labels = [("queue", "mail"), ("task", "welcome")]

    def bucket(le: str) -> float:
        return values["holdfast_job_run_seconds_bucket", ("le", le), *labels]

    assert [bucket(le) for le in ("0.001", "0.1", "0.5", "3600", "+Inf")] == [1, 1, 3, 3, 4]
    assert values["holdfast_job_run_seconds_count", *labels] == 4
    assert values["holdfast_job_run_seconds_sum", *labels] == pytest.approx(9000.7005)


def test_a_wait_is_measured_by_the_clock_of_the_database(metrics: Metrics) -> None:
    a_day, labels = 86_400.0, [("queue", "mail"), ("task", "welcome")]
    emit("jobs.claimed", worker="w", jobs=Counted([claimed()]), seconds=0.01)  # no clock is known yet
    emit("heartbeat.accepted", worker="w", seconds=0.01, offset=a_day)
    made = round((time.time() + a_day - 2) * 1e6)
    jobs = Counted([claimed(created=made), claimed(created=made, attempt=2)])
    emit("jobs.claimed", worker="w", jobs=jobs, seconds=0.01)
    values = read(metrics.families())
    assert values["holdfast_jobs_claimed_total", *labels] == 3
    assert values["holdfast_job_wait_seconds_count", *labels] == 1
    assert values["holdfast_job_wait_seconds_sum", *labels] == pytest.approx(2, abs=1)
    assert values["holdfast_clock_offset_seconds",] == a_day


def test_very_many_tasks_are_counted_together_in_the_end(metrics: Metrics) -> None:
    jobs = [claimed(task=f"t{number}") for number in range(MOST_KEYS + 50)]
    emit("jobs.claimed", worker="w", jobs=Counted(jobs), seconds=0.01)
    family = next(it for it in metrics.families() if it.name == "holdfast_jobs_claimed_total")
    assert len(family.samples) == MOST_KEYS + 1
    assert read([family])["holdfast_jobs_claimed_total", ("queue", OTHER), ("task", OTHER)] == 50


def test_what_goes_wrong_is_counted_by_the_events_that_tell_it(metrics: Metrics) -> None:
    emit("worker.lost", worker="w")
    emit("jobs.recovered", jobs=7)
    emit("claimer.failed", error=ValueError("away"))
    values = read(metrics.families())
    assert values["holdfast_worker_lost_total",] == 1
    assert values["holdfast_jobs_recovered_total",] == 7
    assert values["holdfast_events_total", ("event", "claimer.failed")] == 1


def test_a_batch_says_only_how_many_it_holds() -> None:
    batch = Counted([claimed(), claimed()])
    assert (str(batch), f"{batch!r}", len(batch)) == ("2", "2", 2)

"""What was done is counted, whoever reports it and whatever is kept of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Refused, Session


def folded(sql: Session, by: str = "queue", **options: Any) -> list[Any]:
    sql.value("fold_stats")
    return sql.rows("statistics", by=by, **options)


def seconds(value: timedelta) -> float:
    return value.total_seconds()


def test_every_end_is_counted_once(sql: Session, clock: Clock) -> None:
    """Completed, failed and tried again, dead at last, cancelled before and after a claim, lost."""
    sql.enqueue_many(4, queues=["mail"] * 4)
    jobs = sql.claim_all()
    sql.finish(jobs)
    sql.finish(jobs)  # repeated, because the reply was lost
    sql.enqueue("flaky", queue="mail", max_attempts=2)
    sql.finish([sql.claim_one()], "failed", durations=[0.5])
    clock.advance(hours=1)
    sql.value("promote")
    sql.finish([sql.claim_one()], "failed", durations=[0.5])
    sql.value("cancel", id=sql.enqueue("task", queue="mail"))
    sql.enqueue("task", queue="mail")
    sql.finish([sql.claim_one()], "cancelled")
    worker = sql.value("register")
    sql.enqueue("lost", queue="mail")
    sql.claim_one(worker=worker)
    assert sql.lose(worker) == 1
    sql.claim_one(worker=(worker := sql.value("register")))  # a suspect now, which pays
    assert sql.lose(worker) == 1
    sql.enqueue("refused", queue="mail", max_attempts=1)
    (stat,) = folded(sql)
    assert (stat.day_completed, stat.day_failed, stat.day_dead, stat.day_cancelled) == (4, 3, 1, 2)
    assert stat.day_failures == pytest.approx(3 / 7)
    assert stat.dead == 1
    tasks = {row.task: row for row in folded(sql, "task")}
    assert (tasks["flaky"].day_failed, tasks["flaky"].day_dead) == (2, 1)
    assert tasks["lost"].day_failed == 1
    assert sql("select count(*) from holdfast.stat_delta") == [(0,)]


def test_snoozes_releases_and_interruptions_are_no_failures(sql: Session) -> None:
    for outcome in ("snoozed", "released", "interrupted"):
        sql.enqueue()
        sql.finish([sql.claim_one()], outcome, delays=["1 hour"])
        for job in sql.claim_all():
            sql.finish([job], "cancelled")
    (stat,) = folded(sql)
    assert (stat.hour_completed, stat.hour_failed, stat.hour_dead) == (0, 0, 0)


def test_waiting_and_running_times_are_told_from_their_histograms(sql: Session, clock: Clock) -> None:
    sql.enqueue_many(100)
    clock.advance(seconds=10)
    jobs = sql.claim_all()
    clock.advance(minutes=15)
    sql.finish(jobs, durations=[0.02] * 90 + [600.0] * 10)
    (stat,) = folded(sql)
    # Within a bucket: neighbouring bounds are apart by a factor of 1.6.
    assert 10 / 1.6 <= seconds(stat.hour_wait_p50) <= seconds(stat.hour_wait_p99) <= 10 * 1.6
    assert seconds(stat.hour_wait_avg) == pytest.approx(10, abs=1)
    assert 0.02 / 1.6 <= seconds(stat.hour_run_p50) <= 0.02 * 1.6
    assert 600 / 1.6 <= seconds(stat.hour_run_p95) <= seconds(stat.hour_run_p99) <= 600 * 1.6
    assert seconds(stat.hour_run_avg) == pytest.approx(60.018, abs=0.01)


def test_a_delayed_job_waits_from_its_time_on(sql: Session, clock: Clock) -> None:
    sql.enqueue(delay="1 hour")
    clock.advance(hours=1, seconds=2)
    sql.value("promote")
    sql.finish([sql.claim_one()])
    (stat,) = folded(sql)
    assert seconds(stat.hour_wait_avg) == pytest.approx(2, abs=1)


def test_a_consumer_that_measures_nothing_ran_from_its_claim_on(sql: Session, clock: Clock) -> None:
    sql.enqueue_many(2)
    first, second = sql.claim_all()
    clock.advance(seconds=30)
    sql.value("complete", id=first.id, lease=first.lease)
    sql.value("fail", id=second.id, lease=second.lease, error="no")
    (stat,) = folded(sql)
    assert seconds(stat.hour_run_avg) == pytest.approx(30, abs=1)
    assert seconds(sql.job(first.id).duration) == pytest.approx(30, abs=1)


def test_percentiles_of_nothing_and_of_the_ends(sql: Session) -> None:
    def percentiles(counts: list[int]) -> list[float | None]:
        return sql.one("select holdfast.percentiles(%s::bigint[], '{0.5,0.95,0.99}')", counts)

    assert percentiles([0] * 52) is None
    assert percentiles([4] + [0] * 51) == pytest.approx([0.00005, 0.000095, 0.000099])
    assert percentiles([0] * 51 + [1]) == [1e6] * 3
    assert percentiles([0, 1] + [0] * 49 + [1]) == pytest.approx([0.00016, 1e6, 1e6])
    bounds = sql.value("stat_bounds")
    assert len(bounds) == 51
    assert bounds == sorted(bounds)


def test_the_last_hour_and_the_last_day_end_when_they_should(sql: Session, clock: Clock) -> None:
    def work() -> None:
        sql.enqueue()
        sql.finish([sql.claim_one()])

    clock.set(datetime(2030, 5, 1, 12, 30, 30, tzinfo=UTC))
    work()
    clock.advance(minutes=10)
    work()
    (stat,) = folded(sql)
    assert (stat.hour_completed, stat.day_completed) == (2, 2)
    assert (stat.minutes[49], stat.minutes[59], len(stat.minutes)) == (1, 1, 60)
    assert stat.hour_per_second == pytest.approx(2 / (59 * 60 + 30), rel=0.01)
    clock.advance(minutes=55)
    (stat,) = folded(sql)
    assert (stat.hour_completed, stat.day_completed) == (1, 2)
    clock.advance(hours=25)
    (stat,) = folded(sql)
    assert (stat.hour_completed, stat.day_completed, stat.hour_wait_p50) == (0, 0, None)


def test_what_is_long_ago_is_forgotten_by_upkeep(sql: Session, clock: Clock) -> None:
    sql.enqueue()
    sql.finish([sql.claim_one()])
    sql.value("upkeep")  # which counts what is left to count
    assert sql("select span from holdfast.stat order by span") == [("hour",), ("minute",)]
    clock.advance(hours=3)
    sql.value("upkeep")
    assert sql("select span from holdfast.stat") == [("hour",)]
    clock.advance(days=9)
    sql.value("upkeep")
    assert sql("select span from holdfast.stat") == []


def test_a_look_at_the_workers_counts_the_last_moments_along(sql: Session, clock: Clock) -> None:
    sql.enqueue()
    sql.finish([sql.claim_one()])
    sql.value("recover")
    assert sql("select sum(completed) from holdfast.stat where span = 'minute'") == [(1,)]
    sql.enqueue()
    sql.finish([sql.claim_one()])
    clock.advance(minutes=10)  # as if it came in late
    sql.value("recover")
    assert sql("select count(*) from holdfast.stat_delta") == [(1,)]
    sql.rows("tick")
    assert sql("select count(*) from holdfast.stat_delta") == [(0,)]
    assert sql("select sum(completed) from holdfast.stat where span = 'hour'") == [(2,)]


def test_only_one_counts_at_a_time_and_nothing_twice(sql: Session, other: Session) -> None:
    sql.enqueue()
    sql.finish([sql.claim_one()])
    with other.transaction():
        assert other.value("fold_stats") == 1
        assert sql.value("fold_stats") == 0
    assert sql.value("fold_stats") == 0
    assert sql("select completed from holdfast.stat") == [(1,), (1,)]


def test_a_report_that_is_undone_is_not_counted(sql: Session) -> None:
    sql.enqueue()
    job = sql.claim_one()
    with sql.connection.transaction(force_rollback=True):
        sql.finish([job])
    (stat,) = folded(sql)
    assert (stat.hour_completed, stat.running) == (0, 1)


def test_statistics_say_what_is_there_now(sql: Session, clock: Clock) -> None:
    sql.enqueue("a", queue="mail", priority=5)
    clock.advance(seconds=30)
    sql.enqueue("a", queue="mail")
    sql.enqueue("b", queue="mail", delay="1 hour")
    sql.enqueue("c", queue="other")
    sql.claim_one(queues=["other"])
    sql.value("pause", queue="empty")
    empty, mail, other = sql.rows("statistics")
    assert (empty.queue, empty.waiting, empty.paused_at is not None) == ("empty", 0, True)
    assert (mail.waiting, mail.scheduled, mail.running, mail.estimated) == (2, 1, 0, False)
    assert (other.waiting, other.running) == (0, 1)
    assert sql.one("select holdfast.clock()") - mail.waiting_since > timedelta(seconds=29)
    named = [(row.queue, row.task, row.waiting, row.scheduled) for row in sql.rows("statistics", by="task")]
    assert named == [("mail", "a", 2, 0), ("mail", "b", 0, 1), ("other", "c", 0, 0)]
    assert [row.task for row in sql.rows("statistics", by="task", queue="other")] == ["c"]
    assert sql("select queue, waiting from holdfast.queue_stats where waiting > 0") == [("mail", 2)]
    assert sql("select task from holdfast.task_stats where scheduled > 0") == [("b",)]


def test_statistics_are_by_queue_or_by_task(sql: Session, refused: Refused) -> None:
    with refused("HF008") as error:
        sql.rows("statistics", by="worker")
    assert error.message == "by worker: must be queue or task"


def test_a_thousand_tasks_are_added_up_without_unfolding_their_histograms(sql: Session, clock: Clock) -> None:
    """Each with something in every minute of the last hour and every hour of the last day: 84,000 rows."""
    clock.set(datetime(2030, 5, 1, 12, 30, tzinfo=UTC))  # the minute has just begun
    sql(
        "insert into holdfast.stat (span, at, queue, task, completed, failed, dead, cancelled, wait_seconds, "
        "run_seconds, waits, runs) select s.span, date_trunc(s.span, holdfast.clock(), 'UTC') - n * s.width, "
        "'mail', 'task' || t, 52, 0, 0, 0, 5, 7, array_fill(1, array[52]), array_fill(1, array[52]) "
        "from (values ('minute', interval '1 minute', 59), ('hour', '1 hour', 23)) s (span, width, last), "
        "generate_series(0, s.last) n, generate_series(1, 1000) t"
    )
    explain = "explain (analyze, buffers, format json) select holdfast.statistics('task')"
    for _ in ("never analyzed", "analyzed"):
        assert sql.one(explain)[0]["Plan"]["Temp Written Blocks"] < 2000  # sorted 5,500, unfolded 38,000
        sql("analyze holdfast.stat")
    tasks = sql.rows("statistics", by="task")
    (queue,) = sql.rows("statistics")
    assert len(tasks) == 1000
    assert {row.day_completed for row in tasks} == {24 * 52}
    assert {row.hour_completed for row in tasks} == {60 * 52}
    assert {tuple(row.minutes) for row in tasks} == {(52,) * 60}
    assert {row.hour_run_p50 for row in tasks} == {queue.hour_run_p50}
    assert queue.day_completed == 1000 * 24 * 52
    assert queue.minutes == [52_000] * 60

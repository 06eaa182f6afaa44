"""How long a failed job waits: one SQL function, and whose word counts."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Session


@pytest.fixture
def delay(sql: Session) -> Callable[..., float]:
    """The delay in seconds, with no jitter unless one is set."""
    sql("update holdfast.queue set retry_jitter = 0 where name = '*'")

    def ask(attempt: int, task: str = "task", **options: Any) -> float:
        return sql.value("retry_delay", task=task, attempt=attempt, **options).total_seconds()

    return ask


def test_the_delay_doubles_from_a_minute_up_to_an_hour(delay: Callable[..., float]) -> None:
    assert [delay(n) for n in range(1, 10)] == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


@pytest.mark.parametrize("attempt", [0, -1, -2_147_483_648, None])
def test_there_is_no_attempt_before_the_first(delay: Callable[..., float], attempt: int | None) -> None:
    assert delay(attempt) == 60


@pytest.mark.parametrize("attempt", [100, 32_767, 2_147_483_647])
def test_no_attempt_number_overflows(sql: Session, delay: Callable[..., float], attempt: int) -> None:
    assert delay(attempt) == 3600
    century = "'far', 100, '100 years', '100 years'"
    sql(f"insert into holdfast.retry_policy (task, factor, base, cap) values ({century})")
    assert delay(attempt, "far") == 100 * 365.25 * 86_400


def test_the_task_is_asked_before_the_queue_and_the_queue_before_the_default(
    sql: Session, delay: Callable[..., float]
) -> None:
    sql("insert into holdfast.queue (name, retry_base, retry_factor) values ('q', '10 s', 3)")
    assert [delay(n, queue="q") for n in (1, 2, 3)] == [10, 30, 90]
    sql("insert into holdfast.retry_policy (task, base) values ('task', '1 s')")
    # Each setting for itself: the factor is still the queue's, the cap the default's.
    assert [delay(n, queue="q") for n in (1, 2, 3)] == [1, 3, 9]
    assert [delay(n, queue="other") for n in (1, 2, 3)] == [1, 2, 4]
    sql("update holdfast.retry_policy set cap = '2 s'")
    assert [delay(n, queue="q") for n in (1, 2, 3)] == [1, 2, 2]
    assert delay(1, "unknown") == 60


def test_the_examples_of_the_guide(sql: Session, delay: Callable[..., float]) -> None:
    sql("insert into holdfast.retry_policy (task, max_attempts, base) values "
        "('email', 5, '30 s'), ('webhook', 3, '1 min'), ('report', 2, '5 min')")  # fmt: skip
    assert [delay(n, "email") for n in range(1, 6)] == [30, 60, 120, 240, 480]
    assert [delay(n, "webhook") for n in range(1, 4)] == [60, 120, 240]
    assert [delay(n, "report") for n in range(1, 3)] == [300, 600]


def test_jitter_comes_on_top_and_stays_within_its_bounds(sql: Session) -> None:
    seconds = (
        "select extract(epoch from holdfast.retry_delay('task', 1))::float8 from generate_series(1, 300)"
    )
    delays = [each for (each,) in sql(seconds)]
    assert 60 <= min(delays) < max(delays) <= 66
    assert max(delays) - min(delays) > 4
    sql("insert into holdfast.retry_policy (task, jitter) values ('task', 1)")
    delays = [each for (each,) in sql(seconds)]
    assert 60 <= min(delays) < 75
    assert 105 < max(delays) <= 120


def test_a_failing_job_follows_the_policy_of_its_task_and_queue(
    sql: Session, delay: Callable[..., float], clock: Clock
) -> None:
    sql("insert into holdfast.queue (name, retry_base) values ('q', '10 s')")
    sql("insert into holdfast.retry_policy (task, factor, max_attempts) values ('task', 5, 4)")
    job_id = sql.enqueue(queue="q")
    waits = []
    while sql.state(job_id) != "dead":
        job = sql.claim_one()
        sql.value("fail", id=job.id, lease=job.lease, error="no")
        row = sql.job(job_id)
        waits.append(row.run_at - row.changed_at)
        clock.advance(hours=1)
        sql.value("promote")
    assert waits[:3] == [timedelta(seconds=10), timedelta(seconds=50), timedelta(seconds=250)]
    assert sql.job(job_id).attempt == 4


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        ("queue", "retry_base = '-1 s'"),
        ("queue", "retry_cap = '101 years'"),
        ("queue", "retry_factor = 0.5"),
        ("queue", "retry_jitter = 1.1"),
        ("queue", "max_attempts = 0"),
        ("queue", "payload_limit = 10"),
        ("queue", "retention = '-1 s'"),
        ("retry_policy", "base = '101 years'"),
        ("retry_policy", "cap = '-1 s'"),
        ("retry_policy", "factor = 'nan'"),
        ("retry_policy", "jitter = -0.1"),
        ("retry_policy", "max_attempts = 32768"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_table(
    sql: Session, table: str, setting: str
) -> None:
    sql("insert into holdfast.retry_policy (task) values ('task')")
    with pytest.raises(psycopg.errors.CheckViolation, match=r"is between|is not negative"):
        sql(f"update holdfast.{table} set {setting}")

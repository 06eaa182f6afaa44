"""How a queue is: judged by its thresholds, said with the count and the age."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Refused, Session

Health = Callable[..., tuple[str, str]]


@pytest.fixture
def health(sql: Session) -> Health:
    """`health()`: status and message of the only queue, or of the one named."""

    def health(queue: str = "mail") -> tuple[str, str]:
        (row,) = sql.rows("health", queue=queue)
        return row.status, row.message

    return health


@pytest.fixture
def worker(sql: Session) -> UUID:
    return sql.value("register", lease_time="1 day")


def settings(sql: Session, queue: str, **values: Any) -> None:
    sql("insert into holdfast.queue (name) values (%s) on conflict do nothing", queue)
    for name, value in values.items():
        sql(f"update holdfast.queue set {name} = %s where name = %s", value, queue)


def test_the_oldest_job_that_waits_is_a_warning_after_a_minute_and_critical_after_ten(
    sql: Session, clock: Clock, worker: UUID, health: Health
) -> None:
    sql.enqueue(queue="mail")
    assert health() == ("OK", "one job waits, for 0 s")
    clock.advance(seconds=61)
    sql.enqueue(queue="mail", priority=500)
    assert health() == ("WARNING", "2 jobs wait, the oldest for 1 min 1 s: longer than 1 min is a warning")
    clock.advance(minutes=9)
    assert health() == ("CRITICAL", "2 jobs wait, the oldest for 10 min 1 s: longer than 10 min is critical")
    sql.finish(sql.claim_all(worker=worker))
    assert health() == ("OK", "no job waits")


def test_a_queue_has_thresholds_of_its_own_and_a_null_is_that_of_all(
    sql: Session, clock: Clock, worker: UUID, health: Health
) -> None:
    sql.enqueue_many(3, queues=["mail"] * 3)
    settings(sql, "mail", waiting_warning=2, waiting_critical=5, age_warning="1 day")
    assert health() == ("WARNING", "3 jobs wait, the oldest for 0 s: more than 2 are a warning")
    sql.enqueue_many(3, queues=["mail"] * 3)
    assert health() == ("CRITICAL", "6 jobs wait, the oldest for 0 s: more than 5 are critical")
    settings(sql, "mail", waiting_warning=None, waiting_critical=None)
    clock.advance(minutes=9)
    assert health()[0] == "OK"
    clock.advance(minutes=2)
    assert health() == ("CRITICAL", "6 jobs wait, the oldest for 11 min: longer than 10 min is critical")
    settings(sql, "*", age_critical=None)
    assert health()[0] == "OK"


def test_the_share_of_failed_attempts_counts_from_ten_on(sql: Session, worker: UUID, health: Health) -> None:
    def fail(amount: int) -> None:
        sql.enqueue_many(amount, queues=["mail"] * amount, max_attempts=[1] * amount)
        sql.finish(sql.claim_all(worker=worker), "failed")
        sql.value("fold_stats")

    fail(9)
    assert health()[0] == "OK"
    fail(1)
    assert health() == (
        "CRITICAL",
        "no job waits: 10 of 10 attempts of the last hour failed, more than 75 % is critical",
    )
    sql.enqueue_many(10, queues=["mail"] * 10)
    sql.finish(sql.claim_all(worker=worker))
    sql.value("fold_stats")
    assert health() == (
        "WARNING",
        "no job waits: 10 of 20 attempts of the last hour failed, more than 25 % is a warning",
    )


def test_jobs_that_nobody_serves_are_a_warning_and_critical_after_a_minute(
    sql: Session, clock: Clock, health: Health
) -> None:
    sql.enqueue("a", queue="mail")
    assert health() == ("WARNING", "one job waits, for 0 s: no worker serves this queue")
    clock.advance(seconds=62)
    status, message = health()
    assert status == "CRITICAL"
    assert "no worker serves this queue" in message
    sql.value("register", queues=["mail"], tasks=["b"], lease_time="1 day")
    assert "no worker knows a" in health()[1]
    sql.value("register", queues=["mail"], tasks=["a", "b"], lease_time="1 day")
    assert health()[0] == "WARNING", "it waits for long, but somebody will come"
    clock.advance(days=2)  # nobody has been heard of since
    assert "no worker serves this queue" in health()[1]
    settings(sql, "mail", worker_expected=False)
    assert "no worker" not in health()[1]


def test_a_paused_queue_says_so_and_is_never_critical_for_what_waits(
    sql: Session, clock: Clock, health: Health
) -> None:
    sql.enqueue(queue="mail")
    sql.value("pause", queue="mail")
    assert health() == ("OK", "one job waits, for 0 s: paused for 0 s")
    clock.advance(hours=2)
    assert health() == (
        "WARNING",
        "one job waits, for 2 h: longer than 1 min is a warning; paused for 2 h",
    )


def test_a_job_that_came_back_waits_from_then_on(
    sql: Session, clock: Clock, worker: UUID, health: Health
) -> None:
    sql.enqueue(queue="mail", max_attempts=1)
    job = sql.claim_one(worker=worker)
    clock.advance(hours=1)
    sql.finish([job], "failed")
    assert health()[0] == "OK"
    sql.value("replay", id=job.id)
    assert health() == ("OK", "one job waits, for 0 s")


def test_a_scheduled_job_that_nobody_makes_pending_waits_too(
    sql: Session, clock: Clock, worker: UUID, health: Health
) -> None:
    sql.enqueue(queue="mail", delay="1 hour")
    assert health() == ("OK", "no job waits")
    clock.advance(hours=1, minutes=2)
    status, message = health()
    assert status == "WARNING"
    assert message.startswith("no job waits: a scheduled job is due for 2 min")


def test_every_queue_that_was_used_or_set_up_is_judged(sql: Session, worker: UUID) -> None:
    sql.enqueue(queue="mail")
    settings(sql, "reports", waiting_warning=5)
    assert sql("select queue, status, workers from holdfast.queue_health") == [
        ("mail", "OK", 1),
        ("reports", "OK", 1),
    ]


def test_a_queue_that_nobody_knows_is_refused(sql: Session, refused: Refused) -> None:
    """A monitor with a slip in its name must not be told that all is well."""
    sql.enqueue(queue="mail")
    with refused("HF008") as error:
        sql.rows("health", queue="mial")
    assert error.message.endswith("known are mail")
    sql.value("register", queues=["soon"])
    assert [row.status for row in sql.rows("health", queue="soon")] == ["OK"]


def test_durations_are_said_in_two_units(sql: Session) -> None:
    said = {"0": "0 s", "59.9 s": "59 s", "90 s": "1 min 30 s", "2 hours": "2 h", "26 hours": "1 d 2 h"}
    for duration, words in said.items():
        assert sql.value("lasting", duration=duration) == words
    assert sql.value("lasting", duration=None) is None

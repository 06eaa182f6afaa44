"""A notification reaches who sleeps, and nobody pays for one that no one waits for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import embedded, schema
from holdfast.embedded.binaries import find_binaries, version
from holdfast.testing import SETTINGS, Clock
from tests.sql.sessions import Connect, Session

Listen = Callable[..., Callable[[], list[str]]]


@pytest.fixture
def listen(connect: Connect) -> Listen:
    """Listen on the channels of some queues; returns a function that empties the mailbox."""

    def begin(*queues: str) -> Callable[[], list[str]]:
        session = connect()
        for queue in queues:
            session(f'listen "{session.value("channel", queue=queue)}"')

        def heard() -> list[str]:
            session("select 1")  # what was sent before this is there now
            return [notification.payload for notification in session.connection.notifies(timeout=0)]

        return heard

    return begin


@pytest.fixture
def sleeper(sql: Session) -> Callable[..., UUID]:
    def begin(**options: Any) -> UUID:
        worker = sql.value("register", **options)
        sql.value("sleep", worker=worker)
        return worker

    return begin


def test_nobody_is_notified_when_nobody_sleeps(sql: Session, listen: Listen) -> None:
    heard = listen("default", "*")
    sql.value("register")
    sql.enqueue()
    assert heard() == []


def test_a_sleeper_hears_of_a_job_once_it_is_committed(
    sql: Session, other: Session, sleeper: Callable[..., UUID], listen: Listen
) -> None:
    sleeper(queues=["mail"])
    heard = listen("mail", "*")
    with sql.connection.transaction():
        sql.enqueue(queue="mail")
        assert heard() == []
    assert heard() == ["mail"]
    with sql.connection.transaction(force_rollback=True):
        sql.enqueue(queue="mail")
    assert heard() == []


def test_a_sleeper_for_every_queue_hears_on_the_star(
    sql: Session, sleeper: Callable[..., UUID], listen: Listen
) -> None:
    sleeper()
    heard, own = listen("*"), listen("mail")
    sql.enqueue(queue="mail")
    assert (heard(), own()) == (["mail"], [])


def test_only_who_serves_the_queue_and_task_is_worth_a_notification(
    sql: Session, sleeper: Callable[..., UUID], listen: Listen
) -> None:
    sleeper(queues=["mail"], tasks=["send"])
    heard = listen("mail", "other", "*")
    sql.enqueue("send", queue="other")
    sql.enqueue("other", queue="mail")
    assert heard() == []
    sql.enqueue("send", queue="mail")
    assert heard() == ["mail"]


@pytest.mark.parametrize(("heads", "duty"), [("head", "advance"), ("head, safe_head", "check_heads")])
def test_a_sleeper_hears_of_jobs_behind_a_head_when_claims_come_to_them(
    sql: Session, sleeper: Callable[..., UUID], listen: Listen, heads: str, duty: str
) -> None:
    sql.enqueue_many(3)
    sql("select setval('holdfast.job_seq', 2000)")
    sql(f"update holdfast.lane set ({heads}) = row({', '.join('1000' for _ in heads.split())})")
    sleeper()
    heard = listen("*")
    assert sql.claim() == []
    sql.value(duty)
    assert heard() == ["default"]
    assert len(sql.claim()) == 3
    sql.value(duty)
    assert heard() == []


def test_a_busy_worker_hears_only_of_what_goes_before_the_jobs_it_has(sql: Session, listen: Listen) -> None:
    worker = sql.value("register", queues=["mail"])
    assert sql.value("sleep", worker=worker, above=100) is False, "it has work, so it need not look again"
    heard = listen("mail")
    for way in (enqueue, enqueue_three):
        way(sql, priority=99)
        way(sql, priority=100)
        assert heard() == []
        way(sql, priority=101)
        assert heard() == ["mail"]
    sql.value("sleep", worker=worker)
    sql.enqueue(queue="mail", priority=99)
    assert heard() == ["mail"], "it sleeps again, for all"


def enqueue(sql: Session, *, priority: int) -> None:
    sql.enqueue(queue="mail", priority=priority)


def enqueue_three(sql: Session, *, priority: int) -> None:
    sql.enqueue_many(3, queues=["mail"] * 3, priorities=[priority] * 3)


def test_a_priority_that_no_job_can_have_is_refused(sql: Session) -> None:
    worker = sql.value("register")
    with pytest.raises(psycopg.Error, match=r"above.*-32768 to 32767"):
        sql.value("sleep", worker=worker, above=40_000)


def test_a_thousand_jobs_are_one_notification(
    sql: Session, sleeper: Callable[..., UUID], listen: Listen
) -> None:
    sleeper()
    heard = listen("*")
    sql.enqueue_many(1000)
    assert heard() == ["default"]


@pytest.mark.parametrize("end", ["awake", "left", "lost", "silent"])
def test_who_no_longer_sleeps_or_lives_is_not_notified(
    sql: Session, sleeper: Callable[..., UUID], listen: Listen, clock: Clock, end: str
) -> None:
    worker = sleeper()
    heard = listen("*")
    if end == "awake":
        sql.value("sleep", worker=worker, asleep=False)
    elif end == "left":
        sql.value("leave", worker=worker)
    elif end == "lost":
        sql.lose(worker)
    else:  # killed in its sleep, and nobody has noticed yet
        clock.advance(seconds=31)
    sql.enqueue()
    assert heard() == []


def test_a_session_can_keep_silent_for_two_phase_commit(
    sql: Session, sleeper: Callable[..., UUID], listen: Listen, holdfast_dsn: str
) -> None:
    sleeper()
    heard = listen("*")
    sql("set holdfast.notify = off")
    sql.enqueue()
    assert heard() == []
    sql("begin")
    job_id = sql.enqueue()
    sql("prepare transaction 'quiet'")
    sql("commit prepared 'quiet'")
    assert sql.state(job_id) == "pending"
    assert heard() == []
    sql("reset holdfast.notify")
    sql.enqueue()
    assert heard() == ["default"]


@pytest.mark.parametrize("way", ["enqueue", "enqueue_many", "release"])
def test_who_cannot_see_the_sleepers_wakes_them_all(
    sql: Session, other: Session, sleeper: Callable[..., UUID], listen: Listen, way: str
) -> None:
    """The snapshot of the one who enqueues is older than the sleep."""
    held = other.enqueue()
    job = other.claim_one()
    other("begin isolation level repeatable read")
    other("select 1")
    sleeper(queues=["default"])
    heard = listen("default")
    match way:
        case "enqueue":
            other.enqueue()
        case "enqueue_many":
            other.enqueue_many(3)
        case "release":
            other.value("release", id=held, lease=job.lease)
    other("commit")
    assert heard() == ["default"]


def test_who_falls_asleep_while_a_queue_is_resumed_is_told_to_look_again(
    sql: Session, other: Session
) -> None:
    sql.enqueue(queue="mail")
    sql.value("pause", queue="mail")
    worker = sql.value("register")
    assert sql.value("sleep", worker=worker) is True
    assert sql.value("sleep", worker=worker) is False
    sql.value("sleep", worker=worker, asleep=False)
    other("begin")
    other.value("resume", queue="mail")
    for _ in range(2):
        assert sql.value("sleep", worker=worker) is True
    other("commit")
    assert sql.value("sleep", worker=worker) is False
    assert sql.claim_one(worker=worker)


@pytest.mark.parametrize("cause", ["retry", "delay", "release", "recovery", "run_now", "resume"])
def test_whatever_makes_a_job_available_wakes_a_sleeper(
    sql: Session, sleeper: Callable[..., UUID], listen: Listen, clock: Clock, cause: str
) -> None:
    job_id = sql.enqueue(queue="mail", delay="1 second" if cause in ("delay", "run_now") else None)
    job = sql.claim_one() if cause in ("retry", "release", "recovery") else None
    if cause == "retry":
        sql.value("fail", id=job.id, lease=job.lease, error="no", retry_in="1 second")
    if cause == "resume":
        sql.value("pause", queue="mail")
    clock.advance(seconds=2)
    sleeper(queues=["mail"])
    heard = listen("mail")
    match cause:
        case "retry" | "delay":
            sql.value("promote")
        case "release":
            sql.value("release", id=job.id, lease=job.lease)
        case "recovery":
            sql.lose(job.worker)
        case "run_now":
            sql.value("run_now", id=job_id)
        case "resume":
            sql.value("resume", queue="mail")
    assert heard() == ["mail"]
    assert sql.claim_one().id == job_id


def test_a_channel_fits_however_long_the_queue_is_called(
    sql: Session, sleeper: Callable[..., UUID], listen: Listen
) -> None:
    channels = {sql.value("channel", queue="q" * length) for length in range(1, 101)}
    assert len(channels) == 100
    assert max(len(channel) for channel in channels) == 63
    assert sql.value("channel", queue="mail") == "holdfast_mail"
    long = "q" * 99 + ":"
    sleeper(queues=[long])
    heard = listen(long)
    sql.enqueue(queue=long)
    assert heard() == [long]


def test_who_falls_asleep_is_told_whether_a_transaction_may_still_bring_jobs(
    sql: Session, other: Session
) -> None:
    worker = sql.value("register")
    assert sql.value("sleep", worker=worker) is True  # nobody sees it yet
    assert sql.value("sleep", worker=worker) is False
    with other.connection.transaction():
        other.enqueue()
        assert sql.value("sleep", worker=worker) is True
    assert sql.value("sleep", worker=worker) is False
    assert sql.value("sleep", worker=worker, asleep=False) is False


def test_a_queue_of_notifications_that_fills_up_silences_us_and_never_fails_a_commit(
    server_home: Path,
) -> None:
    # The queue of the whole server can be small only in a server of our own, and since PostgreSQL 17.
    settings = {**SETTINGS, "max_notify_queue_pages": "64"}
    if int(version(find_binaries()).partition(".")[0]) < 17:
        pytest.skip("max_notify_queue_pages came with PostgreSQL 17")
    with embedded.start(server_home, settings=settings) as server, psycopg.connect(server.dsn) as connection:
        connection.autocommit = True
        schema.apply(connection)
        sql = Session(connection)
        sql.value("sleep", worker=sql.value("register"))
        with psycopg.connect(server.dsn, autocommit=True) as deaf:
            deaf.execute("listen holdfast_default")
            deaf.execute("begin")  # in a transaction nothing is heard, so nothing can be thrown away
            while sql.one("select pg_notification_queue_usage()") < 0.5:
                sql("select pg_notify('noise', repeat('x', 7000) || n) from generate_series(1, 10) n")
            full = sql.one("select pg_notification_queue_usage()")
            for _ in range(100):
                sql.enqueue()
            assert sql.one("select pg_notification_queue_usage()") == full


def test_a_sleeper_hears_that_a_job_has_another_time(
    sql: Session, sleeper: Callable[..., UUID], listen: Listen
) -> None:
    job = sql.enqueue(queue="mail", delay="1 hour")
    sleeper(queues=["mail"])
    heard = listen("mail")
    sql.value("reschedule", id=job, delay="1 minute")
    assert heard() == ["mail"]

"""A notification reaches workers that sleep, and is sent only if there are any."""

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
Hear = Callable[[], list[tuple[str, str]]]
ALONE = [f"worker.{number}" for number in range(10)]


@pytest.fixture
def listen(connect: Connect) -> Listen:
    """Listen on the channels of some queues; returns a function that empties the mailbox."""

    def begin(*queues: str) -> Callable[[], list[str]]:
        session = connect()
        for queue in queues:
            session(f'listen "{session.value("channel", queue=queue)}"')

        def heard() -> list[str]:
            session("select 1")  # earlier notifications come before its reply
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


@pytest.fixture
def hear(connect: Connect) -> Hear:
    """Listen on the channels of ten workers and on `+`; returns what came, as channels and payloads."""
    session = connect()
    for channel in [*ALONE, "holdfast_+"]:
        session(f'listen "{channel}"')

    def heard() -> list[tuple[str, str]]:
        session("select 1")  # earlier notifications come before its reply
        return [(it.channel, it.payload) for it in session.connection.notifies(timeout=0)]

    return heard


@pytest.fixture
def fleet(sleeper: Callable[..., UUID]) -> Callable[..., list[UUID]]:
    """Register ten workers that sleep, each with a channel of its own."""

    def begin(**options: Any) -> list[UUID]:
        return [sleeper(channel=channel, **options) for channel in ALONE]

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
    sql.value("sleep", worker=sql.value("register", queues=["other"]))  # so that every enqueue has to look
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


# Workers with a channel of their own.


@pytest.mark.parametrize(
    ("way", "jobs", "woken"),
    [
        (lambda sql: sql.enqueue(), 1, 2),
        (lambda sql: sql.enqueue_many(1), 1, 2),
        (lambda sql: sql.enqueue_many(3), 3, 4),
        (lambda sql: sql.enqueue_many(9), 9, 10),
        (lambda sql: sql.enqueue_many(1000), 1000, 10),
        (lambda sql: sql.rows("run_now", id=sql.enqueue(delay="1 hour")), 1, 2),
    ],
)
def test_one_worker_more_than_there_are_jobs_is_woken(
    sql: Session,
    fleet: Callable[..., list[UUID]],
    hear: Hear,
    way: Callable[[Session], object],
    jobs: int,
    woken: int,
) -> None:
    fleet()
    way(sql)
    heard = [channel for channel, payload in hear() if payload == "default"]
    assert len(heard) == len(set(heard)) == woken
    assert set(heard) <= set(ALONE)


def test_the_workers_to_wake_are_chosen_at_random(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    fleet()
    for _ in range(100):
        sql.enqueue()
    assert {channel for channel, _ in hear()} == set(ALONE), "a fixed choice would be two of them"


def test_each_lane_of_a_batch_wakes_workers_for_its_jobs(
    sql: Session, sleeper: Callable[..., UUID], hear: Hear
) -> None:
    for number, channel in enumerate(ALONE):
        sleeper(channel=channel, queues=["mail" if number < 5 else "other"])
    sql.enqueue_many(4, queues=["mail", "mail", "other", "third"])
    heard = hear()
    assert [payload for _, payload in heard].count("mail") == 3
    assert [payload for _, payload in heard].count("other") == 2
    assert len(heard) == 5


def test_jobs_that_come_back_wake_one_worker_more(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    sql.enqueue_many(3)
    jobs = sql.claim_all()
    fleet()
    sql.finish(jobs, "released")
    assert len(hear()) == 4


def test_a_resumed_queue_wakes_all_its_workers(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    sql.value("pause", queue="default")
    sql.enqueue()
    fleet()
    sql.value("resume", queue="default")
    assert sorted(hear()) == [(channel, "default") for channel in ALONE]


def test_silent_workers_are_woken_last(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear, clock: Clock
) -> None:
    """A heartbeat comes every sixth of the lease time, so these may be dead."""
    workers = fleet()
    clock.advance(seconds=10)
    for worker in workers[:2]:
        sql.value("heartbeat", worker=worker)
    for _ in range(10):
        sql.enqueue()
    assert {channel for channel, _ in hear()} == set(ALONE[:2])
    sql.enqueue_many(4)
    heard = {channel for channel, _ in hear()}
    assert len(heard) == 5
    assert set(ALONE[:2]) < heard, "if they are too few, silent ones are woken too"


@pytest.mark.parametrize("way", ["enqueue", "enqueue_many"])
def test_a_later_job_tells_two_workers_only_to_look_at_the_time(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear, way: str
) -> None:
    fleet()
    if way == "enqueue":
        sql.enqueue(delay="1 hour")
    else:
        sql.enqueue_many(5, delays=["1 hour"] * 5)
    assert [payload for _, payload in hear()] == ["", ""]


def test_a_job_whose_time_has_passed_is_a_job_for_now(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    fleet()
    sql.enqueue(run_at="2020-01-01 00:00+00")
    assert [payload for _, payload in hear()] == ["default", "default"]


def test_a_batch_with_jobs_for_now_and_for_later_says_both(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    fleet()
    sql.enqueue_many(3, delays=[None, "1 hour", "1 hour"])
    assert sorted(payload for _, payload in hear()) == ["", "", "default", "default"]


def test_a_new_time_of_a_job_and_of_a_schedule_is_told_without_a_claim(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    job = sql.enqueue(delay="1 hour")
    fleet()
    sql.value("reschedule", id=job, delay="1 minute")
    assert [payload for _, payload in hear()] == ["", ""]
    sql.value("add_schedule", name="s", task="task", every="1 hour")
    assert hear() == [("holdfast_+", "")]


def test_consumers_without_a_channel_of_their_own_are_woken_as_before(
    sql: Session, fleet: Callable[..., list[UUID]], sleeper: Callable[..., UUID], listen: Listen, hear: Hear
) -> None:
    fleet()
    sleeper(queues=["default"])
    sleeper()
    of_queue, of_all = listen("default"), listen("*")
    sql.enqueue()
    assert (of_queue(), of_all(), len(hear())) == (["default"], ["default"], 2)
    sql.enqueue(delay="1 hour")
    assert (of_queue(), of_all(), len(hear())) == (["default"], ["default"], 2)


def test_workers_with_a_channel_of_their_own_need_no_other(
    sql: Session, fleet: Callable[..., list[UUID]], listen: Listen, hear: Hear
) -> None:
    fleet()
    heard = listen("default", "*")
    sql.enqueue()
    assert heard() == []
    assert not [channel for channel, _ in hear() if channel not in ALONE]


@pytest.mark.parametrize("delay", [None, "1 hour"])
@pytest.mark.parametrize("way", ["enqueue", "enqueue_many"])
def test_an_old_snapshot_wakes_all_workers(
    sql: Session,
    other: Session,
    fleet: Callable[..., list[UUID]],
    listen: Listen,
    hear: Hear,
    way: str,
    delay: str | None,
) -> None:
    with other.transaction("repeatable read"):
        other("select 1")
        fleet()
        heard = listen("default", "*")
        if way == "enqueue":
            other.enqueue(delay=delay)
        else:
            other.enqueue_many(2, delays=[delay] * 2)
    assert heard() == ["default", "default"]
    assert hear() == [("holdfast_+", "" if delay else "default")]


def test_jobs_of_a_transaction_that_is_rolled_back_wake_nobody(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    fleet()
    with sql.connection.transaction():
        with sql.connection.transaction(force_rollback=True):  # a savepoint
            sql.enqueue_many(5)
        sql.enqueue()
    assert len(hear()) == 2


# Wake-ups that reach nobody.


def test_a_worker_without_a_free_slot_wakes_others_instead(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    workers = fleet()
    sql.enqueue()
    hear()
    for _ in range(30):
        for worker in workers[:8]:
            sql.value("sleep", worker=worker, above=100)
        sql.value("pass_on", worker=workers[0])
        assert sorted(hear()) == [(channel, "default") for channel in ALONE[8:]]


def test_a_wake_up_is_passed_on_only_while_there_are_jobs(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    workers = fleet(queues=["mail"], tasks=["send"])
    sql.enqueue("send", queue="other")
    sql.enqueue("other", queue="mail")
    sql.value("pass_on", worker=workers[0])
    assert hear() == []
    sql.enqueue("send", queue="mail")
    assert len(hear()) == 2
    sql.value("pass_on", worker=workers[0])
    assert len(hear()) == 2
    sql.claim_all()
    sql.value("pass_on", worker=workers[0])
    assert hear() == []


def test_a_worker_of_all_tasks_passes_on_too(sql: Session, sleeper: Callable[..., UUID], hear: Hear) -> None:
    for queues in (None, ["default"]):
        sleeper(channel=ALONE[0], queues=queues)
        full = sql.value("register", queues=queues)
        sql.enqueue()
        hear()
        sql.value("pass_on", worker=full)
        assert set(hear()) == {(ALONE[0], "default")}
        sql.claim_all()


@pytest.mark.parametrize("queues", [None, ["default"]])
@pytest.mark.parametrize("tasks", [None, ["task"]])
def test_a_missed_wake_up_is_repaired(
    sql: Session,
    fleet: Callable[..., list[UUID]],
    hear: Hear,
    queues: list[str] | None,
    tasks: list[str] | None,
) -> None:
    fleet(queues=queues, tasks=tasks)
    sql("set holdfast.notify = off")
    sql.enqueue()
    sql("reset holdfast.notify")
    assert hear() == []
    for _ in range(3):
        sql("select holdfast.wake_missed()")
        assert [payload for _, payload in hear()] == ["default"] * 2
    sql.claim_one()
    sql("select holdfast.wake_missed()")
    assert hear() == []


def test_missed_wake_ups_of_many_lanes_reach_each_kind_of_worker(
    sql: Session, sleeper: Callable[..., UUID], hear: Hear
) -> None:
    for number, channel in enumerate(ALONE):
        sleeper(channel=channel, queues=[f"queue.{number}"], tasks=["task"])
    sql("set holdfast.notify = off")
    for number in range(10):
        for priority in range(20):
            sql.enqueue(queue=f"queue.{number}", priority=priority)
    sql("reset holdfast.notify")
    sql("select holdfast.wake_missed()")
    assert sorted(hear()) == [(channel, f"queue.{number}") for number, channel in enumerate(ALONE)]


def test_the_duties_repair_missed_wake_ups(
    sql: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    fleet()
    sql("set holdfast.notify = off")
    sql.enqueue()
    sql("reset holdfast.notify")
    sql.rows("do_duties")
    assert len(hear()) == 2


def test_nobody_is_woken_for_jobs_that_no_sleeping_worker_may_have(
    sql: Session, sleeper: Callable[..., UUID], hear: Hear
) -> None:
    sleeper(channel=ALONE[0], queues=["mail"], tasks=["send"])
    sleeper(channel=ALONE[1], queues=["paused"], tasks=["send"])
    busy = sleeper(channel=ALONE[2])
    sql.value("sleep", worker=busy, above=100)
    sql.value("pause", queue="paused")
    sql("set holdfast.notify = off")
    sql.enqueue("send", queue="other")
    sql.enqueue("other", queue="mail")
    sql.enqueue("send", queue="mail", delay="1 hour")
    sql.enqueue("send", queue="paused")
    sql("reset holdfast.notify")
    sql("select holdfast.wake_missed()")
    assert hear() == []


def test_a_worker_that_dies_after_it_was_chosen_costs_one_look(
    sql: Session, other: Session, fleet: Callable[..., list[UUID]], hear: Hear
) -> None:
    """A transaction stays open long after it chose whom to wake."""
    workers = fleet()
    with other.connection.transaction():
        other.enqueue()
        assert hear() == []
        for worker in workers[:9]:
            sql.lose(worker)
    hear()
    sql("select holdfast.wake_missed()")
    assert hear() == [(ALONE[9], "default")]

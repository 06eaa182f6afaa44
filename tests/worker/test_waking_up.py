"""An idle worker picks up a job at once. The poll is so long here that only a notification can explain it."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import Context, Holdfast, Job, JobState, Retry
from holdfast.database import Database
from tests.fixtures import Ask, AsyncTask, StartWorker, Until

Waited = Callable[[Job[Any]], timedelta]

SOON = timedelta(seconds=3)  # a worker that hears looks every five seconds all the same


@pytest.fixture
def asleep(ask: Ask, until: Until) -> Callable[..., None]:
    """Wait until so many workers sleep: they say so on the line on which they listen."""

    def asleep(amount: int = 1) -> None:
        until(lambda: ask("select count(*) from holdfast.worker where asleep") == [(amount,)])

    return asleep


@pytest.fixture
def noop(hf: Holdfast) -> AsyncTask[None]:
    @hf.task(name="noop", queue="quick")
    async def noop() -> None: ...

    return noop


@pytest.fixture
def waited(until: Until) -> Waited:
    """Wait until the job is done; how long it had waited for a worker."""

    def waited(job: Job[Any]) -> timedelta:
        done = until(lambda: (seen := job.refresh()).state is JobState.COMPLETED and seen)
        return done.claimed_at - max(done.created_at, done.run_at)

    return waited


def test_a_worker_that_lost_its_line_says_again_that_it_sleeps(
    work: StartWorker,
    noop: AsyncTask[None],
    asleep: Callable[..., None],
    waited: Waited,
    ask: Ask,
) -> None:
    work(poll_interval=60)
    asleep()
    # A server that crashes may lose what was said just before, for that is not waited for to be on disk.
    ask("update holdfast.worker set asleep = false")
    ask(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name = 'holdfast claimer'"
    )
    asleep()
    assert waited(noop.enqueue()) < SOON


@pytest.mark.parametrize("queues", [None, ["other", "quick"]])
def test_an_enqueued_job_wakes_a_sleeper(
    work: StartWorker,
    noop: AsyncTask[None],
    asleep: Callable[..., None],
    waited: Waited,
    queues: list[str] | None,
) -> None:
    work(poll_interval=60, queues=queues)
    for _ in range(3):
        asleep()
        assert waited(noop.enqueue()) < SOON


def test_a_job_wakes_a_sleeper_when_its_transaction_commits(
    holdfast_dsn: str,
    work: StartWorker,
    noop: AsyncTask[None],
    asleep: Callable[..., None],
    waited: Waited,
) -> None:
    work(poll_interval=60)
    asleep()
    with psycopg.connect(holdfast_dsn) as connection:
        job = noop.on(connection).enqueue()
        connection.commit()
    assert waited(job) < SOON


def test_a_transaction_that_was_open_before_the_worker_fell_asleep_is_not_missed(
    holdfast_dsn: str,
    work: StartWorker,
    noop: AsyncTask[None],
    asleep: Callable[..., None],
    until: Until,
) -> None:
    with psycopg.connect(holdfast_dsn) as connection:
        job = noop.on(connection).enqueue()  # nobody sleeps yet, so nobody is notified
        work(poll_interval=60)
        asleep()
        begun = time.monotonic()
        connection.commit()
    until(lambda: job.refresh().state is JobState.COMPLETED)
    assert time.monotonic() - begun < SOON.total_seconds()


def test_every_way_for_a_job_to_become_pending_wakes_a_sleeper(
    hf: Holdfast,
    work: StartWorker,
    noop: AsyncTask[None],
    asleep: Callable[..., None],
    waited: Waited,
    ask: Ask,
) -> None:
    later = noop.options(delay=3600).enqueue()
    claimer, lease = uuid4(), uuid4()
    held = noop.enqueue()
    ask("select id from holdfast.claim(%s, %s)", claimer, lease)
    hf.queues.pause("quick")
    paused = noop.enqueue()
    work(poll_interval=60)

    asleep()
    hf.queues.resume("quick")
    assert ask("select true from holdfast.queue where name = 'quick' and paused_at is null")
    resumed_at = ask("select clock_timestamp()")[0][0]
    waited(paused)
    assert paused.refresh().claimed_at - resumed_at < SOON

    asleep()
    ask("select holdfast.release(%s, %s)", held.id, lease)
    released_at = ask("select clock_timestamp()")[0][0]
    waited(held)
    assert held.refresh().claimed_at - released_at < SOON

    asleep()
    later.run_now()
    hurried_at = ask("select clock_timestamp()")[0][0]
    waited(later)
    assert later.refresh().claimed_at - hurried_at < SOON


def test_delayed_jobs_start_on_time_without_busy_polling(
    work: StartWorker,
    noop: AsyncTask[None],
    asleep: Callable[..., None],
    waited: Waited,
    carried: Counter[str],
) -> None:
    work(poll_interval=60)
    asleep()
    before = carried["promote"]
    jobs = [noop.options(delay=delay).enqueue() for delay in (1.3, 0.4, 0.8)]
    assert max(waited(job) for job in jobs) < SOON
    assert carried["promote"] - before < 20


def test_a_retry_is_run_again_when_it_is_due(
    hf: Holdfast, work: StartWorker, asleep: Callable[..., None], until: Until, carried: Counter[str]
) -> None:
    @hf.task(name="flaky", max_attempts=4)
    async def flaky(ctx: Context) -> Retry | None:
        return Retry(after=0.2) if ctx.attempt < 4 else None

    work(poll_interval=60)
    asleep()
    job = flaky.enqueue()
    done = until(lambda: (seen := job.refresh()).state is JobState.COMPLETED and seen)
    assert done.finished_at - done.created_at < timedelta(seconds=2)
    assert carried["promote"] < 40


def test_without_notifications_the_poll_serves(
    hf: Holdfast,
    work: StartWorker,
    noop: AsyncTask[None],
    waited: Waited,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(Database, "listening_session")
    work(notify=False, poll_interval=0.1)
    for _ in range(3):
        assert waited(noop.enqueue()) < SOON
    assert ask("select count(*) from holdfast.worker where asleep") == [(0,)]


def test_an_idle_worker_asks_little(
    work: StartWorker,
    noop: AsyncTask[None],
    asleep: Callable[..., None],
    carried: Counter[str],
    until: Until,
) -> None:
    work(poll_interval=60, lease_time=1.5)
    asleep()

    def at_rest() -> bool:
        """It says again that it sleeps while somebody, a duty of its own at first, may bring new jobs."""
        before = carried.copy()
        until(lambda: carried["heartbeat"] >= before["heartbeat"] + 2)
        return carried["sleep"] == before["sleep"]

    until(at_rest)
    before, begun = carried.copy(), time.monotonic()
    until(lambda: carried["heartbeat"] >= before["heartbeat"] + 6)  # one and a half seconds
    spent, seconds = carried - before, time.monotonic() - begun
    assert spent["claim"] <= 2
    assert spent["promote"] <= seconds + 2
    assert spent["sleep"] == 0

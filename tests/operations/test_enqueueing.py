"""Jobs enqueued from Python: in the caller's transaction, in bulk, and refused when they are wrong."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import (
    BadArguments,
    BadName,
    BadPayload,
    BadValue,
    Holdfast,
    IdConflict,
    Job,
    JobNotFound,
    JobState,
    NewJob,
    PayloadTooLarge,
    UnknownOption,
)
from holdfast.database.copy_in import BATCH_SIZE
from tests.fixtures import Ask, AsyncTask, Counts


@pytest.fixture
def greet(hf: Holdfast) -> AsyncTask[None]:
    @hf.task(name="greet", queue="mail", priority=120)
    async def greet(user_id: int, name: str = "you") -> None: ...

    return greet


def exists(job: Job[Any]) -> bool:
    try:
        return job.refresh().state is JobState.PENDING
    except JobNotFound:
        return False


# In the caller's own transaction.


@pytest.mark.parametrize("through", ["connection", "cursor", "dict rows"])
def test_a_job_exists_if_and_only_if_the_callers_transaction_commits(
    holdfast_dsn: str, greet: AsyncTask[None], through: str
) -> None:
    with psycopg.connect(holdfast_dsn) as connection:
        ways: dict[str, Callable[[], Any]] = {
            "connection": lambda: connection,
            "cursor": connection.cursor,
            "dict rows": lambda: connection.cursor(row_factory=dict_row),
        }
        conn = ways[through]()
        job = greet.on(conn).enqueue(user_id=7)
        assert not exists(job)
        connection.rollback()
        assert not exists(job)
        job = greet.on(conn).enqueue(user_id=8)
        assert not exists(job)
        connection.commit()
        assert exists(job)


@pytest.mark.parametrize("through", ["connection", "cursor"])
def test_an_async_transaction_carries_a_job_as_well(
    holdfast_dsn: str, hf: Holdfast, greet: AsyncTask[None], through: str
) -> None:
    async def main() -> list[bool]:
        async with await psycopg.AsyncConnection.connect(holdfast_dsn) as connection:
            conn = connection if through == "connection" else connection.cursor()
            lost = await greet.on(conn).aenqueue(user_id=7)
            await connection.rollback()
            kept = await hf.on(conn).aenqueue("greet", {"user_id": 8})
            many = await hf.on(conn).aenqueue_many(greet.call(i) for i in range(3))
            assert [exists(job) for job in [lost, kept, *many]] == [False] * 5
            await connection.commit()
            return [exists(job) for job in [lost, kept, *many]]

    assert asyncio.run(main()) == [False, True, True, True, True]


def test_a_savepoint_that_is_rolled_back_takes_its_job_along(
    holdfast_dsn: str, greet: AsyncTask[None]
) -> None:
    with psycopg.connect(holdfast_dsn) as connection:
        kept = greet.on(connection).enqueue(user_id=1)
        with connection.transaction(force_rollback=True):
            lost = greet.on(connection).enqueue(user_id=2)
        connection.commit()
    assert (exists(kept), exists(lost)) == (True, False)


def test_a_refused_job_leaves_the_callers_connection_in_one_piece(
    holdfast_dsn: str, hf: Holdfast, greet: AsyncTask[None]
) -> None:
    with psycopg.connect(holdfast_dsn) as connection:
        with connection.transaction():
            kept = greet.on(connection).enqueue(user_id=1)
            with pytest.raises(PayloadTooLarge), connection.transaction():
                hf.on(connection).enqueue("greet", "x" * 1_000_000)
        assert exists(kept)


def test_what_is_no_connection_is_refused_by_name(greet: AsyncTask[None]) -> None:
    for conn in ["postgresql://me:hunter2@here/db", object(), 7]:
        with pytest.raises(BadValue, match="conn must be a psycopg Connection or Cursor") as refusal:
            greet.on(conn).enqueue(user_id=1)
        assert "hunter2" not in str(refusal.value)


def test_an_async_connection_is_refused_by_the_sync_method(
    holdfast_dsn: str, hf: Holdfast, greet: AsyncTask[None]
) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(holdfast_dsn) as connection:
            with pytest.raises(BadValue, match="async ones go with the a… methods"):
                greet.on(connection).enqueue(user_id=1)
        with psycopg.connect(holdfast_dsn) as connection, pytest.raises(BadValue, match="AsyncConnection"):
            await greet.on(connection).aenqueue(user_id=1)

    asyncio.run(main())


# In copy_in.


def test_more_than_one_call_carries_are_enqueued_in_order(
    hf: Holdfast, greet: AsyncTask[None], ask: Ask
) -> None:
    jobs = hf.enqueue_many(greet.call(user_id=i) for i in range(2 * BATCH_SIZE + 1))
    assert len({job.id for job in jobs}) == 2 * BATCH_SIZE + 1
    rows = ask("select id, (payload->>'user_id')::int from holdfast.job order by seq")
    assert [row[0] for row in rows] == [job.id for job in jobs]
    assert [row[1] for row in rows] == list(range(2 * BATCH_SIZE + 1))


def some_then_a_bad_one(greet: AsyncTask[None]) -> Iterator[NewJob]:
    yield from (greet.call(user_id=i) for i in range(BATCH_SIZE + 10))
    yield greet.call(user_id="seven")


@pytest.mark.parametrize("autocommit", [None, True, False])
def test_all_of_them_or_none(
    holdfast_dsn: str,
    hf: Holdfast,
    greet: AsyncTask[None],
    counts: Counts,
    autocommit: bool | None,
) -> None:
    if autocommit is None:
        with pytest.raises(BadArguments):
            hf.enqueue_many(some_then_a_bad_one(greet))
    else:
        with psycopg.connect(holdfast_dsn, autocommit=autocommit) as connection:
            with pytest.raises(BadArguments):
                hf.on(connection).enqueue_many(some_then_a_bad_one(greet))
            connection.rollback()
    assert counts() == {}


def test_all_of_them_or_none_when_the_database_refuses_one(
    hf: Holdfast, greet: AsyncTask[None], counts: Counts
) -> None:
    taken = uuid4()
    greet.options(id=taken).enqueue(user_id=1)
    with pytest.raises(IdConflict):
        hf.enqueue_many(
            [*(greet.call(user_id=i) for i in range(BATCH_SIZE)), greet.options(id=taken).call(user_id=2)]
        )
    assert counts() == {"pending": 1}


def test_all_of_them_or_none_async(hf: Holdfast, greet: AsyncTask[None], counts: Counts) -> None:
    async def main() -> int:
        with pytest.raises(BadArguments):
            await hf.aenqueue_many(some_then_a_bad_one(greet))
        jobs = await hf.aenqueue_many(greet.call(user_id=i) for i in range(BATCH_SIZE + 1))
        await hf.aclose()
        return len(jobs)

    assert asyncio.run(main()) == BATCH_SIZE + 1
    assert counts() == {"pending": BATCH_SIZE + 1}


def test_nothing_is_enqueued_from_nothing(hf: Holdfast, counts: Counts) -> None:
    assert hf.enqueue_many([]) == []
    assert counts() == {}


# Refused. Nothing reaches the database, so one database serves each table of examples.

WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({}, "user_id"),
    ({"user_id": "seven"}, "user_id"),
    ({"user_id": 7, "name": 7}, "name"),
    ({"user_id": 7, "nmae": "Ann"}, "nmae"),
]

WRONG_OPTIONS: list[tuple[str, Any, type[Exception]]] = [
    ("prioritty", 7, UnknownOption),
    ("priority", 40_000, BadValue),
    ("priority", -sys.maxsize, BadValue),
    ("priority", True, BadValue),
    ("run_at", datetime(2030, 1, 1), BadValue),  # noqa: DTZ001 - naive on purpose
    ("run_at", datetime.now(UTC) + timedelta(days=80_000), BadValue),
    ("delay", timedelta(seconds=-1), BadValue),
    ("delay", float("inf"), BadValue),
    ("max_attempts", 0, BadValue),
    ("queue", "Two Words", BadName),
    ("queue", "x" * 101, BadName),
    ("id", "not-a-uuid", BadValue),
    ("headers", {"trace": "\0"}, BadPayload),
    ("headers", {"trace": "x" * 8192}, BadValue),
    ("headers", {"resumes": True}, BadValue),
]

WRONG_WORKERS: list[tuple[str, Any]] = [
    ("concurrency", 0),
    ("concurrency", 10_001),
    ("lease_time", 0.5),
    ("lease_time", timedelta(days=2)),
    ("poll_interval", 0),
    ("grace", -1),
    ("queues", ["Two Words"]),
]


def test_arguments_that_do_not_fit_fail_at_the_line_that_enqueues(
    greet: AsyncTask[None], counts: Counts
) -> None:
    for arguments, argument in WRONG_ARGUMENTS:
        with pytest.raises(BadArguments) as refusal:
            greet.enqueue(**arguments)
        assert refusal.value.argument == argument
    assert counts() == {}


def test_an_option_out_of_its_limits_is_refused(hf: Holdfast, greet: AsyncTask[None], counts: Counts) -> None:
    for option, value, error in WRONG_OPTIONS:
        with pytest.raises(error, match=option):
            greet.options(**{option: value}).enqueue(user_id=7)
        with pytest.raises(error, match=option):
            hf.enqueue("greet", {"user_id": 7}, **{option: value})
    assert counts() == {}


def test_an_option_of_a_worker_out_of_its_limits_is_refused(hf: Holdfast) -> None:
    for option, value in WRONG_WORKERS:
        with pytest.raises((BadValue, BadName), match=option.removesuffix("s")):
            hf.worker(**{option: value})


def test_a_call_by_name_goes_where_the_task_that_is_declared_here_says(hf: Holdfast) -> None:
    hf.task(name="later", queue="slow", priority=30, delay=60)(lambda: None)
    told, moved = hf.enqueue("later").refresh(), hf.enqueue("later", queue="mail", priority=7).refresh()
    assert (told.queue, told.priority, told.state) == ("slow", 30, JobState.SCHEDULED)
    assert (moved.queue, moved.priority, moved.state) == ("mail", 7, JobState.SCHEDULED)
    now = hf.enqueue("later", run_at=datetime.now(UTC)).refresh()
    assert (now.queue, now.state) == ("slow", JobState.PENDING)
    unknown = asyncio.run(hf.aenqueue("not.here")).refresh()
    assert (unknown.queue, unknown.priority, unknown.state) == ("default", 100, JobState.PENDING)


def test_an_unknown_option_is_refused_with_a_suggestion(hf: Holdfast, greet: AsyncTask[None]) -> None:
    with pytest.raises(UnknownOption, match="Did you mean 'priority'"):
        greet.options(prioritty=7)  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match="Did you mean 'max_attempts'"):
        hf.task(name="other", max_atempts=3)(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(UnknownOption, match="Did you mean 'concurrency'"):
        hf.worker(concurency=3)  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match=r"a Holdfast has no option 'dns'\. Did you mean 'dsn'\?"):
        Holdfast(dns="postgresql:///shop")  # type: ignore[arg-type]


def test_a_payload_that_cannot_be_stored_is_refused(
    hf: Holdfast, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for payload in ["\0", {"a": "\ud800"}, {"\0": 1}, float("nan"), object(), "x" * 1_000_000]:
        with pytest.raises((BadPayload, PayloadTooLarge)):
            hf.enqueue("greet", payload)
    for text in ["1e400000", "[" * 50_000 + "]" * 50_000]:  # what only the database finds out
        monkeypatch.setattr("holdfast.task.to_json", lambda _, text=text: text.encode())
        with pytest.raises(BadPayload):
            hf.enqueue("greet", "never mind")
    assert counts() == {}


def test_the_same_id_is_one_job_and_with_another_payload_an_error(
    greet: AsyncTask[None], counts: Counts
) -> None:
    chosen = uuid4()
    first = greet.options(id=chosen).enqueue(user_id=7)
    assert greet.options(id=str(chosen)).enqueue(user_id=7) == first
    with pytest.raises(IdConflict) as refusal:
        greet.options(id=chosen).enqueue(user_id=8)
    assert (refusal.value.id, refusal.value.field) == (chosen, "payload")
    assert counts() == {"pending": 1}

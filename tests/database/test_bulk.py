"""Many jobs at once, by COPY or through arrays: the same jobs and the same errors either way."""

import asyncio
import contextlib
import multiprocessing
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import (
    BadName,
    BadPayload,
    BadValue,
    Holdfast,
    IdConflict,
    PayloadTooLarge,
    RetryPolicy,
    SchemaMissing,
)
from holdfast.database import copy_in, pools
from holdfast.database.copy_in import BATCH_SIZE
from holdfast.testing import Clock
from holdfast.values.job import NewJob
from tests.fixtures import Ask, AsyncTask, Counts

AMOUNT = 120
COLUMNS = (
    "lane_id, task, payload, headers, state, attempt, max_attempts, worker_id, lease, last_lease, "
    "last_outcome, last_error, cancel_requested_at, claimed_at, changed_at"
)
TEXTS = [
    "a\tb\nc\rd\\e\\n\\N\\.",
    "\"quoted\" 'text'",
    "ünïcödé 🐘",
    "\x01\x1f",
    "\\",
    "\\.",
    "\\N",
    "null",
    "",
]


@pytest.fixture
def mail(hf: Holdfast) -> AsyncTask[None]:
    @hf.task(name="mail", queue="mail", priority=120)
    async def mail(n: int, text: str = "", more: dict[str, object] | None = None) -> None: ...

    return mail


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either way, whatever the number of jobs."""
    few = {"copy": 1, "arrays": 10**9}[request.param]
    monkeypatch.setattr(copy_in, "SMALLEST_COPY", few)
    monkeypatch.setattr(pools, "SMALLEST_COPY", 1)
    return request.param


either_way = pytest.mark.parametrize("way", ["copy", "arrays"], indirect=True)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each batch that was written for a COPY had."""
    copied: list[int] = []
    lines = copy_in._LineWriter.lines

    def counted(sheet: Any, batch: Any, ids: Any) -> Any:
        written = lines(sheet, batch, ids)
        copied.append(0 if written is None else len(batch))
        return written

    monkeypatch.setattr(copy_in._LineWriter, "lines", counted)
    return copied


def every_kind(mail: AsyncTask[None]) -> list[NewJob]:
    """Jobs with every option, and with texts that a COPY must escape."""
    later = datetime(2040, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    return [
        *(mail.call(n, text=text, more={text: [text, n, 1.5, None, True]}) for n, text in enumerate(TEXTS)),
        mail.options(queue="other", priority=-32768).call(1),
        mail.options(max_attempts=32767).call(2),
        mail.options(headers={"trace": TEXTS[0], "\t": None}).call(3),
        mail.options(run_at=later).call(4),
        mail.options(run_at=datetime(1999, 1, 1, tzinfo=UTC)).call(5),
        mail.options(delay=timedelta(days=400, microseconds=7)).call(6),
        mail.options(delay=0).call(7),
        NewJob(task="by.name", payload='{\n\t"raw": "\\u00fc\\n"\r\n}'),
        NewJob(task="by.name", payload='"\\\\"', queue="mail", priority=120),
    ]


# The same jobs.


def test_both_ways_make_the_same_rows(
    hf: Holdfast,
    mail: AsyncTask[None],
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    copied: list[int],
) -> None:
    hf.policies.set("by.name", RetryPolicy(max_attempts=7))
    monkeypatch.setattr(pools, "SMALLEST_COPY", 1)
    stored = {}
    for name, few in {"copy": 1, "arrays": 10**9}.items():
        monkeypatch.setattr(copy_in, "SMALLEST_COPY", few)
        ids = [job.id for job in hf.enqueue_many(every_kind(mail))]
        # A delay is exact to the microsecond, but counts from the time of the call.
        stored[name] = ask(
            f"select {COLUMNS}, "
            "case when abs(extract(epoch from run_at - created_at) - 400 * 86400) < 9 then 'late' "
            "when abs(extract(epoch from run_at - created_at)) < 9 then 'now' "
            "else (run_at at time zone 'utc')::text end, "
            "clock_timestamp() - created_at between interval '0' and interval '1 minute' "
            "from unnest(%s::uuid[]) with ordinality u (id, n) join holdfast.job j using (id) order by u.n",
            ids,
        )
        assert ask("select array_agg(id order by seq) from holdfast.job where id = any(%s)", ids) == [(ids,)]
    assert copied == [len(every_kind(mail))]
    assert stored["copy"] == stored["arrays"]
    assert len(stored["copy"]) == len(every_kind(mail))
    assert {row[-2] for row in stored["copy"]} == {
        None, "late", "now", "1999-01-01 00:00:00", "2040-05-06 07:08:09.123456",
    }  # fmt: skip


@either_way
def test_texts_come_back_as_they_were(hf: Holdfast, mail: AsyncTask[None], way: str, ask: Ask) -> None:
    texts = [*TEXTS, *("".join(map(chr, [*range(1, 0xD800, 97), 0xFFFD, 0x10FFFF])) for _ in range(2))]
    jobs = hf.enqueue_many(mail.call(n, text=text, more={"k": text}) for n, text in enumerate(texts))
    payloads = [hf.job(job.id).refresh().payload for job in jobs]
    assert [payload["text"] for payload in payloads] == texts
    assert [payload["more"]["k"] for payload in payloads] == texts


def test_a_delay_counts_from_the_databases_time(
    hf: Holdfast, mail: AsyncTask[None], clock: Clock, ask: Ask, copied: list[int]
) -> None:
    clock.advance(days=1000)
    hf.enqueue_many(mail.options(delay=60).call(n) for n in range(AMOUNT))
    ((least, most),) = ask(
        "select min(run_at - created_at), max(run_at - created_at) from holdfast.job "
        "where state = 'scheduled'"
    )
    assert timedelta(seconds=50) < least <= most <= timedelta(seconds=60)
    assert copied == [AMOUNT]


def test_ids_are_unique_in_order_and_of_version_7(
    hf: Holdfast, mail: AsyncTask[None], ask: Ask, copied: list[int]
) -> None:
    jobs = hf.enqueue_many(mail.call(n) for n in range(2 * BATCH_SIZE + 5))
    ids = [job.id for job in jobs]
    assert copied == [BATCH_SIZE, BATCH_SIZE, 5]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    assert {(UUID(str(each)).version, each.variant) for each in ids} == {(7, "specified in RFC 4122")}
    ((now,),) = ask("select extract(epoch from clock_timestamp())::float8")
    assert all(abs((each.int >> 80) / 1000 - now) < 60 for each in (ids[0], ids[-1]))
    assert ask("select array_agg(id order by seq) from holdfast.job") == [(ids,)]


def _enqueue_many(dsn: str) -> None:
    with Holdfast(dsn) as hf:
        hf.enqueue_many(NewJob(task="t") for _ in range(2 * BATCH_SIZE))


def test_processes_that_fork_make_ids_of_their_own(hf: Holdfast, ask: Ask) -> None:
    hf.enqueue_many(NewJob(task="t") for _ in range(BATCH_SIZE))
    forked = [
        multiprocessing.get_context("fork").Process(target=_enqueue_many, args=(hf.dsn,)) for _ in range(3)
    ]
    for process in forked:
        process.start()
    for process in forked:
        process.join(30)
    assert [process.exitcode for process in forked] == [0, 0, 0]
    assert ask("select count(*) from holdfast.job") == [(7 * BATCH_SIZE,)]


# By whose leave, and when not.


def test_a_few_jobs_take_the_arrays(hf: Holdfast, mail: AsyncTask[None], copied: list[int]) -> None:
    few = copy_in.SMALLEST_COPY - 1
    assert len(hf.enqueue_many(mail.call(n) for n in range(few))) == few
    assert copied == []


def test_ids_of_the_callers_are_deduplicated_among_others(
    hf: Holdfast, mail: AsyncTask[None], ask: Ask, copied: list[int]
) -> None:
    chosen = uuid4()
    jobs = [mail.call(n) for n in range(3 * BATCH_SIZE)]
    jobs[BATCH_SIZE + 7] = mail.options(id=chosen).call(7)
    first = hf.enqueue_many(jobs)
    again = hf.enqueue_many(jobs)
    assert first[BATCH_SIZE + 7] == again[BATCH_SIZE + 7] == hf.job(chosen)
    assert ask("select count(*) from holdfast.job") == [(2 * 3 * BATCH_SIZE - 1,)]
    assert [amount for amount in copied if amount] == [BATCH_SIZE] * 4
    order = ask("select (payload->>'n')::int from holdfast.job order by seq limit %s", 3 * BATCH_SIZE)
    assert [n for (n,) in order] == [*range(BATCH_SIZE + 7), 7, *range(BATCH_SIZE + 8, 3 * BATCH_SIZE)]
    with pytest.raises(IdConflict):
        hf.enqueue_many([*(mail.call(n) for n in range(BATCH_SIZE)), mail.options(id=chosen).call(8)])
    assert ask("select count(*) from holdfast.job") == [(2 * 3 * BATCH_SIZE - 1,)]


@contextlib.contextmanager
def role(dsn: str, *grants: str) -> Iterator[str]:
    """The DSN of a role that may use the schema, with these grants."""
    name = f"producer_{uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {name} login")
        for grant in ("usage on schema holdfast", *grants):
            connection.execute(f"grant {grant} to {name}")
        try:
            yield make_conninfo(dsn, user=name)
        finally:
            connection.execute(f"drop owned by {name}")
            connection.execute(f"drop role {name}")


ARRAYS = "execute on function holdfast.enqueue_many"
PLACES = "execute on function holdfast.places"
INSERT = "insert (id, lane_id, task, payload, headers, max_attempts, run_at) on holdfast.job"
SEQUENCE = "usage on sequence holdfast.job_seq"


@pytest.mark.parametrize(
    ("grants", "copies"),
    [
        ((ARRAYS,), False),
        ((ARRAYS, PLACES), False),
        ((ARRAYS, PLACES, INSERT), False),
        ((ARRAYS, PLACES, INSERT.replace(", headers", ""), SEQUENCE), False),
        ((PLACES, INSERT, SEQUENCE), True),
    ],
)
def test_who_may_not_insert_takes_the_arrays(
    holdfast_dsn: str, ask: Ask, copied: list[int], grants: Any, copies: bool
) -> None:
    with role(holdfast_dsn, *grants) as dsn, Holdfast(dsn) as hf:
        jobs = hf.enqueue_many(NewJob(task="t", payload=f"{n}") for n in range(BATCH_SIZE + 1))
        assert ask("select array_agg(id order by seq) from holdfast.job") == [([job.id for job in jobs],)]
    assert bool(copied) is copies


def test_the_role_that_was_set_is_the_one_that_counts(
    holdfast_dsn: str, hf: Holdfast, ask: Ask, copied: list[int]
) -> None:
    """A superuser's session with a role that may only call the functions, and the other way round."""
    with role(holdfast_dsn, ARRAYS, PLACES) as dsn, psycopg.connect(holdfast_dsn) as connection:
        connection.execute(f"set role {psycopg.conninfo.conninfo_to_dict(dsn)['user']}")
        hf.on(connection).enqueue_many(NewJob(task="t") for _ in range(AMOUNT))
        assert copied == []
        connection.execute("reset role")
        hf.on(connection).enqueue_many(NewJob(task="t") for _ in range(AMOUNT))
        assert copied == [AMOUNT]
        connection.commit()
    assert ask("select count(*) from holdfast.job") == [(2 * AMOUNT,)]


def test_an_older_schema_that_knows_no_places_takes_the_arrays(
    hf: Holdfast, ask: Ask, copied: list[int]
) -> None:
    with hf.database.connection() as connection:
        connection.execute("drop function holdfast.places")
    hf.enqueue_many(NewJob(task="t") for _ in range(AMOUNT))
    assert copied == []
    assert ask("select count(*) from holdfast.job") == [(AMOUNT,)]


def test_a_database_without_holdfast_says_so(holdfast_server: str) -> None:
    with Holdfast(make_conninfo(holdfast_server, dbname="postgres")) as hf, pytest.raises(SchemaMissing):
        hf.enqueue_many(NewJob(task="t") for _ in range(AMOUNT))


def test_a_pipeline_of_the_callers_takes_the_arrays(
    holdfast_dsn: str, hf: Holdfast, ask: Ask, copied: list[int]
) -> None:
    with psycopg.connect(holdfast_dsn) as connection, connection.pipeline():
        hf.on(connection).enqueue_many(NewJob(task="t") for _ in range(AMOUNT))
    assert copied == []
    assert ask("select count(*) from holdfast.job") == [(AMOUNT,)]


def test_nothing_is_prepared_behind_a_pooler(holdfast_dsn: str, ask: Ask, copied: list[int]) -> None:
    with Holdfast(holdfast_dsn, transaction_pooling=True, pool_size=1) as hf:
        for _ in range(10):
            hf.enqueue_many(NewJob(task="t") for _ in range(AMOUNT))
            hf.enqueue("t")
        with hf.database.pooled_connection() as connection:
            assert connection.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
    assert copied == [AMOUNT] * 10
    assert ask("select count(*) from holdfast.job") == [(10 * AMOUNT + 10,)]


def test_a_caller_whose_session_is_set_up_oddly_is_served(
    holdfast_dsn: str, hf: Holdfast, mail: AsyncTask[None], ask: Ask, copied: list[int]
) -> None:
    later = datetime(2040, 5, 6, 7, 8, tzinfo=UTC)
    options = "-c datestyle=german -c timezone=Asia/Kathmandu -c intervalstyle=sql_standard"
    with psycopg.connect(holdfast_dsn, options=options, client_encoding="latin1") as connection:
        jobs = [mail.options(run_at=later, delay=None).call(1, text="é") for _ in range(AMOUNT)]
        ids = [job.id for job in hf.on(connection).enqueue_many(jobs)]
        with pytest.raises(BadPayload):
            hf.on(connection).enqueue_many([mail.call(1, text="€")] * AMOUNT)
        connection.commit()  # what cannot be written was found before anything was sent
    assert copied == [AMOUNT, AMOUNT]
    assert ask("select count(*) from holdfast.job where run_at = %s and payload->>'text' = 'é'", later) == [
        (len(ids),)
    ]


# On the caller's own connection.


@pytest.mark.parametrize("through", ["connection", "cursor"])
@either_way
def test_the_callers_transaction_decides(
    holdfast_dsn: str,
    hf: Holdfast,
    mail: AsyncTask[None],
    counts: Counts,
    way: str,
    through: str,
) -> None:
    with psycopg.connect(holdfast_dsn) as connection:
        conn = connection if through == "connection" else connection.cursor()
        hf.on(conn).enqueue_many(mail.call(n) for n in range(AMOUNT))
        connection.rollback()
        hf.on(conn).enqueue_many(mail.call(n) for n in range(AMOUNT))
        assert counts() == {}
        connection.commit()
    assert counts() == {"pending": AMOUNT}


@pytest.mark.parametrize("autocommit", [True, False])
def test_an_async_connection_copies_too(
    holdfast_dsn: str,
    hf: Holdfast,
    mail: AsyncTask[None],
    counts: Counts,
    copied: list[int],
    autocommit: bool,
) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(holdfast_dsn, autocommit=autocommit) as connection:
            await hf.on(connection.cursor()).aenqueue_many(mail.call(n) for n in range(BATCH_SIZE + 1))
            await connection.commit()
        await hf.aenqueue_many(mail.call(n) for n in range(BATCH_SIZE + 1))
        await hf.aclose()

    asyncio.run(main())
    assert sum(copied) == 2 * BATCH_SIZE + 1  # the one job left over on the caller's goes through the arrays
    assert counts() == {"pending": 2 * BATCH_SIZE + 2}


@either_way
def test_whoever_makes_the_jobs_may_use_the_connection_meanwhile(
    holdfast_dsn: str, hf: Holdfast, mail: AsyncTask[None], counts: Counts, way: str
) -> None:
    with psycopg.connect(holdfast_dsn) as connection:

        def jobs() -> Iterator[NewJob]:
            for n in range(BATCH_SIZE + 50):
                if n % 100 == 0:
                    connection.execute("select 1")
                yield mail.call(n)

        hf.on(connection).enqueue_many(jobs())
    assert counts() == {"pending": BATCH_SIZE + 50}


# Streaming.


def test_a_generator_is_not_held_in_memory(hf: Holdfast, copied: list[int]) -> None:
    text = "x" * 2_000

    def jobs() -> Iterator[NewJob]:
        tracemalloc.start()
        for n in range(20 * BATCH_SIZE):
            yield NewJob(task="t", payload=f'"{n} {text}"')  # 40 MB in all
        held.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    held: list[int] = []
    hf.enqueue_many(jobs())
    assert sum(copied) == 20 * BATCH_SIZE
    assert held[0] < 15_000_000


def test_a_copy_ends_now_and_then(
    hf: Holdfast, mail: AsyncTask[None], monkeypatch: pytest.MonkeyPatch, counts: Counts
) -> None:
    monkeypatch.setattr(copy_in, "LARGEST_COPY", BATCH_SIZE)
    monkeypatch.setattr(copy_in, "BATCH_SIZE", 100)
    hf.enqueue_many(mail.call(n) for n in range(3 * BATCH_SIZE + 50))
    assert counts() == {"pending": 3 * BATCH_SIZE + 50}


def test_places_that_turn_up_on_the_way_are_found(
    hf: Holdfast, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_in, "MAX_KNOWN_LANES", 5)
    jobs = [
        NewJob(task=f"t{n // 300}", queue=f"q{n // 700}", priority=n // 450, payload=f"{n}")
        for n in range(5 * BATCH_SIZE)
    ]
    hf.enqueue_many(jobs)
    rows = ask(
        "select j.task, l.queue, l.priority, j.payload::text from holdfast.job j "
        "join holdfast.lane l on l.id = j.lane_id order by j.seq"
    )
    assert rows == [(job.task, job.queue, job.priority, job.payload) for job in jobs]


# Refused: the same errors, and nothing stored.

WRONG = [
    (NewJob(task="t", payload='"' + "x" * 300_000 + '"'), PayloadTooLarge),
    (NewJob(task="Two Words"), BadName),
    (NewJob(task="t", queue="x" * 101), BadName),
    (NewJob(task="t", priority=40_000), BadValue),
    (NewJob(task="t", max_attempts=0), BadValue),
    (NewJob(task="t", delay=timedelta(seconds=-1)), BadValue),
    (NewJob(task="t", delay=timedelta(days=40_000)), BadValue),
    (NewJob(task="t", run_at=datetime(2300, 1, 1, tzinfo=UTC)), BadValue),
    (NewJob(task="t", run_at=datetime(2030, 1, 1, tzinfo=UTC), delay=timedelta(1)), BadValue),
    (NewJob(task="t", payload='"\\u0000"'), BadPayload),
    (NewJob(task="t", payload='"\0"'), BadPayload),
    (NewJob(task="t", payload='"\ud800"'), BadPayload),
    (NewJob(task="t", payload='"\\ud800"'), BadPayload),
    (NewJob(task="t", payload="1e400000"), BadPayload),
    (NewJob(task="t", payload="{hunter2"), BadPayload),
    (NewJob(task="t", payload=""), BadPayload),
    (NewJob(task="t", payload="\\N"), BadPayload),
    (NewJob(task="t", headers="{hunter2"), BadPayload),
]


@either_way
def test_what_is_wrong_is_refused_alike(hf: Holdfast, holdfast_dsn: str, way: str, counts: Counts) -> None:
    right = [NewJob(task="right")] * 10
    for wrong, error in WRONG:
        with pytest.raises(error) as refusal:
            hf.enqueue_many([*right, wrong, *right])
        assert "hunter2" not in str(refusal.value.__cause__ or "") or way == "arrays"
        with psycopg.connect(holdfast_dsn) as connection, pytest.raises(error):
            hf.on(connection).enqueue_many([*right, wrong])
        with pytest.raises(error):
            asyncio.run(_aenqueue_many(hf, [*right, wrong]))
    assert counts() == {}


async def _aenqueue_many(hf: Holdfast, jobs: list[NewJob]) -> None:
    await hf.aenqueue_many(jobs)


@either_way
def test_too_large_names_the_limit(hf: Holdfast, way: str) -> None:
    with pytest.raises(PayloadTooLarge) as refusal:
        hf.enqueue_many([NewJob(task="t"), NewJob(task="t", payload='"' + "x" * 300_000 + '"')])
    assert (refusal.value.size, refusal.value.limit) == (300_002, 262_144)


@either_way
def test_an_error_of_whoever_makes_the_jobs_is_theirs(
    hf: Holdfast, mail: AsyncTask[None], way: str, counts: Counts
) -> None:
    def jobs() -> Iterator[NewJob]:
        yield from (mail.call(n) for n in range(BATCH_SIZE + 10))
        raise LookupError("nothing more")

    with pytest.raises(LookupError, match="nothing more"):
        hf.enqueue_many(jobs())
    hf.enqueue("after")
    assert counts() == {"pending": 1}


def test_a_copy_does_not_wait_for_jobs_that_take_their_time(
    hf: Holdfast, mail: AsyncTask[None], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one statement, and a server may allow a statement only so long."""
    monkeypatch.setattr(copy_in, "SLOW_BATCH_SECONDS", -1)
    ((database,),) = ask("select current_database()")
    copies: list[tuple[Any, ...]] = []

    def jobs() -> Iterator[NewJob]:
        for n in range(3 * BATCH_SIZE):
            if n % BATCH_SIZE == 0:
                copies.extend(
                    ask(
                        "select query from pg_stat_activity where datname = %s and state = 'active' "
                        "and query like 'copy%%'",
                        database,
                    )
                )
            yield mail.call(n)

    ids = [job.id for job in hf.enqueue_many(jobs())]
    assert copies == []
    assert ids == sorted(ids)
    assert ask("select array_agg(id order by seq) from holdfast.job") == [(ids,)]

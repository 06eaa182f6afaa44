"""What the database cannot store costs an attempt; never a job, and never its neighbours."""

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast import Holdfast, JobState, Retry, Secret
from holdfast.operations.jobs import AttemptError
from holdfast.task import Task
from holdfast.worker import finisher
from tests.fixtures import Counts, Drain, StartWorker, Until
from tests.waiting import Told

Failed = Callable[..., AttemptError]


@pytest.fixture
def failed(hf: Holdfast, drain: Drain) -> Failed:
    """Run a handler that fails; the one error that was kept."""

    def failed(handler: Callable[..., Any], **arguments: Any) -> AttemptError:
        job = hf.task(name="the.task")(handler).enqueue(**arguments)
        drain()
        assert job.refresh().state is JobState.SCHEDULED
        (kept,) = job.errors()
        return kept

    return failed


def test_a_result_that_is_not_json_fails_the_attempt_by_name(hf: Holdfast, drain: Drain) -> None:
    wrong = [
        (object(), "object cannot be JSON"),
        ({"deep": [{"down": "a\0b"}]}, "result.deep[0].down: PostgreSQL cannot store a NUL character"),
        ("\ud800", "a lone surrogate is not valid text"),
        (float("nan"), "JSON has no nan"),
    ]

    @hf.task(name="the.task")
    async def handler(number: int) -> Any:
        return wrong[number][0]

    jobs = [handler.enqueue(number) for number in range(len(wrong))]
    drain()
    for job, (_, reason) in zip(jobs, wrong, strict=True):
        assert job.refresh().state is JobState.SCHEDULED
        (kept,) = job.errors()
        assert kept.error.startswith("BadResult: the.task: the handler's result cannot be stored")
        assert reason in kept.error


def test_a_result_that_contains_itself_fails_the_attempt(failed: Failed) -> None:
    async def handler() -> list[Any]:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    assert failed(handler).error.startswith("BadResult")


def test_a_result_that_is_too_large_fails_the_attempt(
    failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.task.RESULT_LIMIT", 1000)

    async def handler() -> str:
        return "x" * 999

    assert "the handler's result has 1,001 characters of JSON" in failed(handler).error


def test_odd_bytes_in_an_error_are_cleaned_and_kept(failed: Failed) -> None:
    async def handler() -> None:
        raise ValueError("a\0b \ud800 ü €")

    kept = failed(handler)
    assert kept.error == "ValueError: a\\0b \\ud800 ü €"
    assert "a\\0b \\ud800 ü €" in (kept.traceback or "")


def test_an_error_of_ten_megabytes_is_cut(failed: Failed) -> None:
    async def handler() -> None:
        raise ValueError("x" * 10_000_000)

    kept = failed(handler)
    assert len(kept.error) == 5_000
    assert kept.error.endswith("…")
    assert kept.traceback
    assert len(kept.traceback) < 10_100
    assert "in handler" in (kept.traceback or "")


def test_an_exception_that_cannot_be_told_is_kept_by_its_name(failed: Failed) -> None:
    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise RecursionError

    async def handler() -> None:
        raise SpeechlessError

    assert failed(handler).error == "SpeechlessError: (its text could not be read: RecursionError)"


def test_an_exception_whose_text_is_no_text_is_kept(failed: Failed) -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            return 42  # type: ignore[return-value] # noqa: PLE0307 - on purpose

    async def handler() -> None:
        raise OddError

    assert failed(handler).error.startswith("OddError")


def test_arguments_that_were_tangled_up_do_not_hide_the_error(failed: Failed) -> None:
    async def handler(tree: dict[str, object]) -> None:
        tree["self"] = tree
        raise ValueError("too deep")

    assert failed(handler, tree={}).error == "ValueError: too deep"


def test_secrets_are_masked_in_errors_and_tracebacks(failed: Failed) -> None:
    async def handler(password: Secret[str], tokens: list[Secret[str]]) -> None:
        plain = password.reveal()
        password = None  # type: ignore[assignment] # what the handler does to its own variables hides nothing
        tokens_were = [token.reveal() for token in tokens]
        tokens.clear()
        raise ValueError(f"cannot log in with {plain} or {tokens_were[0]!r}")

    kept = failed(handler, password="hunter2!", tokens=[Secret("tok-12345")])
    assert kept.error == "ValueError: cannot log in with ***** or '*****'"
    assert kept.traceback
    assert "hunter2!" not in kept.traceback
    assert "tok-12345" not in kept.traceback


def test_secrets_are_masked_in_what_a_handler_says_itself(hf: Holdfast, drain: Drain) -> None:
    @hf.task(name="log.in")
    async def log_in(password: Secret[str]) -> Retry:
        return Retry(after=60, error=f"{password.reveal()} was refused")

    job = log_in.enqueue(password="hunter2!")  # type: ignore[call-overload]
    drain()
    assert job.refresh().last_error == "***** was refused"


def test_secrets_are_masked_where_the_arguments_do_not_fit(hf: Holdfast, drain: Drain) -> None:
    class Strict:
        @classmethod
        def model_validate(cls, value: Any) -> None:
            raise ValueError(f"{value!r} is not good")

    @hf.task(name="strict")
    async def strict(key: Secret[str], other: Strict) -> None: ...

    job = hf.enqueue("strict", {"key": {"$secret": "hunter2!"}, "other": {"copied": "hunter2!"}})
    drain()
    (kept,) = job.errors()
    assert kept.error.startswith("BadArguments")
    assert kept.traceback
    assert "hunter2!" not in kept.error + kept.traceback


@pytest.fixture
def raw_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let handlers return JSON text as it is, past every check of ours."""
    monkeypatch.setattr(Task, "encode_result", lambda _, value: value)


def test_one_value_that_the_database_refuses_fails_alone(
    hf: Holdfast, drain: Drain, raw_results: None, counts: Counts
) -> None:
    bad = ["1e400000", "{not json", '"\\u0000"', "\ud800", "a\0b"]

    @hf.task(name="raw")
    async def raw(number: int) -> str:
        return bad[number // 20] if number % 20 == 10 else "1"

    jobs = hf.enqueue_many(raw.call(number) for number in range(100))
    drain()
    assert counts() == {"completed": 95, "scheduled": 5}
    assert {job.refresh().attempt for job in jobs} == {1}
    for culprit in jobs[10::20]:
        assert culprit.errors()[0].error.startswith("BadResult: the outcome cannot be stored")


def test_a_report_that_cannot_be_written_does_not_hold_up_the_others(
    hf: Holdfast, work: StartWorker, told: Told, until: Until, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finisher, "LONGEST_PAUSE", 0.1)
    with hf.database.connection() as connection:
        connection.execute(
            "create function public.oops() returns trigger language plpgsql as "
            "$$ begin raise exception 'not this one'; end $$"
        )
        partitions = connection.execute(
            "select inhrelid::regclass::text from pg_inherits where inhparent = 'holdfast.finished'::regclass"
        ).fetchall()
        for (partition,) in partitions:
            connection.execute(
                f"create trigger oops before insert on {partition} "
                "for each row when (new.task = 'bad') execute function public.oops()"
            )

        @hf.task(name="good")
        async def good() -> None: ...

        @hf.task(name="bad")
        async def bad() -> None: ...

        work()
        hf.enqueue_many([good.call(), bad.call(), good.call(), good.call()])
        told.wait_for("finisher.broken", 4)
        until(lambda: counts().get("completed") == 3)
        for (partition,) in partitions:
            connection.execute(f"drop trigger oops on {partition}")
        until(lambda: counts() == {"completed": 4})


def test_a_report_on_a_job_that_somebody_has_locked_does_not_hold_up_the_others(
    hf: Holdfast, work: StartWorker, until: Until, counts: Counts, holdfast_dsn: str
) -> None:
    """An operator has called it off, and not yet committed."""
    gate = threading.Event()

    @hf.task(name="held")
    def held() -> None:
        gate.wait()

    @hf.task(name="free")
    async def free() -> None: ...

    job = held.enqueue()
    worker = work()
    until(lambda: job.refresh().state is JobState.RUNNING)
    with psycopg.connect(holdfast_dsn) as operator:
        operator.execute("select holdfast.cancel(%s)", [job.id])
        gate.set()
        hf.enqueue_many(free.call() for _ in range(20))
        until(lambda: counts() == {"completed": 20, "running": 1})
        free.enqueue()
        until(lambda: counts() == {"completed": 21, "running": 1})
        worker.stop()  # it waits until that one is written, too
        operator.commit()
    worker.wait()
    assert counts() == {"completed": 22}


def test_raw_json_is_stored_as_it_is(hf: Holdfast, drain: Drain) -> None:
    @hf.task(name="raw")
    async def raw() -> msgspec.Raw:
        return msgspec.Raw(b'{"a": 1}')

    job = raw.enqueue()
    drain()
    assert job.refresh().result == {"a": 1}

"""A task is its function under a name, and its calls become jobs with checked options."""

import asyncio
import copy
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import NewJob
from holdfast.task import Registry, Task, named_job
from holdfast.values.errors import (
    BadArguments,
    BadName,
    BadPayload,
    BadResult,
    BadValue,
    HoldfastError,
    UnknownMethod,
    UnknownOption,
    UnknownTask,
)
from holdfast.values.job import Cancel, Priority, Retry
from holdfast.values.retry import RetryPolicy
from holdfast.worker.context import Context


@dataclass
class Receipt:
    number: int
    day: date


def send(user_id: int, template: str = "plain") -> Receipt | Retry | None:
    """Send a mail."""
    return Receipt(user_id, date(2024, 2, 29)) if template == "plain" else None


async def asend(user_id: int) -> str:
    return f"sent {user_id}"


def declared(function: Callable[..., Any], **options: Any) -> Task[..., Any]:
    """Make a task with any options, wrong ones too."""
    return Task(function, **options)


class Client:
    connection: str | None = None

    def __init__(self) -> None:
        self.sent: list[tuple[NewJob, str | None]] = []

    def enqueue(self, new_job: NewJob) -> Any:
        self.sent.append((new_job, self.connection))
        return "a handle"

    async def aenqueue(self, new_job: NewJob) -> Any:
        return self.enqueue(new_job)

    def on(self, conn: Any) -> Any:
        bound = copy.copy(self)
        bound.connection = conn
        return bound


# The function


def test_a_task_is_still_its_function() -> None:
    task = declared(send)
    assert task(7) == Receipt(7, date(2024, 2, 29))
    assert asyncio.run(declared(asend)(user_id=7)) == "sent 7"
    assert (task.__doc__, task.__name__) == ("Send a mail.", "send")  # type: ignore[attr-defined]
    assert list(inspect.signature(task).parameters) == ["user_id", "template"]


def test_a_task_knows_whether_it_is_async() -> None:
    assert declared(asend).is_async
    assert not declared(send).is_async


def test_a_generator_is_refused_when_declared() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def anumbers() -> AsyncIterator[int]:
        yield 1

    for function in (numbers, anumbers):
        with pytest.raises(BadValue, match="is a generator"):
            declared(function)


# Names


def test_a_name_is_made_of_module_and_function() -> None:
    def Nested() -> None:  # noqa: N802 - the capital is the point
        pass

    assert declared(send).name == "tests.test_task_declaration.send"
    assert declared(Nested).name.endswith(".test_a_name_is_made_of_module_and_function.nested")
    assert declared(send, name="mail:send-1").name == "mail:send-1"


def test_a_name_that_cannot_be_made_is_asked_for() -> None:
    with pytest.raises(BadName, match="Give one with name=") as caught:
        declared(lambda: None)
    assert caught.value.field == "task"


@pytest.mark.parametrize("name", ["", "Mail", "mail send", "möbel", "a" * 101, "mail\n", 7])
def test_a_name_that_breaks_the_rules_is_refused(name: str | int) -> None:
    with pytest.raises(BadName, match="is not a valid name") as caught:
        declared(send, name=name)
    assert (caught.value.field, caught.value.value) == ("task", name)


@pytest.mark.parametrize(
    ("main", "module"),
    [
        ({"__spec__": None, "__file__": "/srv/shop.py"}, "shop"),
        ({"__spec__": SimpleNamespace(name="shop.tasks")}, "shop.tasks"),
        ({"__spec__": SimpleNamespace(name="shop.__main__")}, "shop"),
        ({"__spec__": None}, "__main__"),
    ],
)
def test_a_script_names_its_tasks_as_a_worker_would_import_them(
    monkeypatch: pytest.MonkeyPatch, main: dict[str, Any], module: str
) -> None:
    def job() -> None: ...

    job.__module__, job.__qualname__ = "__main__", "job"
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(**main))
    assert declared(job).name == f"{module}.job"


# Options of the task


def test_a_call_takes_the_options_of_its_task() -> None:
    policy = RetryPolicy(max_attempts=7)
    task = declared(
        send, name="mail.send", queue="mail", priority=Priority.USER, retry=policy, delay=60, timeout=1.5
    )
    job = task.call(7)
    assert (job.task, job.payload, job.queue) == ("mail.send", '{"user_id":7}', "mail")
    assert (job.priority, type(job.priority)) == (150, int)
    assert job.delay == timedelta(minutes=1)
    # The policy's attempts are the database's to say: an operator may have changed them.
    assert job.max_attempts is None
    assert task.settings.timeout == timedelta(seconds=1.5)
    assert declared(send, max_attempts=2, retry=policy).call(7).max_attempts == 2


def test_a_task_without_options_leaves_the_attempts_to_the_database() -> None:
    job = declared(send).call(7)
    assert (job.queue, job.priority, job.max_attempts, job.delay) == ("default", 100, None, None)


def test_an_unknown_option_of_a_task_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        UnknownOption, match=r"task mail.send has no option 'prioritty'\. Did you mean 'priority'"
    ):
        declared(send, name="mail.send", prioritty=3)
    with pytest.raises(UnknownOption, match="Did you mean 'name'"):
        declared(send, naem="mail.send")


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("queue", "Mail", BadName), ("queue", "", BadName), ("queue", 7, BadName),
        ("priority", 32768, BadValue), ("priority", -32769, BadValue), ("priority", 1.5, BadValue),
        ("priority", "high", BadValue), ("priority", True, BadValue),
        pytest.param("priority", 10**5000, BadValue, id="huge priority"),
        pytest.param("delay", 10**5000, BadValue, id="huge delay"),
        ("max_attempts", 0, BadValue), ("max_attempts", 32768, BadValue), ("max_attempts", "3", BadValue),
        ("timeout", 0, BadValue), ("timeout", -1, BadValue), ("timeout", "1 min", BadValue),
        ("delay", -1, BadValue), ("delay", timedelta(days=40_000), BadValue),
        ("retry", 3, BadValue), ("retry", {"base": 1}, BadValue),
    ],
)  # fmt: skip
def test_an_option_outside_its_limits_is_refused_by_name(
    option: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        declared(send, **{option: value})
    refusal: Any = caught.value
    assert (refusal.field, refusal.value) == (option, value)
    assert option in str(caught.value)


# Options of a call


def test_the_options_of_a_call_win_over_those_of_its_task() -> None:
    task = declared(send, queue="mail", priority=10, delay=60, max_attempts=3)
    job_id, at = uuid4(), datetime.now(UTC) + timedelta(days=1)
    job = task.options(
        queue="slow", priority=0, run_at=at, max_attempts=9, id=job_id, headers={"trace": "x"}
    ).call(7)
    assert (job.queue, job.priority, job.run_at, job.delay) == ("slow", 0, at, None)
    assert (job.max_attempts, job.id, job.headers) == (9, job_id, '{"trace":"x"}')
    assert task.call(7).queue == "mail"


def test_later_options_win_over_earlier_ones_and_none_leaves_them() -> None:
    at = datetime.now(UTC)
    task = declared(send).options(delay=60, priority=1, id=str(UUID(int=1)))
    job = task.options(run_at=at, priority=None).call(7)
    assert (job.run_at, job.delay, job.priority, job.id) == (at, None, 1, UUID(int=1))


@pytest.mark.parametrize(
    ("options", "field", "rule"),
    [
        ({"run_at": datetime(2030, 1, 1)}, "run_at", "must have a time zone"),  # noqa: DTZ001
        ({"run_at": datetime(9999, 1, 1, tzinfo=UTC)}, "run_at", "within the next 100 years"),
        ({"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))}, "run_at", "100 years"),
        ({"run_at": "2030-01-01"}, "run_at", "must be a datetime"),
        ({"run_at": date(2030, 1, 1)}, "run_at", "must be a datetime"),
        ({"delay": -0.1}, "delay", "from 0 to 100 years"),
        ({"delay": float("nan")}, "delay", "from 0 to 100 years"),
        ({"delay": 60, "run_at": datetime.now(UTC)}, "delay", "either run_at or delay, not both"),
        ({"priority": 40000}, "priority", "from -32768 to 32767"),
        ({"max_attempts": 0}, "max_attempts", "from 1 to 32767"),
        ({"id": "seven"}, "id", "must be a UUID"),
        ({"id": 7}, "id", "must be a UUID"),
        ({"headers": ["x"]}, "headers", "must be a mapping"),
        ({"headers": {1: "x"}}, "headers", "must be a mapping"),
    ],
)
def test_an_absurd_option_of_a_call_is_refused_by_name(
    options: dict[str, Any], field: str, rule: str
) -> None:
    with pytest.raises(BadValue, match=rule) as caught:
        declared(send).options(**options)
    assert caught.value.field == field


def test_a_time_in_the_past_is_only_late() -> None:
    at = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
    assert declared(send).options(run_at=at).call(7).run_at == at


def test_headers_that_cannot_be_stored_are_refused_with_their_place() -> None:
    with pytest.raises(BadPayload, match="NUL") as caught:
        declared(send).options(headers={"trace": "\0"})
    assert caught.value.path == "headers.trace"


def test_an_option_that_is_given_as_an_argument_is_sent_where_it_belongs() -> None:
    with pytest.raises(BadArguments) as caught:
        declared(send, name="mail.send").call(7, delay=60)
    assert str(caught.value) == (
        "mail.send: argument 'delay' does not exist. It is an option: send.options(delay=…).enqueue(…)."
    )
    with pytest.raises(BadArguments, match="Known: template, user_id"):
        declared(send, name="mail.send").decode('{"user_id": 7, "delay": 60}')


def test_an_argument_of_nearly_that_name_is_meant_rather_than_the_option() -> None:
    def sort(queues: list[str]) -> None: ...

    with pytest.raises(BadArguments, match="Did you mean 'queues'"):
        declared(sort, name="sort").call(queue=["mail"])


def test_an_unknown_option_of_a_call_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        UnknownOption, match=r"a call of mail\.send has no option 'dely'\. Did you mean 'delay'"
    ):
        declared(send, name="mail.send").options(dely=1)  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match="has no option 'timeout'"):
        declared(send).options(timeout=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("theirs", "of_a_task", "of_a_call"),
    [
        ("countdown", "Write delay=….", "Write delay=…."),
        ("eta", "It is an option of a call: task.options(run_at=…).", "Write run_at=…."),
        ("max_retries", *["Write max_attempts=…. The first run counts as an attempt."] * 2),
        ("autoretry_for", "Write retry_on=….", "It is an option of a task: @hf.task(retry_on=…)."),
        (
            "retry_backoff",
            "Write retry=RetryPolicy(…).",
            "It is an option of a task: @hf.task(retry=RetryPolicy(…)).",
        ),
        ("timeout", None, "It is an option of a task: @hf.task(timeout=…)."),
        ("run_at", "It is an option of a call: task.options(run_at=…).", None),
        ("expires", *["A waiting job does not expire. Cancel it with job.cancel()."] * 2),
    ],
)
def test_an_option_of_another_queue_is_answered_with_ours(
    theirs: str, of_a_task: str | None, of_a_call: str | None
) -> None:
    if of_a_task is not None:
        with pytest.raises(UnknownOption) as caught:
            declared(send, **{theirs: 1})
        assert caught.value.hint == of_a_task
    if of_a_call is not None:
        with pytest.raises(UnknownOption) as caught:
            declared(send).options(**{theirs: 1})  # type: ignore[arg-type]
        assert caught.value.hint == of_a_call


def test_an_option_of_another_queue_given_as_an_argument_is_answered_with_ours() -> None:
    with pytest.raises(BadArguments, match=r"It is an option: send\.options\(delay=…\)\.enqueue"):
        declared(send).call(7, countdown=60)
    with pytest.raises(BadArguments, match="Known: template, user_id"):
        declared(send).call(7, autoretry_for=ValueError)


# Enqueueing


def test_enqueue_hands_the_job_and_the_connection_to_the_client() -> None:
    client = Client()
    task = declared(send, enqueuer=client)
    assert task.enqueue(7) == "a handle"
    assert asyncio.run(task.on("my connection").aenqueue(user_id=8)) == "a handle"
    assert [(job.payload, conn) for job, conn in client.sent] == [
        ('{"user_id":7}', None),
        ('{"user_id":8}', "my connection"),
    ]


def test_a_task_that_belongs_to_nobody_says_so() -> None:
    with pytest.raises(HoldfastError, match=r"belongs to no Holdfast\. Declare it with @hf\.task"):
        declared(send).enqueue(7)


def test_a_job_may_be_named_without_knowing_its_task() -> None:
    job = named_job("mail.send", {"user_id": 7}, queue="mail")
    assert (job.task, job.payload, job.queue) == ("mail.send", '{"user_id":7}', "mail")
    assert named_job("mail.send").payload == "{}"
    assert named_job("mail.send", None).payload == "null"
    with pytest.raises(BadName):
        named_job("Mail Send")
    with pytest.raises(BadPayload, match="NUL") as caught:
        named_job("mail.send", {"a": ["\0"]})
    assert (caught.value.task, caught.value.path) == ("mail.send", "payload.a[0]")


# Results


def test_a_result_travels_as_json_and_comes_back_as_declared() -> None:
    task = declared(send)
    text = task.encode_result(Receipt(7, date(2024, 2, 29)))
    assert text == '{"number":7,"day":"2024-02-29"}'
    assert task.decode_result({"number": 7, "day": "2024-02-29"}) == Receipt(7, date(2024, 2, 29))


def test_no_result_is_nothing() -> None:
    assert declared(send).encode_result(None) is None
    assert declared(send).decode_result(None) is None


def test_a_result_is_not_held_to_its_annotation() -> None:
    def silent() -> None: ...
    def unclear() -> date | datetime: ...  # type: ignore[empty-body]
    def unresolved() -> "Missing": ...  # type: ignore[name-defined] # noqa: F821
    def only_outcomes() -> Retry | Cancel: ...  # type: ignore[empty-body]

    for function in (send, silent, unclear, unresolved, only_outcomes):
        assert declared(function, name="t").decode_result(["other"]) == ["other"]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "result"), ({"a": [lambda: None]}, "result.a[0]"), ("a\0", "result"),
        ({"a": "\ud800"}, "result.a"), ([float("nan")], "result[0]"),
        pytest.param(10**5000, "result", id="huge"),
    ],
)  # fmt: skip
def test_a_result_that_cannot_be_stored_is_a_named_error(value: Any, path: str) -> None:
    with pytest.raises(BadResult, match="the handler's result cannot be stored") as caught:
        declared(send, name="mail.send").encode_result(value)
    assert (caught.value.task, caught.value.path) == ("mail.send", path)


# The registry


def test_a_registry_finds_tasks_by_name() -> None:
    registry, task = Registry(), declared(send, name="mail.send")
    registry.register(task)
    registry.register(task)
    assert registry.get("mail.send") is task
    assert (registry.names(), list(registry), len(registry)) == (["mail.send"], [task], 1)
    assert "mail.send" in registry
    assert "other" not in registry


def test_two_tasks_of_one_name_are_refused_with_the_place_of_the_first() -> None:
    registry = Registry()
    registry.register(declared(send, name="mail.send"))
    with pytest.raises(BadName, match=r"'mail.send' is already declared in .*test_task_declaration.py:\d+"):
        registry.register(declared(asend, name="mail.send"))


def test_an_unknown_task_is_refused_with_a_suggestion() -> None:
    registry = Registry()
    registry.register(declared(send, name="mail.send"))
    with pytest.raises(UnknownTask, match=r"Did you mean 'mail\.send'") as caught:
        registry.get("mail.sent")
    assert (caught.value.name, caught.value.suggestion) == ("mail.sent", "mail.send")


def test_a_call_for_later_refuses_a_connection_rather_than_dropping_it() -> None:
    with pytest.raises(BadValue, match=r"conn.*has no connection.*enqueue_many"):
        declared(send, enqueuer=Client()).on("mine").call(7)


def test_a_connection_among_the_options_is_answered_with_on() -> None:
    with pytest.raises(
        UnknownOption, match=r"has no option 'conn'\. Give the connection once: task\.on\(conn\)"
    ):
        declared(send).options(conn="mine")  # type: ignore[call-arg]


def test_a_handler_with_two_contexts_is_refused() -> None:
    def mail(ctx: Context, user_id: int, more: Context) -> None: ...

    with pytest.raises(BadArguments, match="argument 'more' is a second Context beside 'ctx'"):
        declared(mail, name="mail").call(7, None)


def test_the_methods_of_other_queues_are_answered_with_ours() -> None:
    def welcome(user_id: int, ctx: Context, greeting: str = "hello") -> None: ...

    task = declared(welcome, name="mail.welcome")
    for method, line in {
        "delay": "Write welcome.enqueue(user_id=…).",
        "apply_async": "Write welcome.enqueue(user_id=…).",
        "send": "Write welcome.enqueue(user_id=…).",
        "defer": "Write welcome.enqueue(user_id=…).",
        "kiq": "Write await welcome.aenqueue(user_id=…).",
        "defer_async": "Write await welcome.aenqueue(user_id=…).",
        "enqueue_in": "Write welcome.options(delay=60).enqueue(user_id=…).",
        "enqueue_at": "Write welcome.options(run_at=…).enqueue(user_id=…).",
        "send_with_options": 'Write welcome.options(queue="…").enqueue(user_id=…).',
        "s": "Write welcome.call(user_id=…), for hf.enqueue_many([…]).",
    }.items():
        with pytest.raises(UnknownMethod, match="has no method") as refusal:
            getattr(task, method)
        assert refusal.value.hint == line
        assert isinstance(refusal.value, AttributeError)
    assert not hasattr(task, "delay")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        task.nonsense  # type: ignore[attr-defined] # noqa: B018
    assert copy.copy(task).name == "mail.welcome"


@pytest.mark.parametrize("delay", [-5, timedelta(days=-1)])
def test_a_negative_duration_is_called_negative(delay: int | timedelta) -> None:
    with pytest.raises(BadValue, match="this one is negative"):
        named_job("mail.welcome", delay=delay)
    with pytest.raises(BadValue, match=r"100 years$"):
        named_job("mail.welcome", delay=float("nan"))

"""Looking at jobs: tables for people, lines for pipes, JSON for programs; never a secret."""

import json
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Cancel, Context, Holdfast, Secret
from holdfast.testing import Clock
from tests.cli.programs import Command, on_terminal, plain
from tests.fixtures import Ask, Drain


def test_jobs_are_listed_with_those_that_changed_last_first(holdfast: Command, hf: Holdfast) -> None:
    first, second = hf.enqueue("a", queue="mail"), hf.enqueue("b", priority=150)
    answer = holdfast("jobs")
    assert answer.code == 0
    assert answer.out.split("\n")[0].split() == [
        *("ID", "TASK", "QUEUE", "STATE"),
        *("PRIORITY", "ATTEMPT", "CHANGED_AT", "NOTE"),
    ]
    (id_2, *two), (id_1, *one) = answer.rows
    assert (id_2, id_1) == (str(second.id), str(first.id))
    assert two[:5] == ["b", "default", "pending", "150", "0/3"]
    assert one[:3] == ["a", "mail", "pending"]
    assert datetime.fromisoformat(one[5]).utcoffset() is not None


def test_jobs_can_be_narrowed_down(holdfast: Command, hf: Holdfast) -> None:
    hf.enqueue("a", queue="mail")
    hf.enqueue("b", delay=60)
    hf.enqueue("b")

    def tasks(*arguments: str) -> list[str]:
        return [job["task"] for job in holdfast("jobs", *arguments, "--json").json]

    assert tasks("--queue", "mail") == ["a"]
    assert tasks("--task", "b") == ["b", "b"]
    assert tasks("--state", "scheduled") == ["b"]
    assert tasks("--limit", "2") == ["b", "b"]
    assert tasks("--queue", "nowhere") == []
    assert holdfast("jobs", "--state", "gone").code == 2
    assert holdfast("jobs", "--limit", "0").code == 2


def test_json_is_one_document_wherever_the_option_stands(holdfast: Command, hf: Holdfast) -> None:
    job = hf.enqueue("a", {"x": [1, "é"]}, delay=60, headers={"trace": "t"})
    before, after = holdfast("--json", "jobs"), holdfast("jobs", "--json")
    assert before.out == after.out
    (document,) = after.json
    assert document["id"] == str(job.id)
    assert document["payload"] == {"x": [1, "é"]}
    assert document["headers"] == {"trace": "t"}
    assert (document["state"], document["attempt"], document["worker"]) == ("scheduled", 0, None)
    created, due = (datetime.fromisoformat(document[name]) for name in ("created_at", "run_at"))
    assert (due - created).total_seconds() == 60
    assert document["run_at"].endswith("Z")


def test_a_job_is_shown_with_the_error_of_each_attempt(
    holdfast: Command, hf: Holdfast, drain: Drain, clock: Clock
) -> None:
    @hf.task(name="flaky", max_attempts=2)
    async def flaky(ctx: Context) -> None:
        raise ValueError(f"no {ctx.attempt}")

    job = flaky.enqueue()
    drain()
    clock.advance(minutes=5)
    drain()
    answer = holdfast("job", str(job.id))
    assert answer.code == 0
    for line in (f"id        {job.id}", "state     dead", "attempt   2 of 2", "payload   {}"):
        assert line in answer.out.splitlines()
    assert [line for line in answer.out.splitlines() if line.startswith("  ValueError")] == [
        *("  ValueError: no 1", "  ValueError: no 2"),
        "  ValueError: no 2",  # the end of the last traceback
    ]
    assert answer.out.count("Traceback") == 1
    assert holdfast("job", str(job.id), "--tracebacks").out.count("Traceback") == 2
    document = holdfast("job", str(job.id), "--json").json
    assert [(error["attempt"], error["error"]) for error in document["errors"]] == [
        (1, "ValueError: no 1"),
        (2, "ValueError: no 2"),
    ]


def test_a_completed_job_is_shown_with_its_result(holdfast: Command, hf: Holdfast, drain: Drain) -> None:
    @hf.task(name="add")
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    job = add.enqueue(2, 3)
    drain()
    answer = holdfast("job", str(job.id))
    assert 'payload   {"a": 2, "b": 3}' in answer.out
    assert 'result    {"sum": 5}' in answer.out
    assert "took      " in answer.out
    assert holdfast("jobs").rows[0][7] == "took"
    document = holdfast("job", str(job.id), "--json").json
    assert (document["result"], document["errors"]) == ({"sum": 5}, [])
    assert 0 <= document["duration"] < 10


def test_an_unknown_job_is_an_error(holdfast: Command) -> None:
    unknown = uuid4()
    answer = holdfast("job", str(unknown))
    said, hint = answer.err.splitlines()
    assert (answer.code, answer.out, said) == (1, "", f"Error: there is no job {unknown}")
    assert hint.startswith("Hint: Check the id")


@pytest.mark.parametrize("arguments", [["jobs"], ["job"]])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_secret_is_masked_wherever_it_would_be_shown(
    holdfast: Command, hf: Holdfast, drain: Drain, arguments: list[str], form: list[Any]
) -> None:
    @hf.task(name="charge", max_attempts=1)
    async def charge(card: Secret[str], amount: int) -> None:
        raise RuntimeError(f"card {card.reveal()} was refused")

    job = charge.enqueue(card="4111-1111", amount=5)  # type: ignore[call-overload]
    drain()
    # Reported from elsewhere, by whoever did not know that it is one.
    hf.enqueue("charge", {"card": {"$secret": "4111-1111"}})
    if arguments == ["job"]:
        arguments = ["job", str(job.id)]
    answer = holdfast(*arguments, *form)
    assert answer.code == 0
    assert "4111" not in answer.out
    assert "*****" in answer.out
    assert "card ***** was refused" in answer.out


def test_nothing_that_a_job_says_can_command_the_terminal(
    holdfast: Command, hf: Holdfast, holdfast_dsn: str, drain: Drain
) -> None:
    @hf.task(name="evil", max_attempts=1)
    async def evil(text: str) -> None:
        raise RuntimeError(f"{text} [bold]x[/bold] :smile:\r\nsecond \x9b31m line")

    job = evil.enqueue("\x1b]0;title\x07\x1b[2J")
    drain()
    pages = [
        *(holdfast("jobs").out, holdfast("job", str(job.id)).out),
        on_terminal(["jobs"], dsn=holdfast_dsn, columns=200),
        on_terminal(["job", str(job.id)], dsn=holdfast_dsn, columns=200),
    ]
    for page in pages:
        text = plain(page)
        assert not any(sign in text for sign in "\x1b\x07\x9b\r")
        assert "\\x1b]0;title\\x07\\x1b[2J [bold]x[/bold] :smile:" in text


def test_a_table_on_a_terminal_fits_it_and_shows_whole_ids(
    hf: Holdfast, holdfast_dsn: str, drain: Drain
) -> None:
    @hf.task(name="mail.welcome_to_our_newsletter")
    async def welcome() -> Cancel:
        return Cancel("nobody " * 30)

    jobs = [welcome.enqueue(), hf.enqueue("later", queue="a-queue-with-a-rather-long-name", delay=5430)]
    drain()
    for columns in (60, 80, 140):
        page = on_terminal(["jobs"], dsn=holdfast_dsn, columns=columns)
        assert "\x1b[" in page
        lines = plain(page).splitlines()
        assert max(len(line) for line in lines) <= columns
        if columns >= 80:
            assert all(str(job.id) in plain(page) for job in jobs)
            assert "cancelled" in plain(page)
        if columns >= 140:
            assert "in 1h 30m" in plain(page)


def test_a_terminal_says_when_there_is_nothing_to_show(holdfast_dsn: str) -> None:
    assert plain(on_terminal(["jobs"], dsn=holdfast_dsn, columns=80)) == "No jobs.\n"
    assert "Start one" in plain(on_terminal(["workers"], dsn=holdfast_dsn, columns=80))


def test_a_pipe_gets_the_head_of_an_empty_table_and_an_empty_document(holdfast: Command) -> None:
    assert len(holdfast("jobs").out.splitlines()) == 1
    assert json.loads(holdfast("jobs", "--json").out) == []


@pytest.mark.parametrize("stored", ["[" * 1000 + "]" * 1000, '{"n": 1e30000}'], ids=["deep", "digits"])
def test_a_value_that_cannot_be_read_spoils_neither_the_list_nor_the_job(
    holdfast: Command, hf: Holdfast, ask: Ask, stored: str
) -> None:
    fine, odd = hf.enqueue("fine", {"x": 1}), hf.enqueue("odd")
    ask("update holdfast.live set payload = %s where id = %s", stored, odd.id)  # as 0.1 took it
    assert {row[0] for row in holdfast("jobs").rows} == {str(fine.id), str(odd.id)}
    payloads = {job["id"]: job["payload"] for job in holdfast("jobs", "--json").json}
    assert payloads[str(fine.id)] == {"x": 1}
    assert payloads[str(odd.id)].startswith("(cannot be shown: ")
    assert "(cannot be shown: " in holdfast("job", str(odd.id)).out


def test_json_that_is_nested_as_deeply_as_may_be_is_shown(holdfast: Command, hf: Holdfast) -> None:
    deep: dict[str, Any] = {"a": 1}
    for _ in range(99):
        deep = {"a": [deep]}
    job = hf.enqueue("deep", deep)
    assert holdfast("job", str(job.id), "--json").json["payload"] == deep
    assert "(cannot be shown" not in holdfast("job", str(job.id)).out


def test_cancel_wants_all_to_be_said(holdfast: Command, hf: Holdfast) -> None:
    job = hf.enqueue("a")
    refused = holdfast("cancel", "--state", "pending")
    assert refused.code == 2
    assert "--all" in refused.err
    assert job.refresh().state == "pending"
    assert holdfast("cancel", "--all", "--state", "pending").code == 0
    assert job.refresh().state == "cancelled"


# Of C0, of C1 (one that begins a command), DEL, those that turn the direction, an invisible one.
NASTY = "\x1b[31m \x9b31m \x7f \x85 \u202e \u2066 \u200f \u2028 \U000e0041 é 漢 😀"


def test_json_never_commands_the_terminal(holdfast: Command, hf: Holdfast, drain: Drain) -> None:
    @hf.task(name="nasty")
    async def nasty(text: str, ctx: Context) -> dict[str, str]:
        ctx.event("said", {NASTY: text})
        return {NASTY: text}

    job = nasty.enqueue(text=NASTY)  # type: ignore[call-overload]
    drain()
    answers = [
        holdfast("jobs", "--json"),
        holdfast("job", str(job.id), "--json"),
        holdfast("result", str(job.id)),
        holdfast("events", str(job.id), "--json"),
    ]
    for answer in answers:
        assert all(each.isprintable() or each == "\n" for each in answer.out), ascii(answer.out)
        assert "é 漢 😀" in answer.out
    assert answers[2].json == {NASTY: NASTY}
    assert answers[0].json[0]["payload"] == {"text": NASTY}

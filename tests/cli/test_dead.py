"""Dead letters, cancels of many, and retry policies from a command line."""

import pytest

from holdfast import Holdfast, RetryPolicy
from tests.cli.programs import Command
from tests.fixtures import Drain


@pytest.fixture
def dead(hf: Holdfast, drain: Drain) -> list[str]:
    @hf.task(name="fragile", queue="mail", max_attempts=1)
    async def fragile(n: int) -> None:
        raise ConnectionError(f"refused {n}")

    jobs = hf.enqueue_many(fragile.call(n=n) for n in range(3))
    drain()
    return [str(job.id) for job in jobs]


def test_dead_jobs_are_listed(holdfast: Command, dead: list[str]) -> None:
    assert {row["id"] for row in holdfast("dead", "--json").json} == set(dead)
    (row,) = holdfast("dead", "--queue", "mail", "--error", "Refused 1", "--after", "1h").rows
    assert (row[0], row[3]) == (dead[1], "dead")
    assert holdfast("dead", "--before", "1h").rows == []
    for never in ("yesterday", "2999-01-01T00:00Z"):
        answer = holdfast("dead", "--after", never)
        assert answer.code == 2
        assert "a time" in answer.err
    assert "not a time: write how long ago (2h, 3d)" in holdfast("dead", "--after", "yesterday").err


def test_they_are_replayed_by_id_and_by_filter(holdfast: Command, hf: Holdfast, dead: list[str]) -> None:
    assert holdfast("replay", dead[0]).rows == [[dead[0], "pending", "-"]]
    assert holdfast("replay", "--error", "refused 1").out == "Replayed 1 job.\n"
    assert holdfast("replay", "--all", "--json").json == {"jobs": 1}
    again = holdfast("replay", dead[0], "--json")
    assert again.code == 1
    assert "only a dead job" in again.json[0]["error"]


@pytest.mark.parametrize("command", ["replay", "purge"])
def test_an_empty_filter_does_not_mean_all_of_them(holdfast: Command, dead: list[str], command: str) -> None:
    refused = holdfast(command, "--error", "")
    assert (refused.code, "--all" in refused.err) == (2, True)
    assert len(holdfast("dead").rows) == 3


def test_they_are_purged(holdfast: Command, dead: list[str]) -> None:
    assert holdfast("purge", dead[0]).rows == [[dead[0], "purged", "-"]]
    assert holdfast("purge", "--queue", "mail").out == "Purged 2 jobs.\n"
    assert holdfast("dead").rows == []


@pytest.mark.parametrize("command", ["replay", "purge", "cancel"])
def test_what_is_meant_must_be_said(holdfast: Command, command: str) -> None:
    answer = holdfast(command)
    assert answer.code == 2
    assert "by ID" in answer.err


def test_a_waiting_job_is_given_up(holdfast: Command, hf: Holdfast) -> None:
    job = hf.enqueue("a")
    assert holdfast("give-up", str(job.id), "--reason", "enough").rows == [[str(job.id), "dead", "-"]]
    assert job.refresh().last_error == "enough"


def test_a_queue_is_called_off(holdfast: Command, hf: Holdfast) -> None:
    for _ in range(3):
        hf.enqueue("a", queue="mail")
    answer = holdfast("cancel", "--queue", "mail", "--state", "pending")
    assert answer.out == "Cancelled 3 jobs; requested for 0 that workers hold.\n"
    assert holdfast("cancel", "--task", "a", "--json").json == {"cancelled": 0, "requested": 0}


def test_policies_are_set_listed_and_reset(holdfast: Command) -> None:
    assert holdfast("policy", "list").rows == []
    assert holdfast("policy", "set", "mail.send", "--max-attempts", "5", "--base", "30s").code == 0
    (row,) = holdfast("policy", "list", "--json").json
    assert (row["task"], row["max_attempts"], row["declared"]) == ("mail.send", 5, False)
    assert holdfast("policy", "reset", "mail.send").out == "The policy of mail.send is reset.\n"
    assert holdfast("policy", "reset", "mail.send").out == "Nothing was set for mail.send.\n"
    assert holdfast("policy", "set", "Mail Send", "--max-attempts", "5").code == 2
    nothing = holdfast("policy", "set", "mail.send")
    assert nothing.code == 2
    assert "Say what to set: --max-attempts, --base, --factor, --cap, --jitter." in nothing.err
    assert holdfast("policy", "list").rows == []


def test_a_policy_says_what_wins_over_it(holdfast: Command, hf: Holdfast) -> None:
    @hf.task(name="strict", max_attempts=2)
    async def strict() -> None: ...

    @hf.task(name="open", retry=RetryPolicy(max_attempts=2))
    async def open_() -> None: ...

    hf.worker().run(drain=True)  # which writes down what they declare
    answer = holdfast("policy", "set", "strict", "--max-attempts", "5")
    assert answer.out == (
        "The policy of strict is set.\nIts code says @hf.task(max_attempts=2): that wins over 5.\n"
    )
    answer = holdfast("policy", "set", "open", "--max-attempts", "5")
    assert answer.out == (
        "The policy of open is set.\n"
        "A max_attempts that a call or @hf.task(max_attempts=...) gives wins over it.\n"
    )
    assert strict.enqueue().refresh().max_attempts == 2
    assert hf.enqueue("strict").refresh().max_attempts == 5
    assert open_.enqueue().refresh().max_attempts == 5
    assert open_.options(max_attempts=1).enqueue().refresh().max_attempts == 1


def test_a_policy_says_in_json_what_the_code_declares(holdfast: Command, hf: Holdfast) -> None:
    @hf.task(name="once", at_most_once=True)
    async def once() -> None: ...

    hf.worker().run(drain=True)
    assert holdfast("policy", "set", "once", "--max-attempts", "5", "--json").json == {
        "task": "once",
        "outcome": "set",
        "declared_max_attempts": 1,
    }

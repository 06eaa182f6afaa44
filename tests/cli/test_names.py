"""A command says when nothing has used the queue or task that it was given."""

import pytest

from holdfast import Holdfast, RetryPolicy
from tests.cli.programs import Command


@pytest.fixture(autouse=True)
def used(hf: Holdfast) -> None:
    hf.enqueue("mail.welcome", queue="notifications")
    hf.enqueue("mail.old", queue="notifications").give_up()


@pytest.mark.parametrize(
    ("command", "note"),
    [
        (
            ["queue", "configure", "notification", "retention=7d"],
            "a queue 'notification' at present. Did you mean",
        ),
        (["policy", "set", "mail.welcom", "--base", "5s"], "a task 'mail.welcom' at present. Did you mean"),
        (
            ["replay", "--queue", "notification"],
            "a queue 'notification' at present. Did you mean 'notifications'?",
        ),
        (["purge", "--task", "mail.odl"], "a task 'mail.odl' at present. Did you mean 'mail.old'?"),
        (["cancel", "--queue", "notification"], "a queue 'notification' at present. Did you mean"),
        (["enqueue", "mail.welcom"], "a task 'mail.welcom' at present. Did you mean 'mail.welcome'?"),
        (
            ["enqueue", "mail.welcome", "--queue", "notification"],
            "a queue 'notification' at present. Did you mean 'notifications'?",
        ),
        (
            ["schedule", "add", "a", "mail.welcom", "--every", "5s"],
            "a task 'mail.welcom' at present. Did you",
        ),
        (["jobs", "--queue", "notification"], "a queue 'notification' at present. Did you mean"),
        (["jobs", "--task", "mail.odl"], "a task 'mail.odl' at present. Did you mean 'mail.old'?"),
        (["dead", "--queue", "notification"], "a queue 'notification' at present. Did you mean"),
        (["stats", "--queue", "notification"], "a queue 'notification' at present. Did you mean"),
        (["stats", "--by", "task", "--queue", "notification"], "a queue 'notification' at present. Did you"),
    ],
)
def test_an_unknown_name_is_noted_with_the_nearest(holdfast: Command, command: list[str], note: str) -> None:
    answer = holdfast(*command)
    assert answer.code == 0
    assert answer.out != ""
    assert f"Note: no job, worker or schedule uses {note}" in answer.err


@pytest.mark.parametrize(
    "command",
    [
        ["queue", "configure", "notifications", "retention=7d"],
        ["queue", "configure", "*", "retention=7d"],
        ["policy", "set", "mail.welcome", "--base", "5s"],
        ["replay", "--queue", "notifications", "--error", "nothing like it"],
        ["cancel", "--task", "mail.old"],
        ["enqueue", "mail.welcome", "--queue", "notifications"],
        ["schedule", "add", "a", "mail.welcome", "--every", "5s", "--queue", "notifications"],
        ["jobs", "--queue", "notifications", "--state", "completed"],
        ["dead", "--task", "mail.old", "--error", "nothing like it"],
        ["stats", "--queue", "notifications"],
    ],
)
def test_a_known_name_is_not(holdfast: Command, command: list[str]) -> None:
    answer = holdfast(*command)
    assert (answer.code, answer.err) == (0, "")


def test_what_was_asked_is_done_all_the_same(holdfast: Command, hf: Holdfast) -> None:
    holdfast("policy", "set", "mail.welcom", "--max-attempts", "9")
    holdfast("queue", "configure", "notification", "max_attempts=8")
    assert hf.enqueue("mail.welcom").refresh().max_attempts == 9
    assert hf.enqueue("other", queue="notification").refresh().max_attempts == 8
    hf.policies.set("fax", RetryPolicy())
    assert holdfast("policy", "set", "fax", "--base", "5s").err == ""


@pytest.mark.parametrize("command", [["enqueue"], ["schedule", "add", "a", "--every", "5s"]])
def test_a_task_that_was_seen_on_another_queue_is_noted(
    holdfast: Command, hf: Holdfast, command: list[str]
) -> None:
    note = holdfast(*command, "mail.welcome").err
    assert note.startswith("Note: task 'mail.welcome' uses only the queue 'notifications' at present; ")
    assert note.endswith("this goes to 'default'. Add --queue notifications to change that.\n")
    # That was the first one on the default queue.
    assert holdfast("enqueue", "mail.welcome").err == ""

"""Queues from a command line."""

from holdfast import Holdfast
from tests.cli.programs import Command
from tests.fixtures import Ask, Drain


def test_a_queue_is_paused_and_resumed(holdfast: Command, hf: Holdfast, drain: Drain) -> None:
    @hf.task(name="a", queue="mail")
    async def a() -> None: ...

    job = a.enqueue()
    assert holdfast("queue", "pause", "mail").out == "Queue mail is paused.\n"
    drain()
    assert job.refresh().state == "pending"
    (listed,) = holdfast("queue", "list", "--json").json
    assert listed["paused_at"] is not None
    assert holdfast("queue", "resume", "mail", "--json").json == [
        {"queue": "mail", "outcome": "resumed", "used": True}
    ]
    drain()
    assert job.refresh().state == "completed"


def test_a_paused_queue_is_listed_before_it_has_any_job(holdfast: Command) -> None:
    holdfast("queue", "pause", "mail", "reports")
    assert [row[0] for row in holdfast("queue", "list").rows] == ["mail", "reports"]


def test_a_queue_that_nobody_has_used_is_paused_with_a_note(holdfast: Command, hf: Holdfast) -> None:
    hf.enqueue("a", queue="mail")
    answer = holdfast("queue", "pause", "mial", "mail")
    assert (answer.code, answer.out) == (0, "Queue mial is paused.\nQueue mail is paused.\n")
    assert answer.err == (
        "Note: no job, worker or schedule uses a queue 'mial' at present. Did you mean 'mail'?\n"
    )
    assert [row.name for row in hf.queues.list() if row.paused_at] == ["mail", "mial"]
    answer = holdfast("queue", "resume", "reports")
    assert answer.err == "Note: no job, worker or schedule uses a queue 'reports' at present.\n"
    assert holdfast("queue", "pause", "other", "--json").json == [
        {"queue": "other", "outcome": "paused", "used": False}
    ]


def test_a_queue_of_a_worker_a_schedule_or_a_setting_is_used(holdfast: Command, hf: Holdfast) -> None:
    hf.worker(queues=["served"]).run(drain=True)
    hf.schedules.add("daily", "a", queue="planned", cron="0 9 * * *")
    hf.settings.configure("set", max_attempts=5)
    assert holdfast("queue", "pause", "served", "planned", "set").err == ""


def test_queues_are_listed_with_what_waits_in_them(holdfast: Command, hf: Holdfast) -> None:
    oldest = hf.enqueue("a", queue="mail").refresh().created_at
    hf.enqueue("b", queue="mail", priority=5)
    hf.enqueue("a", queue="mail", delay=60)
    hf.enqueue("a")
    default, mail = holdfast("queue", "list", "--json").json
    assert (default["name"], default["pending"]) == ("default", 1)
    oldest_at = mail.pop("oldest_at")
    assert mail == {"name": "mail", "paused_at": None, "scheduled": 1, "pending": 2, "held": 0}
    assert oldest_at == oldest.isoformat().replace("+00:00", "Z")


def test_stats_count_every_state_of_each_queue(holdfast: Command, hf: Holdfast, drain: Drain) -> None:
    @hf.task(name="done", queue="mail")
    async def done() -> None: ...

    done.enqueue()
    drain()
    hf.enqueue("other", queue="mail")
    holdfast("cancel", str(hf.enqueue("other", queue="mail").id))
    hf.enqueue("other", delay=60)
    default, mail = holdfast("stats", "--json").json
    nothing = dict.fromkeys(default["counts"], 0)
    assert list(nothing) == ["scheduled", "pending", "claimed", "running", "completed", "dead", "cancelled"]
    assert default["counts"] == nothing | {"scheduled": 1}
    assert (default["queue"], default["paused"], default["oldest_pending_at"]) == ("default", False, None)
    assert mail["counts"] == nothing | {"pending": 1, "completed": 1, "cancelled": 1}
    assert mail["oldest_pending_at"]
    assert [row[:8] for row in holdfast("stats").rows] == [
        ["default", "1", "0", "0", "0", "0", "0", "0"],
        ["mail", "0", "1", "0", "0", "1", "0", "1"],
    ]


def test_a_queue_is_paused_although_nobody_can_say_who_uses_it(
    holdfast: Command, hf: Holdfast, ask: Ask
) -> None:
    ask("drop function holdfast.list_schedules cascade")
    answer = holdfast("queue", "pause", "mail")
    assert (answer.code, answer.err) == (0, "")
    assert [row.paused_at is not None for row in hf.queues.list() if row.name == "mail"] == [True]
    assert holdfast("queue", "resume", "mail", "--json").json == [
        {"queue": "mail", "outcome": "resumed", "used": None}
    ]


def test_a_name_that_breaks_the_rules_is_refused(holdfast: Command) -> None:
    answer = holdfast("queue", "pause", "Mail")
    assert answer.code == 2
    assert answer.err.startswith("Error: queue")


def test_an_unknown_action_is_answered_with_the_nearest(holdfast: Command) -> None:
    answer = holdfast("queue", "pauze", "mail")
    assert answer.code == 2
    assert "There is no command 'pauze'. Did you mean 'pause'?" in answer.err

"""Schedules from a command line."""

from typing import Any

import pytest

from holdfast import Holdfast
from tests.cli.programs import Command, on_terminal, plain


def test_a_schedule_is_added_and_shown(holdfast: Command, hf: Holdfast) -> None:
    said = holdfast(
        "schedule", "add", "nightly", "report", '{"n": 1}', "--cron", "0 2 * * mon", "--zone", "Europe/Berlin"
    )
    assert said.code == 0
    lines = dict(line.split(maxsplit=1) for line in said.out.splitlines() if line[0] != " ")
    assert lines["says"] == "at 02:00, on Monday (0 2 * * mon, Europe/Berlin)"
    assert lines["payload"] == '{"n": 1}'
    assert lines["by"] == "operator"
    assert holdfast("schedule", "show", "nightly").out == said.out
    (row,) = hf.schedules.list()
    assert (row.task, row.payload, row.declared) == ("report", {"n": 1}, False)


def test_every_option_arrives(holdfast: Command) -> None:
    said = holdfast(
        "schedule", "add", "beat", "ping", "--every", "90s", "--queue", "mail", "--priority", "user",
        "--max-attempts", "7", "--missed", "all", "--no-overlap", "--jitter", "5s", "--json",
    ).json  # fmt: skip
    wanted = {
        "every": 90,
        "queue": "mail",
        "priority": 150,
        "max_attempts": 7,
        "missed": "all",
        "overlap": False,
    }
    assert wanted.items() <= said.items()
    assert said["jitter"] == 5
    assert len(said["upcoming"]) == 5


def test_the_list_has_words_and_the_next_five_times(holdfast: Command, hf: Holdfast) -> None:
    hf.schedules.add("beat", "ping", every=30)
    (row,) = holdfast("schedule", "list", "--json").json
    assert (row["words"], len(row["upcoming"])) == ("every 30 seconds", 5)
    head, line = holdfast("schedule", "list").out.splitlines()
    assert head.split() == ["NAME", "TASK", "NEXT_AT", "LAST_AT", "ZONE", "BY", "ERROR", "SAYS", "TIMES"]
    assert "every 30 seconds" in line
    assert line.split()[-5:] == [moment.split(".")[0] + "Z" for moment in row["upcoming"]]


def test_the_list_shows_the_zone_on_a_narrow_terminal_too(hf: Holdfast, holdfast_dsn: str) -> None:
    hf.schedules.add("nightly", "report.build", cron="0 9 * * mon-fri", zone="Europe/Berlin")
    hf.schedules.add("ping", "ping", every=90)
    page = plain(on_terminal(["schedule", "list"], dsn=holdfast_dsn, columns=80))
    assert max(map(len, page.splitlines())) <= 80
    assert "Europe/Berlin" in page
    assert "UTC" not in page, "an interval has no zone"


def test_a_schedule_is_changed(holdfast: Command, hf: Holdfast) -> None:
    hf.schedules.add("beat", "ping", {"n": 1}, every=30)
    assert holdfast("schedule", "change", "beat", "--cron", "@daily", "--payload", "[2]").code == 0
    (row,) = hf.schedules.list()
    assert (row.cron, row.every, row.payload, row.declared) == ("@daily", None, [2], False)
    assert "Say what to change" in holdfast("schedule", "change", "beat").err


def test_pause_resume_run_and_remove(holdfast: Command, hf: Holdfast) -> None:
    hf.schedules.add("beat", "ping", every=30)
    assert holdfast("schedule", "pause", "beat").rows == [["beat", "paused"]]
    assert holdfast("schedule", "list").rows[0][2] == "paused"
    assert holdfast("schedule", "pause", "beat").rows == [["beat", "was", "paused"]]
    assert holdfast("schedule", "resume", "beat", "--json").json == [{"name": "beat", "outcome": "resumed"}]
    assert hf.job(holdfast("schedule", "run", "beat").out.strip()).refresh().task == "ping"
    assert holdfast("schedule", "remove", "beat").rows == [["beat", "removed"]]
    assert holdfast("schedule", "list").rows == []


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "remove"])
def test_a_name_that_there_is_not_is_refused_with_the_nearest(
    holdfast: Command, hf: Holdfast, verb: str
) -> None:
    hf.schedules.add("nightly", "report", every=30)
    said = holdfast("schedule", verb, "nightyl")
    assert said.code == 2
    assert "Did you mean 'nightly'?" in said.err


def test_of_several_names_one_unknown_stops_all(holdfast: Command, hf: Holdfast) -> None:
    hf.schedules.add("beat", "ping", every=30)
    assert holdfast("schedule", "remove", "beat", "other").code == 2
    assert len(hf.schedules.list()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "either --cron or --every"),
        (["--cron", "@daily", "--every", "5s"], "either --cron or --every"),
        (["--cron", "0 25 * * *"], "hour '25': must be a number from 0 to 23"),
        (["--cron", "0 0 30 feb *"], "never comes"),
        (["--every", "0.5s"], "must be whole seconds"),
        (["--every", "5s", "--zone", "Mars"], "must be the full name of a time zone"),
    ],
)
def test_nonsense_is_refused(holdfast: Command, hf: Holdfast, options: list[Any], message: str) -> None:
    said = holdfast("schedule", "add", "beat", "ping", *options)
    assert said.code == 2
    assert message in said.err
    assert hf.schedules.list() == []


def test_an_expression_can_be_tried_out(holdfast: Command) -> None:
    said = holdfast(
        "schedule", "next", "*/15 9-17 * * mon-fri", "--zone", "Asia/Kolkata", "--amount", "3", "--json"
    ).json
    assert said["words"] == "every 15 minutes from 09:00 to 17:45, Monday to Friday"
    assert len(said["upcoming"]) == 3
    words, first, *_ = holdfast("schedule", "next", "0 9 * * mon", "--zone", "Asia/Kolkata").out.splitlines()
    assert words == "at 09:00, on Monday (Asia/Kolkata)"
    assert first.startswith("  Mon 20")
    assert first.endswith("09:00:00 +0530")


def test_a_delayed_job_is_given_another_time(holdfast: Command, hf: Holdfast) -> None:
    job = hf.enqueue("a", delay=3600)
    assert holdfast("reschedule", str(job.id), "--run-at", "2030-01-31T09:00+01:00").rows == [
        [str(job.id), "due", "2030-01-31T08:00:00Z", "-"]
    ]
    run_at = job.refresh().run_at
    assert run_at is not None
    assert run_at.isoformat().startswith("2030-01-31T08:00")
    assert "either --delay or --run-at" in holdfast("reschedule", str(job.id)).err
    assert "has no time zone" in holdfast("reschedule", str(job.id), "--run-at", "2030-01-31").err
    job.run_now()
    said = holdfast("reschedule", str(job.id), "--delay", "5m")
    assert said.code == 1
    assert "only a scheduled job" in said.out

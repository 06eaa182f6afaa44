"""Enqueue, cancel and run now, from a command line."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from holdfast import Holdfast, JobState
from tests.cli.programs import Command
from tests.fixtures import Drain


def test_enqueue_prints_the_id_of_the_job(holdfast: Command, hf: Holdfast) -> None:
    answer = holdfast("enqueue", "mail.welcome", '{"user_id": 7}')
    assert (answer.code, answer.err) == (0, "")
    job = hf.job(answer.out.strip()).refresh()
    assert (job.task, job.payload, job.queue, job.priority) == (
        "mail.welcome",
        {"user_id": 7},
        "default",
        100,
    )


def test_enqueue_takes_every_option(holdfast: Command, hf: Holdfast) -> None:
    wanted = uuid4()
    options = ["--queue=mail", "--priority=backfill", "--delay=1h30m", "--max-attempts=7", f"--id={wanted}"]
    answer = holdfast("enqueue", "mail.welcome", *options, "--json")
    assert answer.json == {"id": str(wanted)}
    job = hf.job(wanted).refresh()
    assert (job.queue, job.priority, job.max_attempts, job.payload) == ("mail", 30, 7, {})
    assert job.state is JobState.SCHEDULED
    assert job.run_at
    assert job.run_at - job.created_at == timedelta(minutes=90)


def test_a_job_can_be_enqueued_for_a_time_in_any_zone(holdfast: Command, hf: Holdfast) -> None:
    answer = holdfast("enqueue", "tea", "--run-at", "2050-01-31T09:00+01:00")
    assert hf.job(answer.out.strip()).refresh().run_at == datetime(2050, 1, 31, 8, tzinfo=UTC)


def test_a_payload_can_come_from_standard_input(holdfast: Command, hf: Holdfast) -> None:
    answer = holdfast("enqueue", "shop.bill", "-", stdin='{"order": [1, 2]}\n')
    assert hf.job(answer.out.strip()).refresh().payload == {"order": [1, 2]}


def test_the_same_id_is_enqueued_once_and_refused_for_another_job(holdfast: Command, hf: Holdfast) -> None:
    wanted = f"--id={uuid4()}"
    assert holdfast("enqueue", "a", wanted).out == holdfast("enqueue", "a", wanted).out
    other = holdfast("enqueue", "b", wanted)
    assert (other.code, other.out) == (1, "")
    assert other.err.startswith("Error: ")
    assert len(hf.jobs.list()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delay", "5 minutes"], "'5 minutes' is not a duration. Write 90s, 5m, 1h30m or 2d."),
        (["--delay", "-5m"], "'-5m' is not a duration"),
        (["--delay", ""], "'' is not a duration"),
        (["--delay", "200000w"], "'200000w' is more than 100 years"),
        (["--run-at", "tomorrow"], "'tomorrow' is not a time in ISO 8601"),
        (["--run-at", "2030-01-31T09:00"], "has no time zone. Add Z for UTC"),
        (["--delay", "1s", "--run-at", "2030-01-31T09:00Z"], "Give either --delay or --run-at, not both."),
        (["--priority", "high"], "'high' is neither a number nor one of user, system, backfill."),
        (["--priority", "40000"], "40000 is outside the range -32768 to 32767."),
        (["--max-attempts", "0"], "0 is not in the range 1<=x<=32767"),
        (["--id", "7"], "'7' is not a valid UUID"),
        (["--prioritty", "5"], "--priority"),
        (['{"a": 1,}'], "not JSON: "),
        (["{'a': 1}"], "not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        ([""], "not JSON: Expecting value at line 1, column 1"),
        (["[" * 100_000], "the JSON is nested too deeply."),
    ],
)
def test_what_cannot_be_understood_is_wrong_usage(
    without_database: Command, arguments: list[str], said: str
) -> None:
    answer = without_database("enqueue", "tea", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_a_mistake_in_json_is_pointed_at(without_database: Command) -> None:
    answer = without_database("enqueue", "tea", "-", stdin='{"cups": 2,\n "sugar": yes}')
    assert "at line 2, column 11" in answer.err
    assert answer.err.endswith('\n\n   "sugar": yes}\n            ^\n')


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Tea Time"], "task 'Tea Time' is not a valid name\nHint: Names have 1 to 100 characters"),
        (["tea", "--queue", "A"], "queue 'A' is not a valid name"),
        (["tea", '{"a": "\\u0000"}'], "payload"),
        (["tea", '{"a": NaN}'], "payload"),
        (["tea", "--run-at", "2999-01-01T00:00Z"], "must be a time within the next 100 years"),
    ],
)
def test_what_no_queue_would_take_is_wrong_usage(
    without_database: Command, arguments: list[str], said: str
) -> None:
    answer = without_database("enqueue", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Error: ")
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_a_payload_that_this_queue_does_not_take_is_refused(holdfast: Command) -> None:
    answer = holdfast("enqueue", "tea", "-", stdin=f'"{"x" * 300_000}"')
    assert (answer.code, answer.out) == (1, "")
    assert "limit" in answer.err


def test_cancel_calls_off_what_has_not_started(holdfast: Command, hf: Holdfast) -> None:
    one, two = hf.enqueue("a"), hf.enqueue("b", delay=60)
    answer = holdfast("cancel", str(one.id), str(two.id))
    assert answer.code == 0
    assert answer.rows == [[str(one.id), "cancelled", "-"], [str(two.id), "cancelled", "-"]]
    assert one.refresh().state is two.refresh().state is JobState.CANCELLED


def test_cancel_of_an_unknown_job_fails_but_does_the_others(holdfast: Command, hf: Holdfast) -> None:
    job, unknown = hf.enqueue("a"), uuid4()
    answer = holdfast("cancel", str(unknown), str(job.id), "--json")
    assert answer.code == 1
    refused, cancelled = answer.json
    assert refused == {"id": str(unknown), "outcome": "refused", "error": f"there is no job {unknown}"}
    assert cancelled == {"id": str(job.id), "outcome": "cancelled", "error": None}


def test_a_job_that_has_ended_cannot_be_called_off_nor_run_now(
    holdfast: Command, hf: Holdfast, drain: Drain
) -> None:
    @hf.task(name="a")
    async def a() -> None: ...

    job = a.enqueue()
    drain()
    for command in ("cancel", "run-now"):
        answer = holdfast(command, str(job.id), "--json")
        assert answer.code == 1
        assert answer.json == [
            {"id": str(job.id), "outcome": "completed", "error": "it is completed already"}
        ]


def test_run_now_of_a_dead_job_points_to_replay(holdfast: Command, hf: Holdfast) -> None:
    job = hf.enqueue("a")
    job.give_up()
    (row,) = holdfast("run-now", str(job.id), "--json").json
    assert row["outcome"] == "dead"
    assert "holdfast replay" in row["error"]


def test_run_now_does_not_let_a_job_wait(holdfast: Command, hf: Holdfast) -> None:
    job = hf.enqueue("a", delay=3600)
    assert holdfast("run-now", str(job.id)).rows == [[str(job.id), "pending", "-"]]
    assert job.refresh().state is JobState.PENDING


def test_an_id_that_is_none_is_wrong_usage(without_database: Command) -> None:
    for command in ("cancel", "run-now", "job"):
        assert without_database(command, "7").code == 2
        assert without_database(command).code == 2

"""What is wrong, from a command line and from Python: why a job does not run, and what ails the database."""

import asyncio
from uuid import uuid4

import psycopg

from holdfast import Holdfast
from tests.cli.programs import Command


def test_why_says_what_stands_in_the_way_and_what_to_do(holdfast: Command, hf: Holdfast) -> None:
    job = hf.enqueue("welcome", queue="mail")
    holdfast("queue", "pause", "mail")
    answer = holdfast("why", str(job.id))
    assert answer.code == 0
    first, explanation, remedy, second, *_ = answer.out.splitlines()
    assert (first, second) == ("paused", "no_worker")
    assert explanation.startswith("  Queue mail has been paused since")
    assert remedy == "  → holdfast queue resume mail"
    reasons = holdfast("why", str(job.id), "--json").json
    assert [reason["answer"] for reason in reasons] == ["paused", "no_worker"]
    assert reasons[0]["detail"]["queue"] == "mail"
    assert holdfast("why", str(uuid4()), "--json").json[0]["answer"] == "unknown"
    assert holdfast("why", "mail").code == 2


def test_why_and_doctor_answer_in_python_too(hf: Holdfast) -> None:
    job = hf.enqueue("welcome")
    assert [reason.answer for reason in job.why()] == ["no_worker"]
    assert [reason.answer for reason in hf.jobs.why(str(job.id))] == ["no_worker"]

    async def ask() -> tuple[str, set[str]]:
        return (await job.awhy())[0].answer, {found.name for found in await hf.health.adoctor(healthy=True)}

    answer, checks = asyncio.run(ask())
    assert answer == "no_worker"
    assert {"schema", "pooling", "clock", "indexes", "duties"} <= checks


def test_doctor_tells_by_its_exit_code_how_bad_it_is(holdfast: Command, holdfast_dsn: str) -> None:
    answer = holdfast("doctor")
    # The server of the tests is careless on purpose.
    assert answer.code == 2
    assert answer.out.startswith("critical: settings\n  fsync = off")
    assert "warning: test_clock" in answer.out
    found = holdfast("doctor", "--json").json
    order = [each["severity"] for each in found]
    assert order == sorted(order, key=["critical", "warning", "info"].index)
    assert {each["severity"] for each in holdfast("doctor", "--all", "--json").json} > {"ok"}

    with psycopg.connect(holdfast_dsn, autocommit=True) as connection:
        connection.execute("delete from holdfast.migration where name = 'why'")
    outdated = holdfast("doctor", "--json")
    assert [(each["name"], each["severity"]) for each in outdated.json] == [("schema", "critical")]
    assert "holdfast migrate" in outdated.json[0]["remedy"]
    assert outdated.code == 2

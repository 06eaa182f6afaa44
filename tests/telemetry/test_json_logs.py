"""A log line for programs says the event and its fields, and no secret."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Secret
from holdfast.telemetry import Counted, emit
from holdfast.telemetry.logs import JsonFormatter
from holdfast.values.secret import hide_passwords

Lines = Callable[[], list[Any]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(JsonFormatter("anchor"))
    logger = logging.getLogger("holdfast")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in said.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_line_has_the_event_and_its_fields(lines: Lines) -> None:
    emit("job.failed", job="7", task="welcome", attempt=2, error=TimeoutError("too\nlate"), queues=["a"])
    emit("jobs.claimed", jobs=Counted([1, 2, 3]), seconds=0.5)
    failed, claimed = lines()
    assert failed.pop("at").endswith("Z")
    assert failed == {
        "level": "WARNING",
        "logger": "holdfast",
        "worker_name": "anchor",
        "event": "job.failed",
        "job": "7",
        "task": "welcome",
        "attempt": 2,
        "error": "TimeoutError: too\nlate",
        "queues": ["a"],
    }
    assert (claimed["jobs"], claimed["seconds"], claimed["level"]) == (3, 0.5, "DEBUG")


def test_a_field_cannot_pass_for_what_the_line_itself_says(lines: Lines) -> None:
    emit("a.b", level="INNOCENT", event="c.d")
    (line,) = lines()
    assert (line["level"], line["level_"], line["event"], line["event_"]) == (
        "INFO",
        "INNOCENT",
        "a.b",
        "c.d",
    )


def test_other_records_come_in_the_same_form(lines: Lines) -> None:
    error = ValueError("broken")
    logging.getLogger("holdfast.app").error("it %s", "failed", exc_info=error)
    (line,) = lines()
    assert (line["message"], line["logger"]) == ("it failed", "holdfast.app")
    assert "ValueError: broken" in line["traceback"]


def test_secrets_and_passwords_are_masked(lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    dsn = "postgresql://app:canary@db.example/app"
    emit(
        "job.failed",
        card=Secret("canary"),
        payload={"card": {"$secret": "canary"}, "deep": [Secret("canary")]},
        error=OSError(f"connection to {dsn} failed: password=canary"),
        dsn=dsn,
        where="host=db password='canary and more' dbname=x",
    )
    assert "canary" not in caplog.text  # nor in lines for people
    logging.getLogger("holdfast").warning("cannot reach %s", dsn)
    text = json.dumps(lines())
    assert "canary" not in text
    assert text.count("*****") == 8


def test_a_text_without_a_password_stays_as_it_is() -> None:
    for text in ("see https://example.org/a@b", "the password is wrong", "a://b c@d", "at 10:30@noon"):
        assert hide_passwords(text) == text

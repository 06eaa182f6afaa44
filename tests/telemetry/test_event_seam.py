"""Whoever listens hears what happens; whoever listens badly disturbs nobody."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from holdfast.telemetry import subscribers as events
from holdfast.telemetry.subscribers import emit, subscribe
from holdfast.values.secret import Secret

Heard = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    told: list[tuple[str, dict[str, Any]]] = []
    unsubscribe = subscribe(lambda name, fields: told.append((name, dict(fields))))
    yield told
    unsubscribe()


def test_a_subscriber_hears_events_until_it_unsubscribes() -> None:
    told: list[tuple[str, Mapping[str, Any]]] = []
    unsubscribe = subscribe(lambda name, fields: told.append((name, fields)))
    emit("job.failed", job=7, name="fields may have any name")
    unsubscribe()
    unsubscribe()
    emit("job.failed", job=8)
    assert told == [("job.failed", {"job": 7, "name": "fields may have any name"})]


def test_a_subscriber_that_raises_breaks_neither_the_work_nor_the_others(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(name: str, fields: Mapping[str, Any]) -> None:
        raise RuntimeError("broken listener")

    unsubscribe = subscribe(broken)
    told_later: list[str] = []
    unsubscribe_later = subscribe(lambda name, fields: told_later.append(name))
    emit("worker.started")
    unsubscribe()
    unsubscribe_later()
    assert told_later == ["worker.started"]
    assert "broken listener" in caplog.text


def test_even_a_log_handler_that_raises_does_not_break_the_work(heard: Heard) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("broken handler")

    handler = Broken()
    logging.getLogger("holdfast").addHandler(handler)
    try:
        emit("worker.lost")
    finally:
        logging.getLogger("holdfast").removeHandler(handler)
    assert heard == [("worker.lost", {})]


def test_the_log_has_one_line_per_event_and_the_fields_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="holdfast"):
        emit("job.failed", task="mail.send", attempt=2, error="no\nroute = 7", took=0.123456789)
    (record,) = caplog.records
    assert record.getMessage() == r"job.failed task=mail.send attempt=2 error='no\nroute = 7' took=0.123457"
    assert (vars(record)["event"], vars(record)["fields"]["attempt"]) == ("job.failed", 2)


def test_the_log_never_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="holdfast"):
        emit("worker.started", dsn=Secret("hunter2"), error=ValueError("x"))
    assert caplog.records[0].getMessage() == "worker.started dsn=***** error='ValueError: x'"


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("jobs.finished", logging.DEBUG),
        ("worker.started", logging.INFO),
        ("job.failed", logging.WARNING),
        ("worker.lost", logging.WARNING),
        ("process.died", logging.ERROR),
    ],
)
def test_the_name_decides_how_loud_the_log_is(
    caplog: pytest.LogCaptureFixture, name: str, level: int
) -> None:
    with caplog.at_level(logging.DEBUG, logger="holdfast"):
        emit(name)
    assert caplog.records[0].levelno == level


def test_a_field_that_cannot_be_printed_does_not_break_the_work(heard: Heard) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    emit("worker.started", thing=Unprintable())
    assert [name for name, _ in heard] == ["worker.started"]


def test_nothing_is_formatted_when_the_log_is_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "_shown", lambda value: pytest.fail("formatted"))
    with caplog.at_level(logging.CRITICAL, logger="holdfast"):
        emit("job.failed", job=1)

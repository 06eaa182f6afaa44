"""Settings: checked, changed at run time, written to the audit log, and read whenever they are needed."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Background, Refused, Session

Configure = Callable[..., dict[str, tuple[Any, Any]]]
Shown = Callable[[str], dict[str, tuple[Any, Any]]]


@pytest.fixture
def configure(sql: Session) -> Configure:
    """Change settings; what has changed, by name."""

    def change(queue: str, **settings: Any) -> dict[str, tuple[Any, Any]]:
        rows = sql.rows("configure", queue=queue, settings=json.dumps(settings))
        return {row.name: (row.before, row.after) for row in rows}

    return change


@pytest.fixture
def shown(sql: Session) -> Shown:
    """The settings of a queue: `shown("mail")["retention"]` is the value, and whether it is its own."""
    return lambda queue: {row.name: (row.value, row.own) for row in sql.rows("settings", queue=queue)}


def test_a_queue_has_its_own_value_or_the_default_of_all(
    sql: Session, configure: Configure, shown: Shown
) -> None:
    assert shown("mail")["retention"] == ("30 days", False)
    assert configure("mail", retention="7 days", max_attempts=5) == {
        "max_attempts": (None, 5),
        "retention": (None, "7 days"),
    }
    assert shown("mail")["retention"] == ("7 days", True)
    assert shown("other")["retention"] == ("30 days", False)
    configure("*", retention="forever", max_attempts=4)
    assert shown("mail")["retention"] == ("7 days", True)
    assert shown("other")["retention"] == ("forever", False)
    assert configure("mail", retention=None) == {"retention": ("7 days", None)}
    assert shown("mail")["retention"] == ("forever", False)
    assert shown("mail")["max_attempts"] == (5, True)


def test_every_column_that_may_be_set_is_a_setting_and_after_an_install_none_is_changed(
    sql: Session, shown: Shown
) -> None:
    columns = sql(
        "select attname from pg_attribute where attrelid = 'holdfast.queue'::regclass and attnum > 0 "
        "and not attisdropped and attname not in ('name', 'paused_at')"
    )
    assert set(shown("*")) == {name for (name,) in columns}
    assert [name for name, (_, changed) in shown("*").items() if changed] == []
    assert set(shown("*")) - set(shown("mail")) == {"disposal"}
    assert all(row.meaning for row in sql.rows("settings"))


def test_what_settings_shows_is_what_configure_takes(
    sql: Session, configure: Configure, shown: Shown
) -> None:
    configure(
        "*", retention=90, age_critical="never", waiting_warning="never", redacted=[], disposal="archive"
    )
    before = shown("*")
    assert before["retention"] == ("1 min 30 secs", True)
    assert (before["age_critical"][0], before["waiting_warning"][0]) == ("never", "never")
    assert configure("*", **{name: value for name, (value, _) in before.items()}) == {}
    assert shown("*") == before


def test_the_defaults_of_all_queues_go_back_to_those_of_an_install(
    sql: Session, configure: Configure, shown: Shown
) -> None:
    configure("*", retention="1 day", waiting_warning=10, payload_limit=2048, age_warning="30 s")
    everything = dict.fromkeys(shown("*"))
    assert configure("*", **everything)["retention"] == ("1 day", "30 days")
    assert [name for name, (_, changed) in shown("*").items() if changed] == []
    assert shown("*")["waiting_warning"] == (None, False)


def test_durations_are_an_interval_or_seconds(sql: Session, configure: Configure) -> None:
    stored = "select retention from holdfast.queue where name = 'mail'"
    for given, kept in {
        "7 days": "7 days",
        604800: "7 days",
        0: "0",
        "0": "0",
        "36 hours": "1 day 12 hours",
        "P1M": "1 mon",
        0.5: "0.5 secs",
        "Forever": "1000 years",
        "infinity": "1000 years",
    }.items():
        configure("mail", retention=given)
        assert sql.one(f"select ({stored}) = %s::interval", kept), given
    (row,) = [row for row in sql.rows("settings", queue="mail") if row.name == "retry_cap"]
    assert (row.value, row.seconds) == ("1 hour", 3600)


def test_a_value_that_breaks_the_rules_is_refused_with_the_name_the_limit_and_what_to_do(
    sql: Session, refused: Refused
) -> None:
    cases: dict[str, tuple[list[Any], str]] = {
        "payload_limit": (
            [0, 1023, 67108865, 2048.5, "2048", True, "never"],
            "an integer from 1024 to 67108864",
        ),
        "max_attempts": ([0, 32768, -1, [3]], "an integer from 1 to 32767"),
        "retry_base": (
            ["-1 s", "101 years", "soon", True, "never", "infinity"],
            "a duration from 0 to 100 years",
        ),
        "retry_factor": ([0.9, 101, "2"], "a number from 1 to 100"),
        "retry_jitter": ([-0.1, 1.1], "a number from 0 to 1"),
        "retention": (
            ["-1 day", "1001 years", "", {}, 1e300],
            '"7 days" or a number of seconds, or "forever"',
        ),
        "waiting_warning": ([-1, 1e30, "many"], 'or "never"'),
        "failures_warning": ([-0.5, 2, "half"], "a number from 0 to 1"),
        "worker_expected": (["yes", 1], "must be true or false"),
        "redacted": (["password", [1], [""], ["x" * 101], ["x"] * 101], "a list of up to 100 texts"),
    }
    for name, (values, rule) in cases.items():
        for value in values:
            with refused("HF008") as error:
                sql.rows("configure", queue="mail", settings=json.dumps({name: value}))
            assert error.message.startswith(f"{name} "), error.message
            assert rule in error.message
            assert error.detail["field"] == name
    with refused("HF008") as error:
        sql.rows("configure", queue="*", settings='{"disposal": "burn"}')
    assert error.message == "disposal burn: must be one of drop, archive, export"
    with refused("HF008") as error:
        sql.rows("configure", queue="mail", settings='{"disposal": "drop"}')
    assert "set it for the queue *" in error.message
    for nothing in (None, "{}", "[]", '"retention"', "null"):
        with refused("HF008"):
            sql.rows("configure", queue="mail", settings=nothing)
    for wrong in ("Mail", "", "**", None):
        with refused("HF005"):
            sql.rows("configure", queue=wrong, settings='{"retention": 1}')
    assert sql.one("select count(*) from holdfast.queue") == 1, "nothing was written"
    assert sql.one("select count(*) from holdfast.audit") == 0


def test_an_unknown_setting_is_answered_with_the_nearest(sql: Session, refused: Refused) -> None:
    for wrong, near in {
        "retentoin": "did you mean retention?",
        "max_atempts": "did you mean max_attempts?",
        "payload": "did you mean payload_limit?",
        "agewarning": "did you mean age_warning?",
        "paused": "holdfast.pause(queue) and resume(queue) do that",
        "paused_at": "holdfast.pause(queue) and resume(queue) do that",
        "name": "there are payload_limit, max_attempts, ",
        "": "there are payload_limit, ",
    }.items():
        with refused("HF008") as error:
            sql.rows("configure", queue="mail", settings=json.dumps({wrong: 1}))
        assert near in error.message


def test_a_warning_is_never_above_what_is_critical(
    sql: Session, configure: Configure, refused: Refused
) -> None:
    configure("slow", age_warning="5 mins")
    changes: list[tuple[str, dict[str, Any], str]] = [
        (
            "mail",
            {"age_warning": "11 mins"},
            "age_warning 11 mins: must not be above age_critical, which is 10 mins",
        ),
        (
            "mail",
            {"age_critical": "59 s"},
            "age_critical 59 secs: must not be below age_warning, which is 1 min",
        ),
        ("*", {"age_critical": "2 mins"}, "which is 5 mins for the queue slow"),
        ("slow", {"failures_critical": 0.2}, "failures_warning, which is 0.25"),
        ("mail", {"waiting_warning": 10, "waiting_critical": 9}, "waiting_warning 10: must not be above"),
    ]
    for queue, settings, said in changes:
        with refused("HF008") as error:
            configure(queue, **settings)
        assert said in error.message
    configure("mail", age_warning="11 mins", age_critical="11 mins")
    configure("mail", waiting_warning=10)
    configure("*", age_critical="5 mins")


def test_a_change_is_audited_with_who_and_when_and_what_it_was(
    sql: Session, configure: Configure, clock: Clock
) -> None:
    configure("mail", retention="7 days", max_attempts=5)
    configure("mail", retention="7 days")
    clock.advance(days=1)
    configure("*", retention="60 days")
    configure("mail", retention=None)
    rows = sql.rows("audit_log", action="configure")
    assert [(row.target, row.detail) for row in rows] == [
        ("mail", {"retention": ["7 days", None]}),
        ("*", {"retention": ["30 days", "60 days"]}),
        ("mail", {"retention": [None, "7 days"], "max_attempts": [None, 5]}),
    ]
    assert {row.who for row in rows} == {sql.one("select session_user::text")}
    assert rows[1].at - rows[2].at >= timedelta(days=1)


def test_a_change_of_a_retry_policy_is_audited_with_what_it_was(sql: Session) -> None:
    sql.value("declare_retry_policy", task="task", max_attempts=4, base="1 second")
    sql.value("set_retry_policy", task="task", max_attempts=4, base="30 seconds")
    sql.value("set_retry_policy", task="task", max_attempts=4, base="30 seconds")
    sql.value("reset_retry_policy", task="task")
    assert [(row.action, row.detail) for row in reversed(sql.rows("audit_log", target="task"))] == [
        ("set retry policy", {"base": ["00:00:01", "00:00:30"]}),
        ("set retry policy", None),
        ("reset retry policy", {"max_attempts": [4, None], "base": ["00:00:30", None]}),
    ]


def test_the_audit_log_is_read_by_target_action_name_and_time(
    sql: Session, configure: Configure, clock: Clock, refused: Refused
) -> None:
    sql.value("pause", queue="mail")
    clock.advance(hours=1)
    since = sql.one("select holdfast.clock()")
    sql.value("resume", queue="mail")
    sql.value("pause", queue="other")

    def found(**which: Any) -> list[tuple[str, str]]:
        return [(row.action, row.target) for row in sql.rows("audit_log", **which)]

    assert found() == [("pause", "other"), ("resume", "mail"), ("pause", "mail")]
    assert found(amount=1) == [("pause", "other")]
    assert found(target="mail") == [("resume", "mail"), ("pause", "mail")]
    assert found(action="pause", since=since) == [("pause", "other")]
    assert found(who="nobody") == []
    with refused("HF008"):
        sql.rows("audit_log", amount=0)


def test_a_setting_holds_from_its_commit_on_for_those_who_are_connected(
    sql: Session, other: Session, configure: Configure, refused: Refused
) -> None:
    large = json.dumps({"text": "x" * 3000})
    other.enqueue(queue="mail", payload=large)
    configure("mail", payload_limit=2048, max_attempts=7, retry_base="10 s", retry_jitter=0)
    with refused("HF004"):
        other.enqueue(queue="mail", payload=large)
    with refused("HF004"):
        other.enqueue_many(1, queues=["mail"], payloads=[large])
    small = other.enqueue(queue="mail")
    assert other.job(small).max_attempts == 7
    assert other.rows("places", tasks=["t"], queues=["mail"], priorities=[1])[0].max_attempts == 7
    assert str(other.value("retry_delay", task="t", attempt=2, queue="mail")) == "0:00:20"
    configure("mail", payload_limit=None, max_attempts=None, retry_base=None)
    configure("*", max_attempts=2)
    assert other.job(other.enqueue(queue="mail", payload=large)).max_attempts == 2


def test_pausing_keeps_the_settings_and_settings_keep_the_pause(
    sql: Session, configure: Configure, shown: Shown
) -> None:
    sql.value("pause", queue="mail")
    configure("mail", retention="1 day")
    assert sql.one("select paused_at is not null from holdfast.queue where name = 'mail'")
    sql.value("resume", queue="mail")
    assert shown("mail")["retention"] == ("1 day", True)


def test_two_who_change_at_once_both_win(
    sql: Session, other: Session, configure: Configure, background: Background, shown: Shown
) -> None:
    with sql.connection.transaction():
        configure("mail", retention="1 day")
        done = background(lambda: other.rows("configure", queue="mail", settings='{"max_attempts": 9}'))
        sql.until(lambda: sql.is_waiting(other))
    assert [row.name for row in done()] == ["max_attempts"]
    assert shown("mail")["retention"] == ("1 day", True)
    assert shown("mail")["max_attempts"] == (9, True)

"""Settings, the audit log and retention from a command line."""

import csv
import json
from datetime import timedelta
from pathlib import Path

from holdfast import Holdfast
from holdfast.testing import Clock
from tests.cli.programs import Command, on_terminal, plain
from tests.fixtures import Drain


def test_settings_are_typed_as_name_and_value(holdfast: Command, hf: Holdfast) -> None:
    answer = holdfast("queue", "configure", "mail", "retention=7d", "age_warning=5m", "redacted=pin,card")
    assert answer.out.splitlines() == [
        "mail: retention is 7 days, was default.",
        "mail: age_warning is 5 mins, was default.",
        "mail: redacted is pin,card, was default.",
    ]
    own = {row.name: row.value for row in hf.settings.list("mail") if row.own}
    assert own == {
        "retention": timedelta(days=7),
        "age_warning": timedelta(minutes=5),
        "redacted": ["pin", "card"],
    }
    assert holdfast("queue", "configure", "mail", "retention=7d").out == "Nothing has changed.\n"
    changed = holdfast(
        "queue", "configure", "mail", "retention=default", "worker_expected=false", "max_attempts=5", "--json"
    ).json
    assert changed == [
        {"queue": "mail", "name": "max_attempts", "before": None, "after": 5},
        {"queue": "mail", "name": "retention", "before": "7 days", "after": None},
        {"queue": "mail", "name": "worker_expected", "before": None, "after": False},
    ]
    everywhere = holdfast("queue", "configure", "*", "disposal=export", "dead_retention=forever", "redacted=")
    assert "*: disposal is export, was drop." in everywhere.out
    assert "*: redacted is (none), was password,passwd," in everywhere.out


def test_settings_are_shown_with_where_they_come_from(
    holdfast: Command, hf: Holdfast, holdfast_dsn: str
) -> None:
    hf.settings.configure("mail", retention=timedelta(days=7))
    rows = {row[1]: row for row in holdfast("queue", "settings", "mail").rows}
    assert rows["retention"][:5] == ["mail", "retention", "7", "days", "own"]
    assert rows["max_attempts"][:4] == ["mail", "max_attempts", "3", "default"]
    listed = holdfast("queue", "settings", "--json").json
    assert [row["name"] for row in listed if row["queue"] == "mail"] == ["retention"]
    (limit,) = [row for row in listed if row["name"] == "payload_limit"]
    assert (limit["queue"], limit["value"], limit["own"], limit["builtin"]) == ("*", 262144, False, 262144)
    seen = plain(on_terminal(["queue", "settings", "mail"], dsn=holdfast_dsn, columns=120))
    assert "how long finished jobs and their events are kept" in seen


def test_what_is_wrong_is_refused_with_what_to_do(holdfast: Command) -> None:
    for words, said in {
        ("mail", "retentoin=7d"): "Did you mean 'retention'?",
        ("mail", "retention"): "'retention' is not NAME=VALUE.",
        ("mail", "retention=soon"): "'soon' is not a duration. Write 90s, 5m, 1h30m or 2d.",
        ("mail", "max_attempts=0"): "max_attempts 0: must be an integer from 1 to 32767",
        ("mail", "max_attempts=many"): "max_attempts many: must be an integer from 1 to 32767",
        ("mail", "age_warning=1h"): "must not be above age_critical, which is 10 mins for the queue mail",
        ("mail", "disposal=drop"): "set it for the queue *",
        ("Mail", "max_attempts=1"): "is not a valid name",
        ("mail",): "Missing argument 'NAME=VALUE...'",
    }.items():
        answer = holdfast("queue", "configure", *words)
        assert (answer.code, answer.out) == (2, ""), words
        assert said in answer.err


def test_the_audit_log_tells_who_did_what(holdfast: Command, hf: Holdfast) -> None:
    holdfast("queue", "configure", "mail", "retention=7d")
    holdfast("queue", "pause", "mail")
    holdfast("queue", "pause", "other")
    assert [row[2:4] for row in holdfast("audit").rows] == [
        ["pause", "other"],
        ["pause", "mail"],
        ["configure", "mail"],
    ]
    (change,) = holdfast("audit", "--target", "mail", "--action", "configure", "--since", "1h", "--json").json
    assert change["detail"] == {"retention": [None, "7 days"]}
    assert change["who"]
    assert change["at"].endswith("Z")
    assert len(holdfast("audit", "--limit", "1").rows) == 1
    assert holdfast("audit", "--who", "nobody", "--json").json == []


def test_retention_is_shown_and_days_are_exported(
    holdfast: Command, hf: Holdfast, drain: Drain, clock: Clock, tmp_path: Path
) -> None:
    @hf.task(name="mail")
    async def mail(to: str) -> str:
        return f"sent to {to}"

    holdfast("queue", "configure", "*", "disposal=export", "retention=10d")
    hf.settings.configure("short", retention=timedelta(days=1))
    clock.advance(days=1)
    day = clock.now().date()
    mail.enqueue(to='Ann "A", Lee')
    drain()
    assert holdfast("export", str(tmp_path / "none")).out == "FILE  ROWS  BYTES  MARKED  SHA256\n"
    shown = holdfast("retention", "--json").json
    assert {"queue": "short", "name": "retention", "value": "1 day"} in shown["settings"]
    (ours,) = [row for row in shown["partitions"] if row["partition"] == f"finished_{day:%Y%m%d}"]
    assert (ours["fate"], ours["exported_at"]) == ("export", None)
    text = holdfast("retention").out
    assert "short  retention       1 day" in text
    assert "wait for an export" in text

    clock.advance(days=20)
    files = {file["partition"]: file for file in holdfast("export", str(tmp_path), "--json").json}
    ours = files[f"finished_{day:%Y%m%d}"]
    assert (ours["rows"], ours["marked"]) == (1, True)
    with (tmp_path / ours["name"]).open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert json.loads(row["payload"]) == {"to": 'Ann "A", Lee'}
    assert json.loads(row["result"]) == 'sent to Ann "A", Lee'
    holdfast("tick")
    assert hf.jobs.list() == []
    answer = holdfast("export", str(tmp_path), "--day", "yesterday")
    assert answer.code == 2
    assert "'yesterday' is not a day, such as 2026-01-31." in answer.err

"""Settings, retention and exports from Python, sync and async."""

import asyncio
import csv
import gzip
import hashlib
import io
import json
import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import BadName, BadValue, Context, Holdfast, UnknownOption
from holdfast.testing import Clock
from tests.fixtures import Ask, Drain, StartWorker, Until


@pytest.fixture
def day_with_jobs(hf: Holdfast, clock: Clock, drain: Drain) -> date:
    """A day with a completed job, a cancelled one and an event, in partitions of its own."""

    @hf.task(name="greet")
    async def greet(name: str, ctx: Context) -> dict[str, Any]:
        ctx.event("said", {"to": name})
        return {"greeting": f"hello\n{name}\\"}

    clock.advance(days=1)
    day = clock.now().date()
    greet.enqueue(name="ä, \"b\" 'c'")  # type: ignore[call-overload]
    hf.enqueue("other").cancel()
    drain()
    return day


def test_settings_are_keywords_with_types(hf: Holdfast) -> None:
    changed = hf.settings.configure(
        "mail", retention=timedelta(days=7), age_critical="never", redacted={"pin"}
    )
    assert {change.name: (change.before, change.after) for change in changed} == {
        "retention": (None, "7 days"),
        "age_critical": (None, "never"),
        "redacted": (None, ["pin"]),
    }
    rows = {row.name: row for row in hf.settings.list("mail")}
    assert (rows["retention"].value, rows["retention"].own) == (timedelta(days=7), True)
    assert (rows["retention"].builtin, rows["age_critical"].value) == ("30 days", "never")
    assert (rows["max_attempts"].value, rows["max_attempts"].own) == (3, False)
    assert hf.settings.configure("mail", retention=None)[0].after is None
    with pytest.raises(UnknownOption, match="Did you mean 'retention'") as unknown:
        hf.settings.configure("mail", retentoin=1)  # type: ignore[call-arg]
    assert unknown.value.suggestion == "retention"
    with pytest.raises(BadValue, match="max_attempts 0: must be an integer from 1 to 32767") as bad:
        hf.settings.configure("mail", max_attempts=0)
    assert bad.value.field == "max_attempts"
    with pytest.raises(BadValue, match="retention"):
        hf.settings.configure("mail", retention=object())  # type: ignore[arg-type]
    with pytest.raises(BadName):
        hf.settings.configure("Mail", max_attempts=1)

    async def twins() -> None:
        await hf.settings.aconfigure("*", max_attempts=9)
        assert {row.name: row.value for row in await hf.settings.alist("mail")}["max_attempts"] == 9
        assert [row.target for row in await hf.audit.alist(action="configure")] == ["*", "mail", "mail"]
        assert await hf.retention.alist() == hf.retention.list()
        assert await hf.retention.adue() == []

    asyncio.run(twins())
    assert [
        row.detail for row in hf.audit.list(target="*", since=datetime.now(UTC) - timedelta(hours=1))
    ] == [{"max_attempts": [3, 9]}]


def test_a_setting_holds_for_a_worker_that_runs(hf: Holdfast, work: StartWorker, until: Until) -> None:
    @hf.task(name="fail", queue="mail")
    async def fail() -> None:
        raise RuntimeError

    work()
    hf.settings.configure("mail", max_attempts=1)
    once = fail.enqueue()
    until(lambda: once.refresh().state == "dead")
    hf.settings.configure("mail", max_attempts=2, retry_base=3600)
    twice = fail.enqueue()
    until(lambda: twice.refresh().state == "scheduled")


def test_a_worker_clears_a_queue_that_keeps_nothing(
    hf: Holdfast, clock: Clock, work: StartWorker, until: Until, ask: Ask
) -> None:
    @hf.task(name="a", queue="gone")
    async def a() -> int:
        return 7

    hf.settings.configure("gone", retention=0)
    work()
    assert a.enqueue().result(timeout=20) == 7
    clock.advance(minutes=2)
    until(lambda: ask("select from holdfast.finished") == [])


def test_what_is_due_is_exported_with_a_manifest_and_goes_then(
    hf: Holdfast, day_with_jobs: date, clock: Clock, tmp_path: Path, ask: Ask
) -> None:
    hf.settings.configure("*", disposal="export")
    clock.advance(days=60)
    ask("select holdfast.upkeep()")
    ours = f"finished_{day_with_jobs:%Y%m%d}"
    assert ours in {due.partition for due in hf.retention.due()}
    files = {file.partition: file for file in hf.retention.export(tmp_path, compress=True)}
    file = files[ours]
    assert (file.rows, file.marked, file.name) == (2, True, f"{ours}.csv.gz")
    assert file.location == str(tmp_path / file.name)
    written = (tmp_path / file.name).read_bytes()
    manifest = json.loads((tmp_path / f"{ours}.manifest.json").read_text())
    assert manifest["sha256"] == file.sha256 == hashlib.sha256(written).hexdigest()
    assert (manifest["rows"], manifest["bytes"], manifest["compression"]) == (2, len(written), "gzip")
    assert manifest["from"] == f"{day_with_jobs}T00:00:00+00:00"
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(written).decode(), newline="")))
    assert [column["name"] for column in manifest["columns"]] == list(rows[0])
    assert {"name": "finished_at", "type": "timestamp with time zone"} in manifest["columns"]
    assert {row["state"] for row in rows} == {"completed", "cancelled"}
    (greeted,) = [row for row in rows if row["task"] == "greet"]
    assert json.loads(greeted["payload"]) == {"name": "ä, \"b\" 'c'"}
    assert json.loads(greeted["result"]) == {"greeting": "hello\nä, \"b\" 'c'\\"}
    assert datetime.fromisoformat(greeted["finished_at"]).date() == day_with_jobs
    assert files[ours.replace("finished", "event")].rows >= 1
    assert not list(tmp_path.glob(".*")), "no half a file is left"
    assert hf.retention.due() == []
    assert hf.retention.export(tmp_path) == []
    ask("select holdfast.upkeep()")
    assert hf.jobs.list() == []
    assert [row.target for row in hf.audit.list(action="export")][-1] in files


def test_a_day_is_exported_on_request_as_lines_of_json(
    hf: Holdfast, day_with_jobs: date, tmp_path: Path
) -> None:
    files = asyncio.run(hf.retention.aexport(tmp_path, format="jsonl", day=day_with_jobs))
    assert [(file.name, file.rows, file.marked) for file in files] == [
        (f"finished_{day_with_jobs:%Y%m%d}.jsonl", 2, False),
        (f"event_{day_with_jobs:%Y%m%d}.jsonl", files[1].rows, False),
    ]
    lines = [json.loads(line) for line in (tmp_path / files[0].name).read_text().splitlines()]
    (greeted,) = [line for line in lines if line["task"] == "greet"]
    assert greeted["result"] == {"greeting": "hello\nä, \"b\" 'c'\\"}
    assert greeted["finished_at"].startswith(str(day_with_jobs))
    assert len(hf.jobs.list()) == 2, "it is a copy"


def test_exports_are_for_their_owner_alone(hf: Holdfast, day_with_jobs: date, tmp_path: Path) -> None:
    def rights(path: Path) -> str:
        return f"{path.stat().st_mode & 0o777:o}"

    before = os.umask(0)
    try:
        made, given = tmp_path / "made", tmp_path / "given"
        given.mkdir(0o755)
        for directory in (made, given):
            hf.retention.export(directory, day=day_with_jobs)
    finally:
        os.umask(before)
    assert (rights(made), rights(given)) == ("700", "755")
    assert {rights(file) for directory in (made, given) for file in directory.iterdir()} == {"600"}


def test_a_function_receives_the_chunks_of_each_file_and_an_error_marks_nothing(
    hf: Holdfast, day_with_jobs: date, clock: Clock
) -> None:
    hf.settings.configure("*", disposal="export")
    clock.advance(days=60)
    due = hf.retention.due()
    assert due

    def breaks(name: str, chunks: Any) -> None:
        raise OSError(name)

    with pytest.raises(OSError, match=r"\.csv$"):
        hf.retention.export(to=breaks)
    with pytest.raises(BadValue, match="has not read all chunks"):
        hf.retention.export(to=lambda name, chunks: None)
    assert hf.retention.due() == due
    bucket: dict[str, bytes] = {}

    def upload(name: str, chunks: Any) -> str:
        bucket[name] = b"".join(chunks)
        return f"s3://bucket/{name}"

    files = hf.retention.export(to=upload)
    assert len(files) == len(due)
    assert {file.location for file in files} == {f"s3://bucket/{file.name}" for file in files}
    assert set(bucket) == {file.name for file in files} | {
        f"{file.name.removesuffix('.csv')}.manifest.json" for file in files
    }
    for wrong in ({"directory": None}, {"directory": ".", "to": upload}, {"to": upload, "format": "xml"}):
        with pytest.raises(BadValue):
            hf.retention.export(**wrong)
    with pytest.raises(BadValue, match="must be a date"):
        hf.retention.export(to=upload, day="2026-01-31")  # type: ignore[arg-type]

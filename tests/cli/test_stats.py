"""Numbers about queues, and whether they are well, from a command line."""

import pytest

from holdfast import Holdfast
from holdfast.cli.stats import BARS, PLAIN_BARS, sparkline
from holdfast.testing import Clock
from tests.cli.programs import Command, on_terminal, plain
from tests.fixtures import Ask, Drain


def test_stats_show_what_was_done_in_the_last_hour(
    holdfast: Command, hf: Holdfast, drain: Drain, ask: Ask
) -> None:
    @hf.task(name="done", queue="mail")
    async def done() -> None: ...

    @hf.task(name="broken", queue="mail", max_attempts=1)
    async def broken() -> None:
        raise RuntimeError

    hf.enqueue_many(done.call() for _ in range(3))
    broken.enqueue()
    drain()
    ask("select holdfast.fold_stats()")
    hf.enqueue("other")
    default, mail = holdfast("stats", "--json").json
    assert (mail["hour"]["completed"], mail["hour"]["failed"], mail["hour"]["failures"]) == (3, 1, 0.25)
    assert mail["day"]["wait"]["p95"] > 0
    assert sum(mail["minutes"]) == 3
    assert default["hour"]["completed"] == 0
    table = holdfast("stats", "--queue", "mail")
    (row,) = table.rows
    per_minute = float(row[row.index("25.0%") - 1])
    assert per_minute == pytest.approx(mail["hour"]["per_second"] * 60, rel=0.1)  # a moment later
    assert row[-1].isascii()
    by_task = holdfast("stats", "--by", "task").rows
    assert [row[:2] for row in by_task] == [["default", "other"], ["mail", "broken"], ["mail", "done"]]
    only = holdfast("stats", "--by", "task", "--queue", "mail", "--json").json
    assert [(row["task"], row["hour"]["completed"], row["counts"]["dead"]) for row in only] == [
        ("broken", 0, 1),
        ("done", 3, 0),
    ]


@pytest.mark.parametrize("by", ["queue", "task"])
def test_stats_fit_a_terminal_of_eighty_columns_and_cut_nothing(
    hf: Holdfast, holdfast_dsn: str, drain: Drain, ask: Ask, by: str
) -> None:
    @hf.task(name="mail.welcome", queue="notifications")
    async def welcome() -> None: ...

    @hf.task(name="report.build", queue="reports", max_attempts=1)
    async def build() -> None:
        raise RuntimeError

    hf.enqueue_many(welcome.call() for _ in range(1200))
    build.enqueue()
    drain()
    ask("select holdfast.fold_stats()")
    hf.enqueue_many(welcome.call() for _ in range(12))
    hf.enqueue("later", queue="reports", delay=3600)
    hf.queues.pause("reports")
    page = plain(on_terminal(["stats", "--by", by], dsn=holdfast_dsn, columns=80))
    head, *lines = page.splitlines()
    assert max(map(len, [head, *lines])) <= 80
    assert "…" not in page
    wanted = {"queue", "pending", "running", "dead", "failed", "completed" if by == "queue" else "task"}
    assert wanted <= set(head.split())
    assert "last hour" in plain(on_terminal(["stats", "--by", by], dsn=holdfast_dsn, columns=160))


def test_stats_mark_as_estimated_also_what_the_sample_has_none_of(
    holdfast: Command, hf: Holdfast, ask: Ask
) -> None:
    ask(
        "insert into holdfast.finished (id, queue, priority, task, payload, state, attempt, max_attempts, "
        "created_at, finished_at) select gen_random_uuid(), 'mail', 100, 'a', '{}', 'completed', 1, 3, "
        "now(), now() from generate_series(1, 60000)"
    )
    hf.enqueue("a", queue="other")
    mail, other = holdfast("stats", "--json").json
    assert sorted(mail["estimated"]) == sorted(other["estimated"]) == ["cancelled", "completed"]
    assert other["counts"]["pending"] == 1


def test_health_exits_with_what_monitoring_expects(
    holdfast: Command, hf: Holdfast, clock: Clock, ask: Ask
) -> None:
    assert holdfast("health").code == 0
    ask("select holdfast.register(lease_time => '1 day')")
    hf.enqueue("a", queue="mail")
    answer = holdfast("health", "mail")
    assert (answer.code, answer.rows[0][:2]) == (0, ["mail", "OK"])
    clock.advance(minutes=2)
    assert holdfast("health").code == 1
    clock.advance(minutes=20)
    answer = holdfast("health", "mail", "--json")
    assert answer.code == 2
    (mail,) = answer.json
    assert (mail["queue"], mail["status"], mail["waiting"], mail["workers"]) == ("mail", "CRITICAL", 1, 1)
    assert mail["message"].endswith("longer than 10 min is critical")
    answer = holdfast("health", "mial")
    assert answer.code == 3
    assert "known are mail" in answer.err


def test_a_sparkline_shows_a_little_as_more_than_nothing() -> None:
    minutes = [0] * 30 + [1] + [0] * 26 + [500, 500, 500]
    assert sparkline(minutes) == "▁" * 10 + "▂" + "▁" * 8 + "█"
    assert sparkline(minutes, PLAIN_BARS) == "_" * 10 + "." + "_" * 8 + "#"
    assert sparkline([0] * 60) == ""
    assert len(BARS) == len(PLAIN_BARS)

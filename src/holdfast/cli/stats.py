"""The command that counts the jobs of queues, and those finished in the last hour."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import click

from holdfast.cli import times
from holdfast.cli.names import note_unknown_filter
from holdfast.cli.output import STATE_STYLES, Column, on_terminal, show_live, show_rows
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.client import Holdfast
from holdfast.operations.stats import Activity, By, Stat, Statistic
from holdfast.values.job import JobState

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*%#"
BAR_MINUTES = 3  # twenty bars for an hour
# Groups of states that are counted from a sample if they have very many jobs. A sample may miss a queue.
SAMPLED = (JobState.COMPLETED, JobState.CANCELLED), (JobState.DEAD,), (JobState.SCHEDULED,)


@dataclass
class QueueStats:
    """The counts of one queue, or of one task in it: its jobs in every state, and the recent throughput.

    Finished jobs are counted by queue only.
    """

    queue: str
    task: str | None
    paused: bool
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((state.value for state in JobState), 0)
    )
    estimated: list[str] = field(default_factory=list)
    oldest_pending_at: datetime | None = None
    hour: Activity | None = None
    day: Activity | None = None
    minutes: list[int] = field(default_factory=list)

    def add(self, stat: Stat) -> None:
        self.counts[stat.state] = stat.jobs
        if stat.estimated:
            self.estimated.append(stat.state)
        if stat.state == JobState.PENDING:
            self.oldest_pending_at = stat.oldest_at


@click.command()
@common_options
@click.option(
    "--by",
    type=click.Choice(["queue", "task"]),
    default="queue",
    show_default=True,
    help="Print one line for each.",
)
@click.option("--queue", metavar="QUEUE", help="Only this queue.")
@click.option("--watch", is_flag=True, help="On a terminal, update the table until Ctrl-C.")
@pass_settings
def stats(settings: Settings, *, by: By, queue: str | None, watch: bool) -> None:
    """Count the jobs of each queue, and show the throughput of the last hour.

    Finished jobs count as long as they are kept. Very large counts are estimated: ~5000000. Throughput, the
    share of failed attempts, and the times that jobs waited and ran (median and 95 %) are those of the last
    hour. The bars show its throughput, three minutes each. --json has the last day as well.
    """
    with settings.connect() as hf:
        if watch and on_terminal() and not settings.as_json:
            show_live(_columns(by), lambda: _look(hf, by, queue), empty="No jobs.")
            return
        found = _look(hf, by, queue)
        if not found:
            note_unknown_filter(hf, queue, None)
    show_rows(_columns(by), found, as_json=settings.as_json, empty="No jobs.")


def _look(hf: Holdfast, by: By, queue: str | None) -> list[QueueStats]:
    done = hf.stats.recent(by=by, queue=queue)
    if by == "task":
        return [_of_task(row) for row in done]
    rows = {
        row.queue: _with_done(QueueStats(row.queue, None, row.paused_at is not None), row) for row in done
    }
    found = hf.stats.count()
    for stat in found:
        if queue in {None, stat.queue}:
            rows.setdefault(stat.queue, QueueStats(stat.queue, None, stat.paused)).add(stat)
    estimated = {stat.state for stat in found if stat.estimated}
    for states in SAMPLED:
        if estimated & set(states):
            for row in rows.values():
                row.estimated += [state for state in states if state not in row.estimated]
    return [rows[name] for name in sorted(rows)]


def _of_task(row: Statistic) -> QueueStats:
    stats = _with_done(QueueStats(row.queue, row.task, row.paused_at is not None), row)
    stats.counts = {
        "scheduled": row.scheduled,
        "pending": row.waiting,
        "running": row.running,
        "dead": row.dead,
    }
    stats.estimated = ["pending", "scheduled", "dead"] if row.estimated else []
    stats.oldest_pending_at = row.waiting_since
    return stats


def _with_done(stats: QueueStats, row: Statistic) -> QueueStats:
    stats.hour, stats.day, stats.minutes = row.hour, row.day, row.minutes
    return stats


def sparkline(minutes: Sequence[int], bars: str = BARS) -> str:
    """
    >>> sparkline([0, 0, 0, 1, 1, 2, 8, 8, 8], PLAIN_BARS)
    '_.#'
    """
    sums = [sum(minutes[at : at + BAR_MINUTES]) for at in range(0, len(minutes), BAR_MINUTES)]
    most = max(sums, default=0)
    if not most:
        return ""
    # Only zero has the lowest bar.
    return "".join(bars[max(1, round(each * (len(bars) - 1) / most)) if each else 0] for each in sums)


def _columns(by: By) -> list[Column[QueueStats]]:
    states = [state.value for state in JobState]
    if by == "task":
        states = ["scheduled", "pending", "running", "dead"]
    return [
        Column("QUEUE", lambda row: row.queue),
        *([Column[QueueStats]("TASK", lambda row: row.task)] if by == "task" else []),
        *(_count(state) for state in states),
        Column(
            "OLDEST",
            lambda row: times.absolute(row.oldest_pending_at),
            seen=lambda row: times.waits(row.oldest_pending_at),
            spare=5,
        ),
        Column("PAUSED", lambda row: "paused" if row.paused else "", style="bold yellow"),
        Column(
            "PER_MINUTE",
            lambda row: _per_minute(row, "{:.4g}"),
            seen=lambda row: _per_minute(row, "{:.2g}"),
            heading="per min",
            right=True,
            spare=2,
        ),
        Column("FAILURES", _failures, heading="failed", right=True, style=_failure_style),
        *_times("wait", "waited", spare=1),
        *_times("run", "ran", spare=3),
        Column("ESTIMATED", lambda row: ",".join(row.estimated), seen=lambda _: ""),
        Column(
            "LAST_HOUR",
            lambda row: sparkline(row.minutes, PLAIN_BARS),
            seen=lambda row: sparkline(row.minutes),
            heading="last hour",
            style="green",
            spare=6,
        ),
    ]


def _count(state: str) -> Column[QueueStats]:
    return Column(
        state.upper(),
        lambda row: row.counts[state],
        seen=lambda row: f"{'~' if state in row.estimated else ''}{row.counts[state]}",
        right=True,
        style=lambda row: STATE_STYLES[state] if row.counts[state] else "dim",
        spare={"cancelled": 9, "claimed": 8, "scheduled": 4}.get(state, 0),
    )


def _times(what: str, heading: str, *, spare: int) -> list[Column[QueueStats]]:
    """Return the columns for the median and the 95th percentile of a time."""
    shared = {"p50": (heading, spare), "p95": ("p95", 7)}
    return [
        Column(
            f"{what}_{figure}".upper(),
            lambda row, figure=figure: _seconds(row, what, figure),  # type: ignore[misc]
            seen=lambda row, figure=figure: _span(row, what, figure),  # type: ignore[misc]
            heading=head,
            right=True,
            spare=spared,
        )
        for figure, (head, spared) in shared.items()
    ]


def _per_minute(row: QueueStats, shape: str) -> str:
    if not row.hour or not row.hour.completed:
        return ""
    rate = row.hour.per_second * 60
    return f"{rate:.0f}" if rate >= 100 else shape.format(rate)  # noqa: PLR2004 - no exponents


def _failures(row: QueueStats) -> str:
    return f"{row.hour.failures:.1%}" if row.hour and row.hour.failures else ""


def _failure_style(row: QueueStats) -> str:
    return "bold red" if row.hour and (row.hour.failures or 0) > 0.25 else ""  # noqa: PLR2004 - as health does


def _time(row: QueueStats, what: str, figure: str) -> timedelta | None:
    if row.hour is None:
        return None
    found: timedelta | None = getattr(getattr(row.hour, what), figure)
    return found


def _seconds(row: QueueStats, what: str, figure: str) -> str:
    found = _time(row, what, figure)
    return "" if found is None else f"{found.total_seconds():.3g}"


def _span(row: QueueStats, what: str, figure: str) -> str:
    found = _time(row, what, figure)
    return "" if found is None else times.span(found)

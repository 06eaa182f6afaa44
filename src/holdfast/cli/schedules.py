"""Commands about schedules: add, change, list, show, pause, resume, remove, run, next."""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from holdfast.cli import times, values
from holdfast.cli.names import noting_unknown
from holdfast.cli.output import Column, clean, on_terminal, show_json, show_rows, show_table
from holdfast.cli.queues import Actions
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.client import Holdfast
from holdfast.operations.schedules import ScheduleRow
from holdfast.values.errors import nearest
from holdfast.values.limits import ATTEMPTS

T = TypeVar("T")

_SHOWN = 5


@click.group(cls=Actions)
@common_options
def schedule() -> None:
    """List schedules; add, change, pause, run and remove them."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a schedule to a command."""
    options = [
        click.option("--cron", help="Its times, as a cron expression: '0 9 * * mon-fri'."),
        click.option("--every", type=values.duration, help="The interval between its times: 30s, 15m, 1d."),
        click.option("--zone", help="The time zone of the cron expression: Europe/Berlin.  [default: UTC]"),
        click.option("--queue", help="The queue of its jobs.  [default: default]"),
        click.option("--priority", type=values.priority, help="A number, or user, system, backfill."),
        click.option("--max-attempts", type=click.IntRange(ATTEMPTS[0], ATTEMPTS[-1])),
        click.option(
            "--missed",
            type=click.Choice(["once", "all", "skip"]),
            help="Times missed in an outage: run the last one, all, or none.  [default: once]",
        ),
        click.option(
            "--overlap/--no-overlap", default=None, help="Make a job even if the last one is unfinished."
        ),
        click.option("--jitter", type=values.duration, help="A random delay of up to this length."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@schedule.command()
@click.argument("name")
@click.argument("task")
@click.argument("payload", metavar="[JSON]", type=values.json, default="{}")
@common_options
@_options
@pass_settings
def add(settings: Settings, /, name: str, task: str, payload: Any, **options: Any) -> None:
    """Run TASK at regular times, under a NAME of your choice.

    \b
      holdfast schedule add nightly report.make --cron '0 2 * * *' --zone Europe/Berlin
      holdfast schedule add beat ping '{"to": "monitor"}' --every 30s
    """
    if (options["cron"] is None) == (options["every"] is None):
        raise click.UsageError("Give either --cron or --every.")
    with settings.connect() as hf:
        with noting_unknown(hf, task, options["queue"]):
            hf.schedules.add(name, task, payload, declared=False, **options)
        _show(settings, _known(hf, name))


@schedule.command()
@click.argument("name")
@common_options
@click.option("--task", help="The task that it runs.")
@click.option("--payload", metavar="JSON", type=values.json, help="The arguments of the task.")
@_options
@pass_settings
def change(settings: Settings, /, name: str, *, task: str | None, payload: Any, **options: Any) -> None:
    """Change the given options of a schedule, and leave the rest.

    A schedule that code declares belongs to you from then on: the next deploy does not change it back. To
    give it back to the code, remove it.
    """
    said = {option: value for option, value in options.items() if value is not None}
    if "cron" in said and "every" in said:
        raise click.UsageError("Give either --cron or --every.")
    if not said and task is None and payload is None:
        raise click.UsageError("Give at least one option: --cron, --zone, --payload …")
    if payload is not None:
        said["payload"] = payload
    with settings.connect() as hf:
        _rows(hf, [name])
        hf.schedules.change(name, task, **said)
        _show(settings, _known(hf, name))


@schedule.command("list")
@common_options
@pass_settings
def list_(settings: Settings) -> None:
    """List all schedules in words, with their next five times."""
    with settings.connect() as hf:
        found = hf.schedules.list(upcoming=_SHOWN)
    show_rows(
        _COLUMNS, found, as_json=settings.as_json, empty="No schedules. Add one: holdfast schedule add --help"
    )


@schedule.command()
@click.argument("name")
@common_options
@pass_settings
def show(settings: Settings, name: str) -> None:
    """Show one schedule in full, with its next five times."""
    with settings.connect() as hf:
        _show(settings, _known(hf, name))


_names = click.argument("names", metavar="NAME...", nargs=-1, required=True)


@schedule.command()
@_names
@common_options
@pass_settings
def pause(settings: Settings, names: tuple[str, ...]) -> None:
    """Make no jobs at the times of these schedules. A deploy does not resume them."""
    _each(settings, names, lambda hf, name: "paused" if hf.schedules.pause(name) else "was paused")


@schedule.command()
@_names
@common_options
@pass_settings
def resume(settings: Settings, names: tuple[str, ...]) -> None:
    """Resume schedules from their next time. The times that passed while they were paused are skipped."""
    _each(settings, names, lambda hf, name: "resumed" if hf.schedules.resume(name) else "was not paused")


@schedule.command()
@_names
@common_options
@pass_settings
def remove(settings: Settings, names: tuple[str, ...]) -> None:
    """Remove schedules but not their jobs. A declared schedule comes back when a worker starts."""
    _each(settings, names, lambda hf, name: "removed" if hf.schedules.remove(name) else "unknown")


@schedule.command()
@_names
@common_options
@pass_settings
def run(settings: Settings, names: tuple[str, ...]) -> None:
    """Run the jobs of schedules now, and print the ids. The next times do not change."""
    started = _of_each(settings, names, lambda hf, name: hf.schedules.run(name).id)
    if settings.as_json:
        show_json([{"name": name, "id": job_id} for name, job_id in started])
        return
    for name, job_id in started:
        click.echo(f"Enqueued {name} as {click.style(str(job_id), bold=True)}" if on_terminal() else job_id)


@schedule.command("next")
@click.argument("cron")
@common_options
@click.option("--zone", default="UTC", show_default=True, help="The time zone: Europe/Berlin.")
@click.option("--limit", "--amount", "limit", type=click.IntRange(1, 1000), default=_SHOWN, show_default=True)
@pass_settings
def next_(settings: Settings, cron: str, *, zone: str, limit: int) -> None:
    """Show a cron expression in words and its next times. Nothing is written.

    \b
      holdfast schedule next '0 9 * * mon-fri' --zone Europe/Berlin
    """
    moment, found = datetime.now(UTC), list[datetime]()
    with settings.connect() as hf:
        words = hf.schedules.in_words(cron)
        while len(found) < limit:
            moment = hf.schedules.next_occurrence(cron, moment, zone)
            found.append(moment)
    if settings.as_json:
        show_json({"words": words, "upcoming": found})
        return
    click.echo(f"{words} ({zone})")
    for moment in found:
        click.echo(f"  {_when(moment, zone)}")


def _known(hf: Holdfast, name: str) -> ScheduleRow:
    return _rows(hf, [name], upcoming=_SHOWN)[name]


def _rows(hf: Holdfast, names: Iterable[str], *, upcoming: int = 0) -> dict[str, ScheduleRow]:
    """Return all schedules by name. Raises a usage error if one of these names is missing."""
    rows = {row.name: row for row in hf.schedules.list(upcoming=upcoming)}
    for name in names:
        if name not in rows:
            near = nearest(name, rows)
            hint = f"Did you mean {near!r}?" if near else "See holdfast schedule list."
            raise click.UsageError(f"There is no schedule {name!r}. {hint}")
    return rows


def _of_each(
    settings: Settings, names: Iterable[str], action: Callable[[Holdfast, str], T]
) -> list[tuple[str, T]]:
    """Apply the action to each schedule, or to none if one name is unknown."""
    with settings.connect() as hf:
        _rows(hf, names)
        return [(name, action(hf, name)) for name in dict.fromkeys(names)]


def _each(settings: Settings, names: tuple[str, ...], action: Callable[[Holdfast, str], str]) -> None:
    outcomes = _of_each(settings, names, action)
    if settings.as_json:
        show_json([{"name": name, "outcome": outcome} for name, outcome in outcomes])
    else:
        show_table(_OUTCOME, outcomes, empty="")


def _show(settings: Settings, row: ScheduleRow) -> None:
    if settings.as_json:
        show_json(row)
        return
    lines = {
        "name": row.name,
        "task": row.task,
        "payload": None if row.payload == {} else json.dumps(row.payload, ensure_ascii=False),
        "says": f"{row.words} ({row.cron}, {row.zone})" if row.cron else row.words,
        "queue": f"{row.queue}, priority {row.priority}",
        "attempts": row.max_attempts,
        "missed": row.missed,
        "overlap": "allowed" if row.overlap else "skipped",
        "jitter": times.span(row.jitter) if row.jitter else None,
        "by": "code" if row.declared else "operator",
        "paused": row.paused_at and _when(row.paused_at, row.zone),
        "last": row.last_at and _when(row.last_at, row.zone),
        "last job": row.last_job,
        "skipped": row.skipped or None,
        "error": row.error,
    }
    for title, value in lines.items():
        if value is not None:
            click.echo(f"{title:<9} {clean(value)}")
    for number, moment in enumerate(row.upcoming):
        click.echo(f"{'' if number else 'next':<9} {_when(moment, row.zone)}")


def _when(moment: datetime, zone: str) -> str:
    """Return the time in the zone of the schedule, with its offset from UTC."""
    try:
        there = moment.astimezone(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):  # the database knows more zones than this machine
        return times.absolute(moment)
    said = there.strftime("%a %Y-%m-%d %H:%M:%S %z")
    return f"{said} ({times.ago(moment)})" if on_terminal() else said


def _next(row: ScheduleRow) -> str:
    return "paused" if row.paused_at else times.ago(row.upcoming[0])


def _then(row: ScheduleRow) -> str:
    """Return the next times; each new day is written once."""
    said, day = list[str](), None
    for moment in (moment.astimezone() for moment in row.upcoming):
        said.append(
            moment.strftime("%H:%M:%S" if moment.date() == day else "%a %d %b %H:%M:%S").removesuffix(":00")
        )
        day = moment.date()
    return ", ".join(said)


_COLUMNS: list[Column[ScheduleRow]] = [
    Column("NAME", lambda row: row.name, style="bold"),
    Column("TASK", lambda row: row.task, spare=2),
    Column(
        "NEXT_AT",
        lambda row: "paused" if row.next_at is None else times.absolute(row.next_at),
        seen=_next,
        style=lambda row: "magenta" if row.paused_at else "",
    ),
    Column(
        "LAST_AT",
        lambda row: None if row.last_at is None else times.absolute(row.last_at),
        seen=lambda row: None if row.last_at is None else times.ago(row.last_at),
        spare=1,
    ),
    Column("ZONE", lambda row: row.zone, seen=lambda row: row.zone if row.cron else None),
    Column("BY", lambda row: "code" if row.declared else "operator", spare=4),
    Column("ERROR", lambda row: row.error, style="red"),
    Column("SAYS", lambda row: row.words),
    Column(
        "TIMES",
        lambda row: " ".join(map(times.absolute, row.upcoming)),
        seen=_then,
        heading="next five",
        spare=3,
    ),
]

_OUTCOME: list[Column[tuple[str, str]]] = [
    Column("NAME", lambda row: row[0]),
    Column("OUTCOME", lambda row: row[1]),
]

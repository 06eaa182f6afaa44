"""Commands that change and show the settings of queues."""

import json
from datetime import timedelta
from typing import Any, cast

import click

from holdfast.cli import values
from holdfast.cli.names import known_queues, note_unknown
from holdfast.cli.output import Column, show_json, show_table
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.settings import DURATIONS, NAMES, Change, SettingKeywords, SettingRow
from holdfast.values.errors import UnknownOption

_BACK = "default"
_LONG = 30


@click.command()
@click.argument("queue")
@click.argument("pairs", metavar="NAME=VALUE...", nargs=-1, required=True)
@common_options
@pass_settings
def configure(settings: Settings, queue: str, pairs: tuple[str, ...]) -> None:
    """Change settings of a queue, or of all queues by the name '*'. They apply at once, without a restart.

    \b
      holdfast queue configure mail retention=7d age_warning=5m
      holdfast queue configure mail retention=default
      holdfast queue configure '*' disposal=export redacted=password,token

    Write a duration as 90s, 5m, 1h30m, 7d, forever or never, and a list with commas. The word default
    restores the default. `holdfast queue settings` lists the settings.
    """
    said = cast("SettingKeywords", dict(_read(pair) for pair in pairs))
    with settings.connect() as hf:
        known = known_queues(hf)
        changed = hf.settings.configure(queue, **said)
    if queue != "*":
        note_unknown("queue", queue, known)
    if settings.as_json:
        show_json([{"queue": queue, **change._asdict()} for change in changed])
        return
    for change in changed:
        click.echo(f"{queue}: {change.name} is {_after(change)}, was {_said(change.before)}.")
    if not changed:
        click.echo("Nothing has changed.")


@click.command("settings")
@click.argument("queue", required=False)
@common_options
@pass_settings
def settings(settings: Settings, queue: str | None) -> None:
    """Show the settings of a queue. Without a queue: the defaults, then each queue's own settings."""
    with settings.connect() as hf:
        found = hf.settings.list(queue)
    shown = [row for row in found if queue is not None or row.queue == "*" or row.own]
    if settings.as_json:
        show_json([{**row._asdict(), "value": row.shown} for row in shown])
    else:
        show_table(_COLUMNS, shown, empty="No settings.")


def _read(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals:
        raise click.BadParameter(f"{pair!r} is not NAME=VALUE.", param_hint="NAME=VALUE")
    if name not in NAMES:
        raise UnknownOption.among(name, NAMES, owner="a queue")
    return name, _value(name, text.strip())


def _value(name: str, text: str) -> Any:
    if text.lower() == _BACK:
        return None
    if text.lower() in {"forever", "never"} or name == "disposal":
        return text.lower()
    if name in DURATIONS:
        return values.duration(text)
    if name == "redacted":
        return [word for word in text.split(",") if word]
    try:
        return json.loads(text.lower())
    except json.JSONDecodeError:
        return text  # the database checks it


def _after(change: Change) -> str:
    return "the default of all queues" if change.after is None else _said(change.after)


def _said(value: Any) -> str:
    match value:
        case None:
            return _BACK
        case str() | timedelta():
            return str(value)
        case list():
            return ",".join(map(str, value)) or "(none)"
        case _:
            return json.dumps(value)


def _seen(row: SettingRow) -> str:
    return "-" if row.shown is None else _said(row.shown)


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _whose(row: SettingRow) -> str:
    if row.queue == "*":
        return "changed" if row.own else "built in"
    return "own" if row.own else "default"


_COLUMNS: list[Column[SettingRow]] = [
    Column("QUEUE", lambda row: row.queue),
    Column("SETTING", lambda row: row.name),
    Column("VALUE", _seen, seen=lambda row: _short(_seen(row)), style=lambda row: "bold" if row.own else ""),
    Column("FROM", _whose),
    Column("MEANING", lambda row: row.meaning, style="dim"),
]

"""Write the generated pages of the reference: the SQL functions and the command line.

    .venv/bin/python docs/generate_reference.py

The SQL page comes from the comments in a freshly installed schema, the other page from the help of the
commands. A test compares both pages with the output of this script.
"""
# ruff: noqa: INP001 - a script beside the pages, not a package

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import psycopg

from holdfast import embedded, schema
from holdfast.cli.root import COMMANDS, root
from holdfast.testing.homes import temporary_home
from holdfast.values import call

HERE = Path(__file__).parent / "reference"
WIDTH = 100

SQL_INTRODUCTION = """\
# SQL functions

These functions are the interface in the schema `holdfast`. The descriptions are the comments in the database.
Functions take named arguments: `holdfast.fail(id => …, lease => …, error => …)`. All other functions are
internal and may change in any release. [From SQL and other languages](../guides/sql.md) has examples.
"""
CLI_INTRODUCTION = """\
# Command line

This page has the help of each command. [The guide](../guides/command-line.md) explains exit codes, JSON, and
the format of durations and times.
"""

GROUPS = {
    "Producing": "enqueue enqueue_many lane places",
    "Consuming": "register claim claimed heartbeat sleep leave disown not_held cancels channel",
    "Reporting": "complete fail snooze release finish start progress progress_many",
    "Inside a job": "publish publish_many read_events event_cursor keep_step job_steps keep_checkpoint "
    "job_checkpoint memory",
    "Waiting for the end": "await_jobs await_no_more ends",
    "Trouble": "why doctor",
    "Looking": "job list_jobs job_errors stats count_jobs statistics stat_bounds health gauges list_queues "
    "list_workers is_terminal",
    "Operating": "cancel cancel_many cancel_matching run_now reschedule pause resume",
    "Settings": "configure settings audit_log",
    "Retention": "list_partitions due_exports mark_exported export_finished export_event export_columns",
    "Duties": "tick list_duties fire promote recover advance fold_stats upkeep sweep check_heads report_duty",
    "Retry policies": "set_retry_policy declare_retry_policy reset_retry_policy list_retry_policies "
    "retry_delay",
    "Dead letters": "list_dead replay replay_many purge purge_many give_up",
    "Schedules": "add_schedule declare_schedule change_schedule pause_schedule resume_schedule "
    "remove_schedule run_schedule list_schedules upcoming next_occurrence cron_in_words",
    "Access": "grant_queues revoke_queues list_grants stored_payload role_rights sees_payloads unrestricted "
    "in_reach queues_in_reach as_seen text_as_seen",
    "Small things": "clock new_id",
}

FUNCTIONS = """
select
  p.proname as name,
  pg_get_function_arguments(p.oid) as arguments,
  pg_get_function_result(p.oid) as result,
  obj_description(p.oid, 'pg_proc') as comment
from pg_proc p
where p.pronamespace = 'holdfast'::regnamespace
  and p.prorettype <> 'trigger'::regtype
order by p.proname
"""

# Partitions come and go; the parent speaks for them.
RELATIONS = """
select
  c.relname as name,
  c.relkind as kind,
  coalesce(obj_description(c.oid, 'pg_class'), obj_description(c.reltype, 'pg_type')) as comment,
  array(
    select a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    from pg_attribute a
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    order by a.attnum
  ) as columns
from pg_class c
where c.relnamespace = 'holdfast'::regnamespace
  and c.relkind in ('r', 'p', 'v', 'c')
  and not c.relispartition
order by c.relname
"""

# The group of a function that is not named above.
GROUP_OF_FOLDER = {"core": "Reporting", "duties": "Duties", "operate": "Operating", "inspect": "Looking"}
SQL = Path(__file__).parents[1] / "src" / "holdfast" / "sql" / "functions"

STATES = "select name, terminal, claimable, successors, meaning from holdfast.state order by ctid"


class Function(NamedTuple):
    name: str
    arguments: str
    result: str
    comment: str


class Relation(NamedTuple):
    name: str
    kind: str
    comment: str | None
    columns: list[str]


def sql_page(connection: psycopg.Connection[Any]) -> str:
    """Return the reference of the SQL interface, from the comments in the database."""
    functions = [Function(*row) for row in connection.execute(FUNCTIONS)]
    relations = [Relation(*row) for row in connection.execute(RELATIONS)]
    return "\n".join(
        [
            SQL_INTRODUCTION,
            *_grouped(functions),
            "## The view and the types",
            "",
            *_shapes(relations),
            "## The states",
            "",
            "| state | terminal | claimable | may become | meaning |",
            "|---|---|---|---|---|",
            *(_state_row(*row) for row in connection.execute(STATES)),
            "",
            "## The tables",
            "",
            "The tables are internal. Write to them only where [settings](settings.md) allows it.",
            "",
            "| table | holds |",
            "|---|---|",
            *(f"| `{it.name}` | {it.comment} |" for it in relations if it.kind in "rp" and it.comment),
            "",
        ]
    )


def groups() -> dict[str, list[str]]:
    """Return the functions of each group: those named above, then all others that Python calls."""
    named = {title: names.split() for title, names in GROUPS.items()}
    for name in sorted(call.FUNCTIONS.keys() - {name for names in named.values() for name in names}):
        named[GROUP_OF_FOLDER[_folder(name)]].append(name)
    return named


def _folder(function: str) -> str:
    """Return the folder of the SQL file that creates this function."""
    start = f"create or replace function holdfast.{function}("
    (file,) = (file for file in SQL.rglob("*.sql") if start in file.read_text(encoding="utf-8"))
    return file.parent.name


def _grouped(functions: list[Function]) -> Iterator[str]:
    for title, names in groups().items():
        yield f"## {title}"
        yield ""
        for name in names:
            for function in functions:
                if function.name == name:
                    yield from _entry(function)


def _entry(function: Function) -> Iterator[str]:
    yield f"### {function.name}"
    yield ""
    yield "```"
    yield _signature(function)
    yield "```"
    yield ""
    yield function.comment
    yield ""


def _signature(function: Function) -> str:
    arguments, result = f"({_plain(function.arguments)})", _plain(function.result)
    if len(function.name + arguments + result) > WIDTH:
        arguments, result = _broken(arguments), _broken(result)
    return f"holdfast.{function.name}{arguments} → {result}"


def _broken(text: str) -> str:
    """Break a list in parentheses into one item per line; return any other text unchanged."""
    opening, parenthesis, items = text.removesuffix(")").partition("(")
    return f"{opening}(\n  {items.replace(', ', f',{chr(10)}  ')}\n)" if parenthesis and items else text


def _plain(text: str) -> str:
    """Return the text without the casts that pg_get_function_arguments adds."""
    text = text.replace("timestamp with time zone", "timestamptz")
    text = re.sub(r"(NULL|'[^']*')::[a-z ]+(\[\])?", r"\1", text)
    return re.sub(r"DEFAULT|NULL|SETOF|TABLE", lambda word: word[0].lower(), text)


def _shapes(relations: list[Relation]) -> Iterator[str]:
    for relation in relations:
        if relation.kind in "vc":
            yield f"### {relation.name}"
            yield ""
            yield relation.comment or ""
            yield ""
            yield "```"
            yield from map(_plain, relation.columns)
            yield "```"
            yield ""


def _state_row(name: str, terminal: bool, claimable: bool, successors: list[str], meaning: str) -> str:
    def yes(fact: bool) -> str:
        return "yes" if fact else ""

    return f"| `{name}` | {yes(terminal)} | {yes(claimable)} | {', '.join(successors)} | {meaning} |"


def cli_page() -> str:
    """Return the reference of the command line, from the help of each command."""
    sections = [
        f"## {title}\n\n" + "\n".join(_command([name]) for name in names) for title, names in COMMANDS.items()
    ]
    return "\n".join([CLI_INTRODUCTION, *sections])


def _command(path: list[str]) -> str:
    # Each context gets settings of its own, as in a call by click: a command stores its help option.
    settings = {**root.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(root, info_name="holdfast", **settings)
    command: click.Command = root
    for name in path:
        assert isinstance(command, click.Group)  # noqa: S101 - only groups have commands
        found = command.get_command(context, name)
        assert found is not None  # noqa: S101 - it was listed
        command = found
        context = click.Context(command, info_name=name, parent=context, **_own(command))
    page = f"### holdfast {' '.join(path)}\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        page += "\n" + "\n".join(_command([*path, name]) for name in command.list_commands(context))
    return page


def _own(command: click.Command) -> dict[str, Any]:
    # The parsing settings of a command are attributes of it, not of its context.
    parsing = {"ignore_unknown_options", "allow_interspersed_args", "allow_extra_args"}
    return {name: value for name, value in command.context_settings.items() if name not in parsing}


def main() -> None:
    with (
        temporary_home() as home,
        embedded.start(home) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        schema.apply(connection)
        (HERE / "sql.md").write_text(sql_page(connection), encoding="utf-8")
    (HERE / "cli.md").write_text(cli_page(), encoding="utf-8")


if __name__ == "__main__":
    main()

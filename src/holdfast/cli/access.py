"""Commands about who may use which queue: list, grant, revoke."""

import click

from holdfast.cli import times
from holdfast.cli.output import Column, plural, show_json, show_rows
from holdfast.cli.queues import Actions
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.grants import GrantRow


@click.group(cls=Actions)
@common_options
def access() -> None:
    """Restrict roles to some queues: list, grant and revoke.

    The rights themselves come from holdfast_producer, _worker, _viewer and _operator. `holdfast migrate
    --roles` creates these roles, and a DBA grants them.
    """


@access.command("list")
@common_options
@pass_settings
def list_(settings: Settings) -> None:
    """List the roles that are restricted to some queues. Any other role may use all queues."""
    with settings.connect() as hf:
        found = hf.grants.list()
    show_rows(_COLUMNS, found, as_json=settings.as_json, empty="No role is restricted to some queues.")


@access.command()
@click.argument("role")
@click.argument("queues", metavar="QUEUES...", nargs=-1, required=True)
@common_options
@pass_settings
def grant(settings: Settings, role: str, queues: tuple[str, ...]) -> None:
    """Restrict a role to these queues. Queues that it was granted before remain allowed.

    \b
      holdfast access grant acme_app 'acme.*'       every queue whose name starts with acme.
    """
    with settings.connect() as hf:
        hf.grants.grant(role, queues)
    if settings.as_json:
        show_json({"role": role, "queues": list(queues), "outcome": "granted"})
    else:
        click.echo(f"Role {role} may use {', '.join(queues)}, and the queues that it was granted before.")


@access.command()
@click.argument("role")
@click.argument("queues", metavar="[QUEUES]...", nargs=-1)
@common_options
@click.option(
    "--all", "everything", is_flag=True, help="Remove the restriction: the role may use every queue."
)
@pass_settings
def revoke(settings: Settings, role: str, queues: tuple[str, ...], *, everything: bool) -> None:
    """Take queues away from a role that is restricted to some."""
    if bool(queues) == everything:
        raise click.UsageError("Name the queues, or give --all to let the role use every queue.")
    with settings.connect() as hf:
        revoked = hf.grants.revoke(role, queues or None)
    if settings.as_json:
        show_json({"role": role, "revoked": revoked})
    elif everything:
        click.echo(f"Role {role} may use every queue.")
    else:
        click.echo(f"Took {plural(revoked, 'grant')} from role {role}.")


_COLUMNS: list[Column[GrantRow]] = [
    Column("ROLE", lambda row: row.role),
    Column("QUEUES", lambda row: row.queues),
    Column("GRANTED_BY", lambda row: row.granted_by),
    Column(
        "GRANTED_AT", lambda row: times.absolute(row.granted_at), seen=lambda row: times.ago(row.granted_at)
    ),
]

"""Commands about workers and the duties that they share."""

from datetime import timedelta

import click

from holdfast.cli import times
from holdfast.cli.output import STATE_STYLES, Column, plural, show_json, show_rows, show_table
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.cli.values import duration
from holdfast.database.pg_cron import pg_cron_script
from holdfast.operations.workers import WorkerRow


@click.command()
@common_options
@click.option(
    "--all",
    "everyone",
    is_flag=True,
    help="Also list workers that stopped in good order during the last day.",
)
@pass_settings
def workers(settings: Settings, *, everyone: bool) -> None:
    """List the workers, with the number of jobs they hold and their last heartbeat.

    A worker is `silent` if it sent no heartbeat for its lease time. Once its jobs were taken back, it is
    `lost`.
    """
    with settings.connect() as hf:
        found = [worker for worker in hf.workers.list() if everyone or worker.status != "left"]
    show_rows(
        _COLUMNS, found, as_json=settings.as_json, empty="No workers. Start one: holdfast worker app:hf"
    )


_COLUMNS: list[Column[WorkerRow]] = [
    Column("NAME", lambda row: row.name),
    Column("STATUS", lambda row: row.status, style=lambda row: STATE_STYLES.get(row.status, "")),
    Column("HOLDS", lambda row: row.holds, right=True),
    Column("HOST", lambda row: row.host),
    Column("PID", lambda row: row.pid, right=True),
    Column(
        "STARTED_AT", lambda row: times.absolute(row.started_at), seen=lambda row: times.ago(row.started_at)
    ),
    Column(
        "HEARTBEAT_AT",
        lambda row: times.absolute(row.heartbeat_at),
        seen=lambda row: times.ago(row.heartbeat_at),
    ),
    Column("QUEUES", lambda row: "all" if row.queues is None else ",".join(row.queues)),
    Column("TASKS", lambda row: len(row.tasks) if row.tasks is not None else "all", right=True),
]


@click.command()
@common_options
@click.option("--timeout", type=duration, help="Treat workers as lost that sent no heartbeat for this long.")
@pass_settings
def recover(settings: Settings, *, timeout: timedelta | None) -> None:
    """Take back the jobs of lost workers.

    Workers do this automatically. Run it by hand if you know that a worker is gone. With --timeout, workers
    get no extra time after an outage of the database.
    """
    with settings.connect() as hf:
        amount = hf.workers.recover(timeout)
    if settings.as_json:
        show_json({"recovered": amount})
    else:
        click.echo(f"Took back {plural(amount, 'job')}.")


@click.command()
@common_options
@click.option("--pg-cron", is_flag=True, help="Print the SQL for a DBA to let pg_cron do it instead.")
@pass_settings
def tick(settings: Settings, *, pg_cron: bool) -> None:
    """Run every background duty once. Call it from cron if no worker runs.

    The exit code is 1 if a duty failed; the others still run.

    With --pg-cron nothing is run. Run the printed SQL in the database where pg_cron is installed, which need
    not be the one of --dsn.

    \b
      holdfast tick
      holdfast tick --pg-cron | psql --set ON_ERROR_STOP=1 postgres
    """
    if pg_cron:
        click.echo(_sql_for_pg_cron(settings), nl=False)
        return
    with settings.connect() as hf:
        done = hf.workers.tick()
    if settings.as_json:
        show_json([{"duty": duty, "error": error} for duty, error in done])
    else:
        show_table(_DUTIES, done, empty="")
    if any(error for _, error in done):
        raise SystemExit(1)


def _sql_for_pg_cron(settings: Settings) -> str:
    if settings.source == "embedded":
        raise click.UsageError("Name the database by --dsn or HOLDFAST_DSN: the embedded one has no pg_cron.")
    with settings.connect() as hf:
        return pg_cron_script(hf.database)


_DUTIES: list[Column[tuple[str, str | None]]] = [
    Column("DUTY", lambda row: row[0]),
    Column(
        "OUTCOME", lambda row: "failed" if row[1] else "done", style=lambda row: "red" if row[1] else "green"
    ),
    Column("ERROR", lambda row: row[1]),
]

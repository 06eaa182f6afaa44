"""Commands that explain what is wrong with one job, or with the database."""

from collections.abc import Iterable
from uuid import UUID

import click

from holdfast.cli.output import clean, console, show_json
from holdfast.cli.root import unknown_if_refused
from holdfast.cli.settings import Settings, common_options, pass_settings

SEVERITY_STYLES = {"critical": "bold red", "warning": "yellow", "info": "cyan", "ok": "green"}
EXIT_CODES = {"critical": 2, "warning": 1}


@click.command()
@click.argument("job_id", metavar="ID", type=click.UUID)
@common_options
@pass_settings
def why(settings: Settings, job_id: UUID) -> None:
    """Say why a job does not run, and what to do about it.

    The first answer is the decisive one; other obstacles follow. A job that has ended and an unknown id are
    explained as well.
    """
    with settings.connect() as hf:
        reasons = hf.jobs.why(job_id)
    if settings.as_json:
        show_json(reasons)
        return
    _show((reason.answer, "bold yellow", reason.explanation, reason.remedy) for reason in reasons)


@click.command()
@common_options
@click.option("--all", "healthy", is_flag=True, help="Also list the checks that found nothing.")
@pass_settings
def doctor(settings: Settings, *, healthy: bool) -> None:
    """Check the database for problems, and say what to do about each.

    It finds settings that endanger jobs, old snapshots and their holders, missing indexes, failing duties,
    jobs without a worker, rights that are too wide, and more. The exit code is 2 if something is critical, 1
    if there is a warning, 3 if the checks could not run, and otherwise 0.

    \b
      holdfast doctor
      holdfast doctor --json | jq '.[] | select(.severity == "critical")'
    """
    with unknown_if_refused(), settings.connect() as hf:
        found = hf.health.doctor(healthy=healthy)
    if settings.as_json:
        show_json(found)
    elif found:
        _show(
            (f"{each.severity}: {each.name}", SEVERITY_STYLES[each.severity], each.finding, each.remedy)
            for each in found
        )
    else:
        click.echo("Nothing is wrong.")
    raise SystemExit(max((EXIT_CODES.get(each.severity, 0) for each in found), default=0))


def _show(parts: Iterable[tuple[str, str, str | None, str | None]]) -> None:
    """Print each part as a heading, a text and the remedy below it."""
    screen = console()
    screen.soft_wrap = True
    for heading, style, text, remedy in parts:
        screen.print(clean(heading), style=style)
        for line in (text, f"→ {remedy}" if remedy else None):
            if line:
                screen.print(f"  {clean(line)}")

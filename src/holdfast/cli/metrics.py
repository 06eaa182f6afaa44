"""The command that prints metrics for Prometheus."""

import click

from holdfast.cli.output import show_json
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.telemetry.metrics import exposition, families_of


@click.command()
@common_options
@pass_settings
def metrics(settings: Settings) -> None:
    """Print metrics of the queues, in the format of Prometheus.

    Jobs by queue and state, the age of the oldest waiting job, workers by status, and how full the
    notification queue is. A worker with --http serves the same metrics at /metrics/queues, and its own at
    /metrics.

    \b
      holdfast metrics > /var/lib/node_exporter/holdfast.prom
    """
    with settings.connect() as hf:
        families = list(families_of(hf.health.overview()))
    if not settings.as_json:
        click.echo(exposition(families), nl=False)
        return
    show_json(
        [
            {"name": family.name + suffix, "kind": family.kind, "labels": dict(labels), "value": value}
            for family in families
            for suffix, labels, value in family.samples
        ]
    )

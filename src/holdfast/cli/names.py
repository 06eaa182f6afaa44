"""Names that nothing has used so far. That is no error, since a name may come before its first job."""

from collections.abc import Collection

import click

from holdfast.client import Holdfast
from holdfast.errors import HoldfastError, nearest


def known_queues(hf: Holdfast) -> set[str] | None:
    """The queues that a job, a setting, a worker or a schedule has named so far.

    None where that cannot be found out: it is no reason to refuse anything.
    """
    try:
        return {
            *(row.name for row in hf.queues()),
            *(name for row in hf.workers() for name in row.queues or ()),
            *(row.queue for row in hf.schedules.list(upcoming=0)),
        }
    except HoldfastError:
        return None


def known_tasks(hf: Holdfast) -> set[str] | None:
    """The tasks that a job, a retry policy, a worker or a schedule has named so far; None as above."""
    try:
        return {
            *(row.task for row in hf.statistics(by="task") if row.task),
            *(row.task for row in hf.retry_policies()),
            *(name for row in hf.workers() for name in row.tasks or ()),
            *(row.task for row in hf.schedules.list(upcoming=0)),
        }
    except HoldfastError:
        return None


def doubt(kind: str, name: str | None, known: Collection[str] | None) -> None:
    """Note on standard error that this queue or task is not known, with the one that was probably meant."""
    if not name or known is None or name in known:
        return
    near = nearest(name, known)
    meant = f" Did you mean {near!r}?" if near else ""
    click.echo(f"Note: no job, worker or schedule has used a {kind} {name!r} so far.{meant}", err=True)


def doubt_filter(hf: Holdfast, queue: str | None, task: str | None) -> None:
    """The same of the names in a filter that has matched nothing."""
    if queue:
        doubt("queue", queue, known_queues(hf))
    if task:
        doubt("task", task, known_tasks(hf))

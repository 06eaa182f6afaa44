"""Names that nothing has used so far. That is no error, since a name may come before its first job."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import click

from holdfast.client import Holdfast
from holdfast.values.errors import HoldfastError, nearest
from holdfast.values.options import TaskOptions

_DEFAULT = TaskOptions().queue


def known_queues(hf: Holdfast) -> set[str] | None:
    """The queues that a job, a setting, a worker or a schedule has named so far.

    None where that cannot be found out: it is no reason to refuse anything.
    """
    try:
        return {
            *(row.name for row in hf.queues.list()),
            *(name for row in hf.workers.list() for name in row.queues or ()),
            *(row.queue for row in hf.schedules.list(upcoming=0)),
        }
    except HoldfastError:
        return None


def known_tasks(hf: Holdfast) -> dict[str, set[str]] | None:
    """The tasks that a job, a retry policy, a worker or a schedule has named so far; None as above.

    With each come the queues of its jobs and schedules.
    """
    try:
        tasks: dict[str, set[str]] = {row.task: set() for row in hf.policies.list()}
        tasks |= {name: set() for row in hf.workers.list() for name in row.tasks or ()}
        used = [(row.task, row.queue) for row in hf.stats.recent(by="task")]
        used += [(row.task, row.queue) for row in hf.schedules.list(upcoming=0)]
        for task, queue in used:
            if task:
                tasks.setdefault(task, set()).add(queue)
    except HoldfastError:
        return None
    return tasks


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


@contextmanager
def doubting_new(hf: Holdfast, task: str, queue: str | None) -> Iterator[None]:
    """The same of a job or schedule that the block makes, unless nothing has been used at all.

    Without a queue it goes to the default one, since no code is loaded that could name another.
    """
    tasks = known_tasks(hf)
    # Where one cannot be found out, the other cannot either: do not wait for a lost database twice.
    queues = None if queue is None or tasks is None else known_queues(hf)
    yield
    doubt("task", task, tasks or None)
    if queue is not None:
        doubt("queue", queue, queues or None)
        return
    used = sorted((tasks or {}).get(task, ()))
    if used and _DEFAULT not in used:
        others = ", ".join(map(repr, used))
        click.echo(
            f"Note: task {task!r} has used only the queue {others} so far; this goes to {_DEFAULT!r}. "
            f"Add --queue {used[0]} to change that.",
            err=True,
        )

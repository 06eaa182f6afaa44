"""Warns of names of queues and tasks that nothing uses at present, because they may be mistyped.

An unused name is not an error: a command may name a queue before its first job.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import click

from holdfast.client import Holdfast
from holdfast.values.errors import HoldfastError, nearest
from holdfast.values.options import TaskOptions

_DEFAULT = TaskOptions().queue


def known_queues(hf: Holdfast) -> set[str] | None:
    """Return the queues that a job, a setting, a worker or a schedule names now or did lately.

    Returns None if the database does not answer, so that the command itself does not fail.
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
    """Return the tasks that a job, a retry policy, a worker or a schedule names now or did lately.

    Each maps to the queues of its jobs and schedules. Returns None if the database does not answer.
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


def note_unknown(kind: str, name: str | None, known: Collection[str] | None) -> None:
    """Print a note if nothing uses this name, and suggest a similar one."""
    if not name or known is None or name in known:
        return
    near = nearest(name, known)
    meant = f" Did you mean {near!r}?" if near else ""
    click.echo(f"Note: no job, worker or schedule uses a {kind} {name!r} at present.{meant}", err=True)


def note_unknown_filter(hf: Holdfast, queue: str | None, task: str | None) -> None:
    """Note the unknown names in a filter that has matched nothing."""
    if queue:
        note_unknown("queue", queue, known_queues(hf))
    if task:
        note_unknown("task", task, known_tasks(hf))


@contextmanager
def noting_unknown(hf: Holdfast, task: str, queue: str | None) -> Iterator[None]:
    """Note the unknown names of a job or schedule that the block makes. In an empty database, print nothing.

    Without a queue the job goes to the default queue. The code of the task may name another queue, but this
    command does not load that code.
    """
    tasks = known_tasks(hf)
    # If the first query failed, skip the second one.
    queues = None if queue is None or tasks is None else known_queues(hf)
    yield
    note_unknown("task", task, tasks or None)
    if queue is not None:
        note_unknown("queue", queue, queues or None)
        return
    used = sorted((tasks or {}).get(task, ()))
    if used and _DEFAULT not in used:
        others = ", ".join(map(repr, used))
        click.echo(
            f"Note: task {task!r} uses only the queue {others} at present; this goes to {_DEFAULT!r}. "
            f"Add --queue {used[0]} to change that.",
            err=True,
        )

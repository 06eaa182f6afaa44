"""Commands about retry policies: list, set, reset."""

from datetime import timedelta

import click
from click.core import ParameterSource

from holdfast.cli import times, values
from holdfast.cli.names import known_tasks, note_unknown
from holdfast.cli.output import Column, show_json, show_rows
from holdfast.cli.queues import Actions
from holdfast.cli.settings import Settings, common_options, pass_settings
from holdfast.operations.policies import PolicyRow
from holdfast.values.limits import ATTEMPTS
from holdfast.values.retry import RetryPolicy

_OPTIONS = ("max_attempts", "base", "factor", "cap", "jitter")


@click.group(cls=Actions)
@common_options
def policy() -> None:
    """Control how tasks are retried: list, set and reset policies."""


@policy.command("list")
@common_options
@pass_settings
def list_(settings: Settings) -> None:
    """List the policies of tasks. A dash means that the task's queue or the default decides."""
    with settings.connect() as hf:
        found = hf.policies.list()
    show_rows(_COLUMNS, found, as_json=settings.as_json, empty="No task has its own policy.")


@policy.command("set")
@click.argument("task")
@common_options
@click.option("--max-attempts", type=click.IntRange(ATTEMPTS[0], ATTEMPTS[-1]), default=3, show_default=True)
@click.option("--base", type=values.duration, default="1m", show_default=True, help="The first delay.")
@click.option(
    "--factor", type=click.FloatRange(1, 100), default=2, show_default=True, help="How much each delay grows."
)
@click.option("--cap", type=values.duration, default="1h", show_default=True, help="The longest delay.")
@click.option(
    "--jitter",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="A random addition of up to this fraction.",
)
@pass_settings
def set_(
    settings: Settings,
    task: str,
    *,
    max_attempts: int,
    base: timedelta,
    factor: float,
    cap: timedelta,
    jitter: float,
) -> None:
    """Set the retry policy of a task. It takes precedence over the policy that its code declares.

    This sets the whole policy: an option that you leave out gets the default that is shown here.

    A max_attempts of a call or of @hf.task(max_attempts=...) takes precedence over it. Jobs that already wait
    keep their max_attempts, but the new delays apply to them too.

    \b
      holdfast policy set mail.send --max-attempts 5 --base 30s
    """
    named = map(click.get_current_context().get_parameter_source, _OPTIONS)
    if ParameterSource.COMMANDLINE not in named:
        options = ", ".join(f"--{option.replace('_', '-')}" for option in _OPTIONS)
        raise click.UsageError(f"Give at least one of {options}.")
    wanted = RetryPolicy(max_attempts=max_attempts, base=base, factor=factor, cap=cap, jitter=jitter)
    with settings.connect() as hf:
        known = known_tasks(hf)
        declared = _declared_attempts(hf.policies.list(), task)
        hf.policies.set(task, wanted)
    note_unknown("task", task, known)
    if settings.as_json:
        show_json({"task": task, "outcome": "set", "declared_max_attempts": declared})
        return
    click.echo(f"The policy of {task} is set.")
    if declared is None:
        click.echo("A max_attempts of a call or of @hf.task(max_attempts=...) takes precedence over it.")
    else:
        click.echo(
            f"Its code has @hf.task(max_attempts={declared}). That overrides the {max_attempts} set here."
        )


def _declared_attempts(policies: list[PolicyRow], task: str) -> int | None:
    """Return the max_attempts that the task's code declares, if a worker has reported it.

    Returns None if the code also declares a RetryPolicy: the stored number may then be the policy's. It also
    returns None if an operator had set a policy before.
    """
    return next(
        (row.max_attempts for row in policies if row.task == task and row.declared and row.base is None), None
    )


@policy.command()
@click.argument("task")
@common_options
@pass_settings
def reset(settings: Settings, task: str) -> None:
    """Remove a policy. The queue and the default decide again, until a worker starts and declares one."""
    with settings.connect() as hf:
        known = hf.policies.reset(task)
    if settings.as_json:
        show_json({"task": task, "outcome": "reset" if known else "unknown"})
    else:
        click.echo(f"The policy of {task} is reset." if known else f"Nothing was set for {task}.")


def _span(length: timedelta | None) -> str:
    return "-" if length is None else times.span(length)


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:g}"


_COLUMNS: list[Column[PolicyRow]] = [
    Column("TASK", lambda row: row.task),
    Column("ATTEMPTS", lambda row: _number(row.max_attempts), right=True),
    Column("BASE", lambda row: _span(row.base), right=True),
    Column("FACTOR", lambda row: _number(row.factor), right=True),
    Column("CAP", lambda row: _span(row.cap), right=True),
    Column("JITTER", lambda row: _number(row.jitter), right=True),
    Column("BY", lambda row: "code" if row.declared else "operator"),
]

"""Commands about retry policies: list, set, reset."""

from datetime import timedelta

import click
from click.core import ParameterSource

from holdfast.cli import times, values
from holdfast.cli.names import doubt, known_tasks
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
    """How tasks are retried: list, set and reset."""


@policy.command("list")
@common_options
@pass_settings
def list_(settings: Settings) -> None:
    """What is set for tasks. A dash is left to the task's queue and the default."""
    with settings.connect() as hf:
        found = hf.policies.list()
    show_rows(_COLUMNS, found, as_json=settings.as_json, empty="No task has a policy of its own.")


@policy.command("set")
@click.argument("task")
@common_options
@click.option("--max-attempts", type=click.IntRange(ATTEMPTS[0], ATTEMPTS[-1]), default=3, show_default=True)
@click.option("--base", type=values.duration, default="1m", show_default=True, help="The first delay.")
@click.option(
    "--factor", type=click.FloatRange(1, 100), default=2, show_default=True, help="How it grows each time."
)
@click.option("--cap", type=values.duration, default="1h", show_default=True, help="The longest delay.")
@click.option(
    "--jitter",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Up to this fraction on top, at random.",
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
    """Say how a task is retried from now on. This wins over the policy that its code declares.

    The whole policy is set: what you leave out gets the default that is shown here.

    A max_attempts that a call gives, or @hf.task(max_attempts=...), which goes along with every call of the
    task, wins over it. Jobs that wait already keep what they have; delays hold for them too.

    \b
      holdfast policy set mail.send --max-attempts 5 --base 30s
    """
    named = map(click.get_current_context().get_parameter_source, _OPTIONS)
    if ParameterSource.COMMANDLINE not in named:
        options = ", ".join(f"--{option.replace('_', '-')}" for option in _OPTIONS)
        raise click.UsageError(f"Say what to set: {options}.")
    wanted = RetryPolicy(max_attempts=max_attempts, base=base, factor=factor, cap=cap, jitter=jitter)
    with settings.connect() as hf:
        known = known_tasks(hf)
        declared = _declared_attempts(hf.policies.list(), task)
        hf.policies.set(task, wanted)
    doubt("task", task, known)
    if settings.as_json:
        show_json({"task": task, "outcome": "set", "declared_max_attempts": declared})
        return
    click.echo(f"The policy of {task} is set.")
    if declared is None:
        click.echo("A max_attempts that a call or @hf.task(max_attempts=...) gives wins over it.")
    else:
        click.echo(f"Its code says @hf.task(max_attempts={declared}): that wins over {max_attempts}.")


def _declared_attempts(policies: list[PolicyRow], task: str) -> int | None:
    """The max_attempts of the task's own declaration, where a worker has told it.

    Beside a RetryPolicy it cannot be told from that of the policy, and where an operator has set something
    before, it is not kept.
    """
    return next(
        (row.max_attempts for row in policies if row.task == task and row.declared and row.base is None), None
    )


@policy.command()
@click.argument("task")
@common_options
@pass_settings
def reset(settings: Settings, task: str) -> None:
    """Forget what was set: the queue and the default decide, or what a worker declares when it starts."""
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

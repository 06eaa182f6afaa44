"""The command that runs jobs."""

import logging
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from holdfast.cli.application import AppNotFound, load_app
from holdfast.cli.finished_jobs import showing_finished_jobs
from holdfast.cli.output import plural
from holdfast.cli.reload import log_in_sentences, make_reloader
from holdfast.cli.settings import Settings, dsn_option, pass_settings
from holdfast.cli.times import span
from holdfast.cli.values import duration
from holdfast.client import Holdfast
from holdfast.database import connect_pauses
from holdfast.telemetry import emit, subscribe
from holdfast.telemetry.logs import JsonFormatter
from holdfast.values.errors import BadValue, HoldfastError, TooManyConnections
from holdfast.values.secret import mask_dsn
from holdfast.worker.isolation.pool import cores
from holdfast.worker.monitor.http import Address
from holdfast.worker.supervisor import Supervisor, exit_with_supervisor
from holdfast.worker.worker import Worker

FORMATS = ["text", "json"]
LEVELS = ["debug", "info", "warning", "error"]


def _queues(_ctx: click.Context, _option: click.Parameter, value: tuple[str, ...]) -> list[str] | None:
    names = [name.strip() for names in value for name in names.split(",") if name.strip()]
    if value and not names:
        raise click.BadParameter("names no queue")
    return names or None


@click.command()
@click.argument("app")
@dsn_option
@click.option("--queues", multiple=True, callback=_queues, help="Only these queues: a,b.  [default: all]")
@click.option("--concurrency", type=int, help="Run this many jobs at once, in each process.  [default: 20]")
@click.option(
    "--max-isolated",
    type=click.IntRange(1, 10_000),
    help='Run this many jobs with isolation="process" at once, in each process.  [default: the cores]',
)
@click.option(
    "--processes", type=click.IntRange(1, 1000), default=1, show_default=True, help="The number of processes."
)
@click.option(
    "--lease-time",
    type=duration,
    help="A worker is lost after this time without a heartbeat.  [default: 30s]",
)
@click.option("--grace", type=duration, help="When stopped, wait this long for running jobs.  [default: 30s]")
@click.option(
    "--poll-interval",
    type=duration,
    help="Look for jobs at least this often.  [default: 5s, 1s with --no-notify]",
)
@click.option("--drain", is_flag=True, help="Stop as soon as no job for this worker is due.")
@click.option(
    "--no-notify", "notify", is_flag=True, flag_value=False, default=None, help="Poll only; no LISTEN."
)
@click.option("--name", help="A label for people.")
@click.option(
    "--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS, case_sensitive=False),
    envvar="HOLDFAST_LOG_FORMAT",
    default="text",
    help="Lines for people, or one JSON object a line; also set by HOLDFAST_LOG_FORMAT.  [default: text]",
)
@click.option(
    "--http",
    metavar="ADDRESS",
    help="Serve /healthz, /readyz and /metrics: 8080 (of 127.0.0.1), 0.0.0.0:8080 "
    "or unix:/path. "
    "With --processes, each process takes the next port.",
)
@click.option("--quiet", is_flag=True, help="Print no line for each finished job, even on a terminal.")
@click.option(
    "--reload",
    is_flag=True,
    help="For development: start again when a Python file of the app has changed. Running jobs finish first.",
)
@click.option(
    "--reload-dir",
    "reload_dirs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="With --reload, also watch this directory. Repeat it for more.",
)
@click.option("--supervised", is_flag=True, hidden=True)
@click.option("--reloaded", is_flag=True, hidden=True)
@click.option("--dsn-in-environment", is_flag=True, hidden=True)
@pass_settings
def worker(
    settings: Settings,
    /,
    app: str,
    *,
    processes: int,
    drain: bool,
    log_level: str,
    log_format: str,
    quiet: bool,
    reload: bool,
    reload_dirs: tuple[Path, ...],
    supervised: bool,
    reloaded: bool,
    dsn_in_environment: bool,
    **options: Any,
) -> None:
    """Run the jobs of APP until stopped by a signal.

    APP is module:attribute and names your Holdfast, such as app:hf for `hf = Holdfast()` in app.py. The
    current directory is searched first.

    SIGTERM and Ctrl-C stop it in good order: jobs that have not started are released at once, and running
    jobs may finish within --grace. A second signal stops it at once.

    Log lines go to standard error. On a terminal, each finished job has a line there. A failed job also has
    its traceback and the time of the next try. After Ctrl-C a line tells how many jobs are still running.

    \b
      holdfast worker app:hf
      holdfast worker app:hf --queues mail,default --concurrency 50
      holdfast worker shop.jobs:hf --processes 4
      holdfast worker app:hf --reload
    """
    if supervised or reloaded:
        exit_with_supervisor(options["grace"])
    if dsn_in_environment:
        settings.dsn = os.environ["HOLDFAST_DSN"]
    if settings.dsn:
        # The app's own Holdfast() and the children read it. On a command line, the password would be visible.
        os.environ["HOLDFAST_DSN"] = settings.dsn
    chosen = {name: _number(value) for name, value in options.items() if value is not None}
    fixed = [f"--log-level={log_level}", f"--log-format={log_format}", *(["--quiet"] if quiet else [])]
    _check_reload(reload=reload, reload_dirs=reload_dirs, drain=drain)
    if reload:
        fixed += [f"--processes={processes}", *(["--dsn-in-environment"] if settings.dsn else [])]
        reloader = make_reloader(app, chosen, [*fixed, *_flags(chosen.items())], reload_dirs)
        _log_to_stderr(log_level, log_format, chosen.get("name"), shows=False)
        if log_format == "text":
            log_in_sentences()
        raise SystemExit(reloader.run())
    hf = _checked(load_app(app), app, settings)
    shows = sys.stderr.isatty() and log_format == "text" and not quiet
    _log_to_stderr(log_level, log_format, chosen.get("name"), shows=shows)
    with hf:
        if processes == 1:
            runner = _made(hf, app, chosen)
            if not supervised:
                emit("app.loaded", app=app, tasks=len(hf.tasks), database=mask_dsn(hf.dsn))
            who = chosen.get("name") if supervised else None
            with _announcing_stop(who), showing_finished_jobs(hf, who) if shows else nullcontext():
                runner.run(drain=drain)
            return
        _made(hf, app, chosen)  # a mistake shows here once, and not in every child
        emit("app.loaded", app=app, tasks=len(hf.tasks), database=mask_dsn(hf.dsn), processes=processes)
        # The processes share the cores that one worker would use.
        chosen.setdefault("max_isolated", max(1, cores() // processes))
        fixed += ["--drain"] if drain else []
        raise SystemExit(Supervisor(_Command(app, chosen, fixed, processes), processes).run())


def _check_reload(*, reload: bool, reload_dirs: tuple[Path, ...], drain: bool) -> None:
    if reload and drain:
        raise click.UsageError(
            "--drain ends the worker when no job is due; --reload keeps it running. Leave out one of them."
        )
    if reload_dirs and not reload:
        raise click.UsageError("--reload-dir adds a directory to --reload. Add --reload too.")


def _checked(hf: Holdfast, app: str, settings: Settings) -> Holdfast:
    if not len(hf.tasks):
        raise AppNotFound(
            f"{app} declares no tasks, so there is nothing to run",
            hint="Import the modules that declare them next to it.",
            app=app,
        )
    if settings.dsn and hf.dsn != settings.dsn:
        raise HoldfastError(
            f"{app} names its own database ({mask_dsn(hf.dsn)})",
            hint="Leave out --dsn, or write Holdfast() without a DSN there.",
        )
    return hf


def _made(hf: Holdfast, app: str, options: dict[str, Any]) -> Worker:
    try:
        made = _when_connected(hf, lambda: hf.worker(**options))
        hf.database.close_unused(0)  # the worker opens its own connections
        return made  # noqa: TRY300 - the handler below is for hf.worker() alone
    except BadValue as error:
        if error.field != "isolation":
            raise
        # The mistake is in the app, not on the command line.
        raise AppNotFound(error.message, hint=error.hint, app=app) from error


def _when_connected(hf: Holdfast, make: Callable[[], Worker]) -> Worker:
    """Make the worker as soon as the server has a connection left. SIGTERM ends the wait, and the process."""
    pauses = connect_pauses()
    with _exiting_on_sigterm():
        while True:
            try:
                return make()
            except TooManyConnections as error:
                hf.database.refusals.warn(error)
            time.sleep(next(pauses))


@contextmanager
def _exiting_on_sigterm() -> Iterator[None]:
    """Exit with 0 on SIGTERM. Without a handler, process 1 of a container would ignore the signal."""
    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _number(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _log_to_stderr(level: str, style: str, name: str | None, *, shows: bool) -> None:
    """Log to standard error, unless the app has set up its own logging.

    With `shows`, failed jobs appear as finished jobs and need no log line.
    """
    who = f" [{name}]".replace("%", "%%") if name else ""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter(f"%(asctime)s %(levelname)s{who} %(message)s")
    handler.setFormatter(JsonFormatter(name) if style == "json" else plain)
    if shows:
        handler.addFilter(lambda record: getattr(record, "event", None) != "job.failed")
    logging.basicConfig(handlers=[handler])
    logging.getLogger("holdfast").setLevel(level.upper())


@contextmanager
def _announcing_stop(who: str | None) -> Iterator[None]:
    """Print how many jobs a stopping worker waits for. A log has the same in `worker.stopping`."""

    def tell(event: str, fields: Mapping[str, Any]) -> None:
        if event == "worker.stopping" and fields["running"] and fields["grace"]:
            grace, jobs = span(timedelta(seconds=fields["grace"])), plural(fields["running"], "job")
            waits = f"{who} waits" if who else "Waiting"
            click.echo(
                f"{waits} up to {grace} for {jobs} to finish. A second Ctrl-C stops at once.", err=True
            )

    unsubscribe = subscribe(tell) if sys.stderr.isatty() else None
    try:
        yield
    finally:
        if unsubscribe:
            unsubscribe()


class _Command:
    """The command line of the child with this number."""

    def __init__(self, app: str, options: dict[str, Any], fixed: list[str], processes: int) -> None:
        self._app = app
        self._options = {name: value for name, value in options.items() if name not in {"name", "http"}}
        self._name = options.get("name") or platform.node()
        self._fixed = fixed
        http = options.get("http")
        self._http = None if http is None else Address.of(http)
        if self._http is not None:
            self._http.of_process(processes)  # refuse a bad port now rather than in the last child

    def __call__(self, number: int) -> list[str]:
        begin = [sys.executable, "-m", "holdfast", "worker", "--supervised", *self._fixed]
        name = f"--name={self._name}-{number}"
        http = [] if self._http is None else [f"--http={self._http.of_process(number)}"]
        return [*begin, name, *http, *_flags(self._options.items()), "--", self._app]


def _flags(options: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for option, value in options:
        match option:
            case "name" | "http":
                yield f"--{option}={value}"
            case "notify":
                yield "--no-notify"
            case "queues":
                yield f"--queues={','.join(value)}"
            case _:
                yield f"--{option.replace('_', '-')}={value:g}"

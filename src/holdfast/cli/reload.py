"""`holdfast worker --reload`: the worker starts again when a Python file of the app has changed."""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.cli.application import app_directories
from holdfast.cli.output import clean, plural
from holdfast.database import Database
from holdfast.task import Registry
from holdfast.worker.reloader import Reloader
from holdfast.worker.worker import Worker


def make_reloader(
    app: str, options: dict[str, Any], flags: Sequence[str], directories: Sequence[Path]
) -> Reloader:
    """Return a reloader that runs `holdfast worker` with these flags, which include the options.

    Only the child imports the app: one process cannot import it twice.
    """
    Worker(Database("never opened"), Registry(), **options)  # refuse wrong options now, not in each child
    watched = dict.fromkeys([Path.cwd(), *app_directories(app), *(path.resolve() for path in directories)])
    command = [sys.executable, "-m", "holdfast", "worker", "--reloaded", *flags, "--", app]
    return Reloader(lambda _: command, list(watched))


def log_in_sentences() -> None:
    """Write the events of a restart as sentences: "app.py changed: restarting"."""
    logging.getLogger("holdfast").addFilter(_in_a_sentence)


def _in_a_sentence(record: logging.LogRecord) -> bool:
    event, fields = getattr(record, "event", None), getattr(record, "fields", {})
    if event in _SENTENCES:
        record.msg, record.args = "%s", (_SENTENCES[event](fields),)
    return True


def _watched(fields: Mapping[str, Any]) -> str:
    return f"watching {clean(', '.join(fields['directories']))} for changed Python files"


def _changed(fields: Mapping[str, Any]) -> str:
    more = f" and {plural(fields['others'], 'other file')}" if fields["others"] else ""
    return f"{clean(fields['file'])}{more} changed: restarting"


def _cancelled(_fields: Mapping[str, Any]) -> str:
    return "stopping instead of restarting"


def _died(fields: Mapping[str, Any]) -> str:
    return f"the worker failed (exit {fields['exit']}): it starts again when a file changes"


_SENTENCES = {
    "app.watched": _watched,
    "app.changed": _changed,
    "restart.cancelled": _cancelled,
    "process.died": _died,
}

"""The server of the current project, and the messages about the location of its data.

Both messages go to the log, or to standard error if logging is not set up. Standard output is only for the
output of commands.
"""

import logging
import os
import shlex
import sys
from typing import Any

import psycopg

from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.home import Home, open_home, project_directory, user_data
from holdfast.embedded.server import Server, start
from holdfast.telemetry import emit

_HELD = "select (select count(*) from holdfast.job) + (select count(*) from holdfast.dead_letter)"


def start_for_project() -> Server:
    """Start or share the server of the current project. Print the location of a new one.

    With HOLDFAST_HOME the user has chosen the home, so nothing is printed.
    """
    if os.environ.get("HOLDFAST_HOME"):
        return start()
    home = open_home(None)
    new = not home.data.exists()
    server = start(home.path)
    if new:
        project = project_directory()
        _report(
            f"Holdfast keeps the jobs of {project} in {home.path}. HOLDFAST_HOME chooses another place.",
            "embedded.created",
            project=str(project),
            home=str(home.path),
        )
    if server.launched:
        _tell_of_earlier_home(home, new=new)
    return server


def _tell_of_earlier_home(home: Home, *, new: bool) -> None:
    """Report the home that all projects of a user shared in release 0.1.0, as long as it holds jobs.

    The check has to start a second server. So it runs for a new home, and at later starts only if it has
    found jobs before. The file `earlier` marks that.
    """
    earlier, mark = Home(user_data()), home.path / "earlier"
    if not (new or mark.exists()):
        return
    held = _jobs_in(earlier) if earlier.data.exists() else 0
    if held == 0:
        mark.unlink(missing_ok=True)
        return
    mark.touch()
    export = shlex.join(["export", f"HOLDFAST_HOME={earlier.path}"])
    jobs = "may hold jobs" if held is None else f"still holds {held} job{'s' if held > 1 else ''}"
    _report(
        f"{earlier.path}, where earlier releases kept the jobs of all projects, {jobs}. "
        f"To continue with it: {export}",
        "embedded.kept",
        home=str(earlier.path),
        jobs=held,
        use_it_by=export,
    )


def _jobs_in(home: Home) -> int | None:
    """Return the number of unfinished and dead jobs in this home, or None if its server cannot be started."""
    try:
        with start(home.path) as server, psycopg.connect(server.dsn) as connection:
            row = connection.execute(_HELD).fetchone()
    except psycopg.errors.UndefinedTable:
        return 0
    except (EmbeddedError, psycopg.Error):
        return None
    return int(row[0]) if row else 0


def _report(sentence: str, event: str, **fields: Any) -> None:
    if logging.getLogger("holdfast").hasHandlers():
        emit(event, **fields)
    else:
        sys.stderr.write(f"{sentence}\n")

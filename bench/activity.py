"""Measure what idle workers cost their server: connections, transactions and processor time."""

import os
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg

from bench.measure import Figures
from bench.processes import family

# A session sends its statistics after a transaction, at most once a second. It sends the rest after ten idle
# seconds. So a period may begin this long after the last unusual activity.
FLUSH_SECONDS = 11.0
SAMPLE_SECONDS = 0.25

Connection = psycopg.Connection[tuple[Any, ...]]


def watch(observer: Connection, database: str, workers: int, seconds: float) -> Figures:
    """Return the connections, transactions and processor time of one database over a period.

    The observer must be connected to another database, so that its transactions do not count. In a steady
    state, the transactions reported late from before the period replace those reported after it.
    """
    server = _postmaster(observer)
    begun, transactions = time.monotonic(), _transactions(observer, database)
    ticks = _ticks(server, observer)
    samples = []
    while time.monotonic() < begun + seconds:
        samples.append(connections(observer, database))
        time.sleep(SAMPLE_SECONDS)
    spent = (_ticks(server, observer) - ticks) / os.sysconf("SC_CLK_TCK")
    transactions = _transactions(observer, database) - transactions
    elapsed = time.monotonic() - begun
    totals = [sample.total() for sample in samples]
    return {
        "connections": max(totals),
        "most": max(max(sample.values(), default=0) for sample in samples),
        "mean": statistics.mean(totals) / workers,
        "transactions": transactions / elapsed,
        "cpu": 100 * spent / elapsed,
    }


def connections(observer: Connection, database: str) -> Counter[str]:
    """Return how many connections each role has to this database."""
    found = observer.execute(
        "select usename, count(*) from pg_stat_activity "
        "where datname = %s and backend_type = 'client backend' and usename <> current_user group by 1",
        [database],
    )
    return Counter(dict(found))


def is_full(observer: Connection) -> bool:
    """Return whether an ordinary role would be refused another connection."""
    [[full]] = observer.execute(
        "select count(*) >= current_setting('max_connections')::integer "
        "- current_setting('superuser_reserved_connections')::integer "
        "from pg_stat_activity where backend_type = 'client backend'"
    ).fetchall()
    return bool(full)


def _transactions(observer: Connection, database: str) -> int:
    [[number]] = observer.execute(
        "select xact_commit + xact_rollback from pg_stat_database where datname = %s", [database]
    ).fetchall()
    return int(number)


def _postmaster(observer: Connection) -> int:
    [[text]] = observer.execute("select pg_read_file('postmaster.pid')").fetchall()
    pid = int(text.split()[0])
    name = Path(f"/proc/{pid}/comm")
    if not name.exists() or name.read_text().strip() != "postgres":
        raise RuntimeError("the processes of the server are not on this machine")
    return pid


def _ticks(server: int, observer: Connection) -> int:
    """Return the processor time of all processes of a server, except the observer's.

    The time of a process that has ended is in its parent's record.
    """
    return sum(_ticks_of(pid) for pid in family(server) if pid != observer.info.backend_pid)


def _ticks_of(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has just ended
        return 0
    # The name, in parentheses, may have spaces. utime, stime, cutime and cstime are the fields 14 to 17.
    return sum(int(field) for field in text.rpartition(")")[2].split()[11:15])

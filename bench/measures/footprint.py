"""What a job costs besides time: WAL, table growth, memory; and what an import costs."""

import statistics
import subprocess
import time
from typing import Any

import psycopg

from bench.in_postgres import PostgresPeer
from bench.measure import Bench, Figures, Measure, until
from bench.measures.drain import drain, hundred_thousand
from bench.peer import Peer
from bench.processes import Producer, Workers

IMPORTS = 5
PORTION = 50_000

_SIZE = """
  select coalesce(sum(pg_total_relation_size(c.oid)), 0)
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
"""


def _footprint(bench: Bench, peer: Peer, _round: int) -> Figures:
    """Per job: WAL written by its enqueue and by its run, and how much larger all tables are afterwards."""
    assert isinstance(peer, PostgresPeer)
    amount = bench.drainable(peer, 20_000)
    with (
        peer.empty(bench.server) as place,
        place.connect() as connection,
        peer.producer(place) as producer,
        peer.workers(place) as workers,
    ):
        bench.server.checkpoint()
        empty, begun = _number(connection, _SIZE), _wal(connection)
        producer.ask("bulk", amount=amount, tasks=["noop"])
        enqueued = _wal(connection)
        with peer.goal(place, amount, workers) as done:
            workers.go()
            until(done, workers, amount, patience=60 + 10 * bench.options.seconds)
        ran = _wal(connection)
        return {
            "wal_enqueue": (enqueued - begun) / amount,
            "wal_run": (ran - enqueued) / amount,
            "wal": (ran - begun) / amount,
            "growth": (_number(connection, _SIZE) - empty) / amount,
            "jobs": amount,
        }


def _memory(bench: Bench, peer: Peer, _round: int) -> Figures:
    """A worker's memory after 100,000 jobs; Holdfast's, if asked for, after a further million too."""
    amount = hundred_thousand(bench, peer)
    if not (bench.options.million and peer.name == "holdfast"):
        figures = bench.drains.get((peer.name, amount, 1, 0)) or drain(bench, peer, amount)
        return {"rss_mb": figures["rss_mb"], "jobs": amount}
    with peer.empty(bench.server) as place, peer.producer(place) as producer, peer.workers(place) as workers:
        workers.go()
        _run_through(producer, workers, 0, amount, portion=amount)
        before = workers.rss()
        further = bench.amount(1_000_000)
        _run_through(producer, workers, amount, further, portion=bench.amount(PORTION))
        return {"rss_mb": before, "rss_mb_after": workers.rss(), "jobs": amount, "further_jobs": further}


def _run_through(producer: Producer, workers: Workers, ran: int, amount: int, *, portion: int) -> None:
    """Enqueue and run so many more, a portion at a time."""
    end = ran + amount
    while ran < end:
        some = min(portion, end - ran)
        producer.ask("bulk", amount=some, tasks=["noop"])
        ran += some
        workers.until_ran(ran, patience=300)
    time.sleep(1)


def _import(_bench: Bench, peer: Peer, _round: int) -> Figures:
    """The median start of a process that imports the peer, less one that does not."""
    spent: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(IMPORTS):
        for loading, command in ((False, peer.idle_command), (True, peer.import_command)):
            begun = time.monotonic()
            subprocess.run(command, check=True, capture_output=True)
            spent[loading].append(time.monotonic() - begun)
    return {"seconds": max(statistics.median(spent[True]) - statistics.median(spent[False]), 0.0)}


def _wal(connection: "psycopg.Connection[tuple[Any, ...]]") -> float:
    return _number(connection, "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")


def _number(connection: "psycopg.Connection[tuple[Any, ...]]", query: str) -> float:
    [[value]] = connection.execute(query).fetchall()
    return float(value)


FOOTPRINT = Measure(
    "footprint",
    "WAL and table growth per job",
    _footprint,
    "wal",
    "bytes",
    higher_is_better=False,
    once=True,
)
MEMORY = Measure(
    "memory",
    "memory of a worker after 100,000 jobs",
    _memory,
    "rss_mb",
    "MB",
    higher_is_better=False,
    once=True,
)
IMPORT = Measure("import", "import time", _import, "seconds", "s", higher_is_better=False, once=True)

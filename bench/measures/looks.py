"""How long it takes to look at a queue in which millions wait. Holdfast alone."""

import time
from collections.abc import Callable

import psycopg

import holdfast
from bench.measure import Bench, Figures, Measure
from bench.peer import Peer

WAITING = 5_000_000
LANES = 10
TIMES = 5


def _looks(bench: Bench, peer: Peer, _round: int) -> Figures:
    """Milliseconds of each call that a command makes, the slowest of a few; nothing is analyzed before."""
    with (
        peer.empty(bench.server) as place,
        psycopg.connect(place.dsn, autocommit=True) as connection,
        holdfast.Holdfast(place.dsn) as hf,
    ):
        waiting = bench.amount(WAITING)
        _fill(connection, waiting)
        first = hf.jobs.list(state="pending", limit=1)[0].id
        looks: dict[str, Callable[[], object]] = {
            "stats": hf.stats.count,
            "statistics": hf.stats.recent,
            "by_task": lambda: hf.stats.recent(by="task"),
            "health": hf.health.check,
            "queues": hf.queues.list,
            "jobs": hf.jobs.list,
            "jobs_of_a_queue": lambda: hf.jobs.list(queue="q1", state="pending"),
            "job": hf.job(first).refresh,
        }
        if connection.execute("select to_regproc('holdfast.why')").fetchone() != (None,):
            looks["why"] = lambda: connection.execute("select * from holdfast.why(%s)", [first]).fetchall()
        figures = {f"{name}_ms": _slowest(look) for name, look in looks.items()}
        counted = sum(stat.jobs for stat in hf.stats.count())
        return {
            **figures,
            "slowest_ms": max(figures.values()),
            "waiting": waiting,
            "error": abs(counted / waiting - 1),
        }


def _fill(connection: psycopg.Connection, waiting: int) -> None:
    connection.execute(
        "insert into holdfast.job (lane_id, task, payload) "
        "select l.ids[n %% %s + 1], 'task' || (n %% %s), '{\"n\": 7}' "
        "from (select array_agg(holdfast.lane('q' || (i %% 3), 100, 'task' || i) order by i) as ids "
        "from generate_series(0, %s - 1) i) l, generate_series(1, %s) n",
        [LANES, LANES, LANES, waiting],
    )


def _slowest(look: Callable[[], object]) -> float:
    spent = []
    for _ in range(TIMES):
        began = time.perf_counter()
        look()
        spent.append((time.perf_counter() - began) * 1000)
    return max(spent)


LOOKS = Measure(
    "looks",
    "the slowest of stats, health, jobs, job … with five million waiting",
    _looks,
    "slowest_ms",
    "ms",
    higher_is_better=False,
    once=True,
    only=frozenset({"holdfast"}),
)

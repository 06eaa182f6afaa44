"""The measures that are compared between two commits, and the figures of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.fleet import SIZES
from bench.in_postgres import PostgresPeer
from bench.measure import Bench, Figures, until
from bench.measures.delayed import DELAYED, FLOOD
from bench.measures.drain import REALISTIC_CONCURRENCY, drain
from bench.measures.enqueue import ENQUEUE_BULK
from bench.measures.herd import HERD
from bench.measures.idle import IDLE
from bench.measures.pickup import PICKUP
from bench.measures.stream import STREAM
from bench.peer import Peer

DRAINED, WAITING, SNAPSHOT_ROUNDS = 100_000, 400_000, 3
THIRTY = tuple(f"spread.{number}" for number in range(30))


@dataclass(frozen=True)
class Row:
    """One figure that is compared."""

    unit: str
    higher_is_better: bool = True


@dataclass(frozen=True)
class Comparison:
    """The work of each side, and the rows that it yields."""

    run: Callable[[Bench, Peer, int], Figures]
    rows: Mapping[str, Row]
    # Turns of each side within a round, for what is short.
    turns: int = 1


def _enqueue_one(bench: Bench, peer: Peer, _round: int) -> Figures:
    amount = bench.amount(4_000)
    with peer.empty(bench.server) as place, peer.producer(place) as producer:
        producer.ask("one", amount=100)
        return {"enqueue_one": amount / producer.ask("one", amount=amount)["seconds"]}


def _enqueue_bulk(bench: Bench, peer: Peer, round_: int) -> Figures:
    return {"enqueue_bulk": ENQUEUE_BULK.run(bench, peer, round_)["jobs_per_s"]}


def _drain(bench: Bench, peer: Peer, _round: int) -> Figures:
    figures = drain(bench, peer, bench.amount(DRAINED))
    return {"drain": figures["jobs_per_s"], "memory": figures["rss_mb"]}


def _drain_thirty(bench: Bench, peer: Peer, _round: int) -> Figures:
    return {"drain_30_tasks": drain(bench, peer, bench.amount(DRAINED), tasks=THIRTY)["jobs_per_s"]}


def _realistic(bench: Bench, peer: Peer, _round: int) -> Figures:
    figures = drain(bench, peer, bench.amount(DRAINED), tasks=("nap",), concurrency=REALISTIC_CONCURRENCY)
    return {"jobs_of_1_ms": figures["jobs_per_s"]}


def _pickup(bench: Bench, peer: Peer, round_: int) -> Figures:
    figures = PICKUP.run(bench, peer, round_)
    return {"pickup_p50": figures["p50"], "pickup_p99": figures["p99"]}


def _delayed(bench: Bench, peer: Peer, round_: int) -> Figures:
    figures = DELAYED.run(bench, peer, round_)
    return {"delayed_p50": figures["p50"], "delayed_p95": figures["p95"]}


def _flood(bench: Bench, peer: Peer, round_: int) -> Figures:
    figures = FLOOD.run(bench, peer, round_)
    return {"urgent_in_flood_p50": figures["p50"], "urgent_in_flood_p99": figures["p99"]}


def _backlog(bench: Bench, peer: Peer, _round: int) -> Figures:
    """The first of many that have waited for long."""
    amount = bench.amount(DRAINED) // 2
    with (
        peer.settled(bench.server, bench.amount(WAITING), ("noop",)) as place,
        peer.workers(place) as workers,
        peer.goal(place, amount, workers) as done,
    ):
        workers.go()
        ended = until(done, workers, amount, patience=120)
        assert workers.first is not None
        return {"backlog": amount / (ended - workers.first)}


def _snapshot(bench: Bench, peer: Peer, _round: int) -> Figures:
    """The last of some rounds while one session holds a snapshot."""
    assert isinstance(peer, PostgresPeer)
    amount = bench.amount(DRAINED) // 2
    with (
        peer.empty(bench.server) as place,
        peer.producer(place) as producer,
        place.connect() as bystander,
    ):
        bystander.execute("begin isolation level repeatable read")
        bystander.execute("select count(*) from pg_class")
        for _ in range(SNAPSHOT_ROUNDS):
            producer.ask("bulk", amount=amount, tasks=["noop"])
            with peer.workers(place) as workers, peer.goal(place, amount, workers, newest=True) as done:
                workers.go()
                ended = until(done, workers, amount, patience=120)
                assert workers.first is not None
                rate = amount / (ended - workers.first)
        bystander.execute("rollback")
    return {"snapshot": rate}


def _idle(bench: Bench, peer: Peer, round_: int) -> Figures:
    figures = IDLE.run(bench, peer, round_)
    # Nothing at all has no ratio. A tenth of a percent is one tick of the kernel's clock in ten seconds.
    return {
        f"idle_{name}_{size}": max(figures[f"{name}_{size}"], 0.1) for name in IDLE_ROWS for size in SIZES
    }


def _herd(bench: Bench, peer: Peer, round_: int) -> Figures:
    """All claims for a job, since the empty ones may be none at all."""
    figures = HERD.run(bench, peer, round_)
    figures |= {f"claims_{size}": 1 + figures[f"empty_{size}"] for size in SIZES}
    return {f"herd_{name}_{size}": figures[f"{name}_{size}"] for name in HERD_ROWS for size in SIZES}


def _stream(bench: Bench, peer: Peer, round_: int) -> Figures:
    figures = STREAM.run(bench, peer, round_)
    return {name: figures[name.removeprefix("stream_")] for name in STREAM_ROWS}


RATE, MILLISECONDS = Row("jobs/s"), Row("ms", higher_is_better=False)
IDLE_ROWS = {
    "most": Row("each", higher_is_better=False),
    "transactions": Row("/s", higher_is_better=False),
    "cpu": Row("%", higher_is_better=False),
}
HERD_ROWS = {"p50": MILLISECONDS, "p99": MILLISECONDS, "claims": Row("a job", higher_is_better=False)}
STREAM_ROWS = {
    "stream_jobs_per_s": RATE,
    "stream_alone": RATE,
    "stream_ratio": Row("ratio"),
    "stream_p50": MILLISECONDS,
    "stream_p99": MILLISECONDS,
}


def _by_size(measure: str, rows: Mapping[str, Row]) -> dict[str, Row]:
    return {f"{measure}_{name}_{size}": row for name, row in rows.items() for size in SIZES}


ALL = {
    "enqueue_one": Comparison(_enqueue_one, {"enqueue_one": RATE}, turns=2),
    "enqueue_bulk": Comparison(_enqueue_bulk, {"enqueue_bulk": RATE}),
    "drain": Comparison(_drain, {"drain": RATE, "memory": Row("MB", higher_is_better=False)}, turns=2),
    "drain_30_tasks": Comparison(_drain_thirty, {"drain_30_tasks": RATE}, turns=2),
    "jobs_of_1_ms": Comparison(_realistic, {"jobs_of_1_ms": RATE}, turns=2),
    "pickup": Comparison(_pickup, {"pickup_p50": MILLISECONDS, "pickup_p99": MILLISECONDS}),
    "delayed": Comparison(_delayed, {"delayed_p50": MILLISECONDS, "delayed_p95": MILLISECONDS}),
    "flood": Comparison(_flood, {"urgent_in_flood_p50": MILLISECONDS, "urgent_in_flood_p99": MILLISECONDS}),
    "backlog": Comparison(_backlog, {"backlog": RATE}),
    "snapshot": Comparison(_snapshot, {"snapshot": RATE}),
    "idle": Comparison(_idle, _by_size("idle", IDLE_ROWS)),
    "herd": Comparison(_herd, _by_size("herd", HERD_ROWS)),
    "stream": Comparison(_stream, STREAM_ROWS),
}

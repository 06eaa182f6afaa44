"""What it costs a handler to speak of itself, and its caller to wait for its end. Holdfast alone."""

import asyncio
import time
from uuid import uuid4

import holdfast
from bench.measure import Bench, Figures, Measure, percentiles
from bench.peer import Peer
from holdfast.operations.claiming import Claimed
from holdfast.worker.context import Context

CALLS = 200_000
WAITERS = 1000


def _spoken(_bench: Bench, _peer: Peer, _round: int) -> Figures:
    """Microseconds for each call in a tight loop, without the loop itself."""
    context = Context(Claimed(str(uuid4()), str(uuid4()), "task", "{}", 1, 3, "default", 100, False, 0, None))
    began = time.perf_counter()
    for _ in range(CALLS):
        pass
    empty = time.perf_counter() - began

    def each(spent: float) -> float:
        return (spent - empty) / CALLS * 1e6

    began = time.perf_counter()
    for number in range(CALLS):
        context.progress(number % 100)
    progress = time.perf_counter() - began
    began = time.perf_counter()
    for number in range(CALLS):
        context.progress(number % 100, stage="render", message="a page")
    in_full = time.perf_counter() - began
    began = time.perf_counter()
    for _ in context.track(range(CALLS)):
        pass
    track = time.perf_counter() - began
    return {"progress_us": each(progress), "in_full_us": each(in_full), "track_us": each(track)}


def _awaited(bench: Bench, peer: Peer, _round: int) -> Figures:
    """From the enqueue of a job to its result, one after the other; and a thousand who wait at once."""
    with peer.empty(bench.server) as place, peer.workers(place) as workers:
        workers.go()
        with holdfast.Holdfast(place.dsn) as hf:
            spent = []
            for _ in range(bench.options.samples):
                began = time.perf_counter()
                hf.enqueue("noop", {"n": 0}, queue="bench").result(timeout=60)
                spent.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            jobs = hf.enqueue_many(
                holdfast.NewJob(task="noop", payload='{"n": 0}', queue="bench") for _ in range(WAITERS)
            )
            asyncio.run(hf.jobs.agather(jobs, timeout=60))
            return {**percentiles(spent), "thousand_s": time.perf_counter() - began}


SPOKEN = Measure(
    "spoken",
    "what ctx.progress and ctx.track cost, per call",
    _spoken,
    "progress_us",
    "µs",
    higher_is_better=False,
    only=frozenset({"holdfast"}),
)
AWAITED = Measure(
    "awaited",
    "from enqueue to job.result(), on an idle queue",
    _awaited,
    "p50",
    "ms",
    higher_is_better=False,
    only=frozenset({"holdfast"}),
)

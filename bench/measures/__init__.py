"""Every measure, in the order in which they run: what the targets need comes first."""

from bench.measure import Measure
from bench.measures.backlog import BACKLOG, BACKLOG_UNKNOWN
from bench.measures.delayed import DELAYED, FLOOD
from bench.measures.drain import CORES, DRAIN, REALISTIC, SPREAD
from bench.measures.enqueue import ENQUEUE_BULK, ENQUEUE_ONE, PRODUCERS
from bench.measures.footprint import FOOTPRINT, IMPORT, MEMORY
from bench.measures.herd import HERD
from bench.measures.idle import IDLE
from bench.measures.inside import AWAITED, SPOKEN
from bench.measures.looks import LOOKS
from bench.measures.pickup import PICKUP
from bench.measures.snapshot import SNAPSHOT
from bench.measures.stream import STREAM

ALL: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        ENQUEUE_ONE,
        ENQUEUE_BULK,
        *DRAIN,
        REALISTIC,
        PICKUP,
        SPREAD,
        CORES,
        SNAPSHOT,
        BACKLOG,
        BACKLOG_UNKNOWN,
        MEMORY,
        FLOOD,
        PRODUCERS,
        DELAYED,
        IDLE,
        HERD,
        STREAM,
        FOOTPRINT,
        IMPORT,
        SPOKEN,
        AWAITED,
        LOOKS,
    )
}

__all__ = ["ALL"]

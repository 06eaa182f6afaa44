"""The queues under test, in the order in which they are shown."""

from bench.peer import Peer
from bench.peers.awa import Awa
from bench.peers.celery import Celery
from bench.peers.chancy import Chancy
from bench.peers.dramatiq import Dramatiq
from bench.peers.graphile_worker import GraphileWorker
from bench.peers.holdfast import Holdfast
from bench.peers.pgmq import Pgmq
from bench.peers.pgqueuer import PgQueuer
from bench.peers.procrastinate import Procrastinate

ALL: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        Holdfast,
        GraphileWorker,
        Pgmq,
        PgQueuer,
        Awa,
        Chancy,
        Procrastinate,
        Dramatiq,
        Celery,
    )
}

__all__ = ["ALL"]

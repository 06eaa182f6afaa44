"""The price of idle workers: connections, transactions and processor time of the server."""

from bench.fleet import PEERS, sizes, start_fleet
from bench.measure import Bench, Figures, Measure
from bench.peer import Peer

SECONDS = 10.0


def _idle(bench: Bench, peer: Peer, _round: int) -> Figures:
    """Start 1, 10 and 50 workers one after the other; of the other peers, 10."""
    figures: Figures = {}
    for size in sizes(peer):
        with start_fleet(bench, peer, size) as fleet:
            fleet.settle()
            found = {**fleet.watch(SECONDS), "max_connections": fleet.max_connections}
        figures |= {f"{name}_{size}": value for name, value in found.items()}
    return figures


IDLE = Measure(
    "idle",
    "connections, transactions and server CPU of 1, 10 and 50 idle workers",
    _idle,
    "transactions_10",
    "transactions/s",
    higher_is_better=False,
    once=True,
    only=PEERS,
)

"""A run: install the peers, size them up, then round after round through all of them, measure by measure."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import psycopg

from bench.environments import NotInstalled
from bench.measure import Bench, Figures, Given, Measure, Rates, in_turn, until
from bench.peer import Peer
from bench.processes import AgentFailed
from bench.results import Results
from bench.steadiness import Steadiness
from bench.targets import US

PROBE_JOBS = 10_000
PROBE_SECONDS = 2.0
NEAR = 4


def tell(text: str) -> None:
    """How far the run is; standard output is for its results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def install(peers: Iterable[Peer]) -> tuple[list[Peer], dict[str, str]]:
    """Those that can take part, and why the others cannot."""
    ready: list[Peer] = []
    skipped: dict[str, str] = {}
    for peer in peers:
        tell(f"installing {peer.name} {peer.version}")
        try:
            peer.install()
        except NotInstalled as error:
            skipped[peer.name] = str(error)
            tell(f"SKIPPED {peer.name}: {error}")
        else:
            ready.append(peer)
    os.sync()  # what came in with them is not to be written while we measure
    return ready, skipped


class Run:
    """One run of some measures for some peers."""

    def __init__(self, bench: Bench, peers: Sequence[Peer], results: Results, *, minutes: float) -> None:
        self._bench = bench
        self._peers = list(peers)
        self._results = results
        self._begun = time.monotonic()
        self._deadline = self._begun + minutes * 60
        self._steadiness = Steadiness()
        self._given = Given()

    def go(self, measures: Sequence[Measure], rounds: int, *, quick: bool = False) -> None:
        """A quick run has no more rounds of anything than of the rest."""
        for peer in list(self._peers):
            self._size_up(peer)
        for measure in measures:
            begun = time.monotonic()
            try:
                self._go_round(measure, rounds, 1 if quick else measure.times)
            finally:
                self._bench.put_away()
            tell(f"{measure.name}: {time.monotonic() - begun:.0f} s")
        self._results.facts["duration"] = f"{(time.monotonic() - self._begun) / 60:.0f} minutes"
        taken = 1 - self._given.share()
        self._results.facts["steadiness"] = f"{self._steadiness}, and the host took {taken:.0%} of their time"
        for peer in self._peers:
            peer.forget(self._bench.server)

    def _go_round(self, measure: Measure, rounds: int, times: int) -> None:
        far: set[str] = set()
        for number in range(1 if measure.once else rounds * times):
            if number == rounds:
                # Once, so that no peer is left with its slow rounds alone.
                far |= {peer.name for peer in self._peers if not self._is_near(measure, peer)}
            if measure.others_once and number:
                far |= {peer.name for peer in self._peers if peer.name != US}
            near = [peer for peer in self._peers if peer.name not in far]
            for peer in in_turn(near, number):
                self._measure(measure, peer, number)

    def _is_near(self, measure: Measure, peer: Peer) -> bool:
        """Whether further rounds are worth their time: what is far behind the best stays there."""
        if peer.name == US:
            return True
        figure = self._results.figure(measure.name, peer.name, measure.figure)
        others = (self._results.figure(measure.name, other.name, measure.figure) for other in self._peers)
        return figure is not None and figure * NEAR > max(other for other in others if other is not None)

    def _measure(self, measure: Measure, peer: Peer, number: int) -> None:
        if measure.only and peer.name not in measure.only:
            return
        cell = self._results.cell(measure.name, peer.name)
        if reason := peer.cannot.get(measure.name):
            cell.note = reason
            return
        if cell.note:
            return
        if time.monotonic() > self._deadline:
            cell.note = f"stopped after {number} rounds: the run's time was up"
            return
        self._steadiness.look()
        if figures := self._attempt(peer, lambda: measure.run(self._bench, peer, number), measure.name):
            cell.note = figures.pop("note", "")
            cell.rounds.append(figures)
            shown = figures.get(measure.figure, float("nan"))
            tell(f"  {measure.name:18} round {number + 1}  {peer.name:16} {shown:12,.2f} {measure.unit}")

    def _size_up(self, peer: Peer) -> None:
        """A short probe, by which all cells are sized. A peer that fails it takes no part."""
        if rates := self._attempt(peer, lambda: probe(self._bench, peer), "probe"):
            self._bench.rates[peer.name] = Rates(**rates)
            tell(f"  {peer.name:16} about {rates['drain']:,.0f} jobs/s")
        else:
            self._peers.remove(peer)

    def _attempt(self, peer: Peer, what: Callable[[], Figures], name: str) -> Figures | None:
        """A peer that fails says so in its cell and does not end the run."""
        try:
            return what()
        except (AgentFailed, NotInstalled, RuntimeError, psycopg.Error) as error:
            reason = " ".join(str(error).split())[-300:]
            tell(f"FAILED {name} {peer.name}: {reason}")
            if name == "probe":
                self._results.skipped[peer.name] = reason
            else:
                self._results.cell(name, peer.name).note = f"failed: {reason}"
            return None


def probe(bench: Bench, peer: Peer) -> Figures:
    """The rough speed of a peer, in a few seconds."""
    with peer.empty(bench.server) as place, peer.producer(place) as producer, peer.workers(place) as workers:
        producer.ask("one", amount=10)
        one = 100 / producer.ask("one", amount=100)["seconds"]
        bulk = 1_000 / producer.ask("bulk", amount=1_000, tasks=["noop"])["seconds"]
        amount = min(bench.amount(PROBE_JOBS), int(bulk * PROBE_SECONDS))
        bulk = amount / producer.ask("bulk", amount=amount, tasks=["noop"])["seconds"]
        amount += 1_110
        with peer.goal(place, amount, workers) as done:
            workers.go()
            begun = time.monotonic()
            try:
                ended = until(done, workers, amount, patience=PROBE_SECONDS * 2)
            except AgentFailed:
                workers.check()
                if not workers.ran:
                    raise
                ended, amount = time.monotonic(), workers.ran
            drain = amount / (ended - (workers.first or begun))
    return {"one": one, "bulk": bulk, "drain": drain}

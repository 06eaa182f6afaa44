"""Who enqueues and cancels while everything breaks, and keeps book of what it was told."""

import contextlib
import random
import threading
import time
from typing import Any
from uuid import uuid4

from psycopg.conninfo import make_conninfo

from holdfast import Holdfast, HoldfastError
from holdfast.operations.job import Job
from tests.faults.torture_arena import LONGEST, Arena


class Producer(threading.Thread):
    """Enqueues one job after another, in every manner, each with a ticket in its headers that no other has.

    Where it is told that a job is there, there must be exactly one with this ticket. Where it is told
    nothing, because a connection or an answer was lost, the job is in doubt: there may be one, or none.
    """

    def __init__(self, arena: Arena, amount: int, seed: int, *, pace: float) -> None:
        """`pace` is how long it waits after each, so that jobs come in as long as there are faults."""
        super().__init__(daemon=True)
        self.acknowledged: set[str] = set()
        self.in_doubt: set[str] = set()
        self.faults_are_over = threading.Event()
        self._amount = amount
        self._pace = pace
        self._chance = random.Random(seed)
        self._holdfast = Holdfast(make_conninfo(arena.proxy.dsn, application_name="holdfast producer"))

    def run(self) -> None:
        with self._holdfast:
            while len(self.acknowledged) < self._amount or not self.faults_are_over.is_set():
                self._produce()

    def _produce(self) -> None:
        enqueue = self._chance.choice([self._enqueue, self._enqueue_in_a_transaction, self._enqueue_for_sure])
        task, payload = self._job()
        priority = self._chance.choice([50, 100, 150])
        ticket = str(uuid4())
        try:
            job = enqueue(task, payload, priority=priority, headers={"ticket": ticket})
        except HoldfastError:
            self.in_doubt.add(ticket)
            time.sleep(0.05)
            return
        self.acknowledged.add(ticket)
        if self._chance.random() < 0.03:
            with contextlib.suppress(HoldfastError):
                job.cancel()
        time.sleep(self._pace)

    def _enqueue(self, *job: Any, **options: Any) -> Job[Any]:
        return self._holdfast.enqueue(*job, **options)

    def _enqueue_in_a_transaction(self, *job: Any, **options: Any) -> Job[Any]:
        with self._holdfast.database.pooled_connection() as connection, connection.transaction():
            return self._holdfast.on(connection).enqueue(*job, **options)

    def _enqueue_for_sure(self, *job: Any, **options: Any) -> Job[Any]:
        """Under an id of its own, again and again until it is told: the same id again is the same job."""
        chosen = uuid4()
        while True:
            try:
                return self._holdfast.enqueue(*job, **options, id=chosen)
            except HoldfastError:
                time.sleep(0.05)

    def _job(self) -> tuple[str, dict[str, Any]]:
        chance = self._chance
        (seconds,) = chance.choices([0, 0.01, 0.3, LONGEST], weights=[50, 25, 20, 5])
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("noop", {}),
            ("slow", {"seconds": seconds}),
            ("thread", {"seconds": seconds}),
            ("flaky", {"seconds": seconds, "failures": chance.randint(1, 2)}),
            ("snooze", {}),
            ("effect", {"seconds": seconds}),
            ("aeffect", {"seconds": seconds}),
            ("once", {"seconds": seconds}),
            (
                "process",
                {
                    "seconds": chance.choice([0, 0.3]),
                    "dies": chance.choice(["never", "never", "before", "after"]),
                },
            ),
            ("poison", {}),
        ]
        return chance.choices(kinds, weights=[40, 8, 8, 10, 4, 10, 10, 8, 1.8, 0.2])[0]

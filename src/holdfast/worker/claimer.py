"""Claim jobs, and tell the database which jobs wake this worker. `demand` decides what to do next."""

import asyncio
import time
from functools import partial
from uuid import uuid4

from msgspec.structs import replace

from holdfast.database import Session
from holdfast.operations import claiming, workers
from holdfast.operations.claiming import Claimed
from holdfast.telemetry import Counted, emit
from holdfast.values.errors import DatabaseUnavailable
from holdfast.worker import demand
from holdfast.worker.demand import Claim, GiveBack, Memory, SetWakeUps, State, Wait
from holdfast.worker.held import HeldJobs

# The pause before the worker asks whether a claim with a lost reply succeeded. It doubles with each failure.
FIRST_ASK, LAST_ASK = 0.05, 1.0


class Claimer:
    def __init__(
        self, session: Session, held: HeldJobs, state: State, *, queues: list[str] | None, tasks: list[str]
    ) -> None:
        """Make a claimer. `state` has the limits of the worker."""
        self._session = session
        self._held = held
        self._state = state
        self._call = partial(claiming.claim, queues=queues, tasks=tasks)
        self._ask_pause = FIRST_ASK
        # Made in advance: after an idle period it takes 70 µs.
        self._lease = str(uuid4())

    def forget_wake_ups(self) -> None:
        """Forget which jobs wake the worker: it is a new worker, or the database may have crashed."""
        self._remember(replace(self._state.memory, asleep=False, above=None))

    def _remember(self, memory: Memory) -> None:
        self._state = replace(self._state, memory=memory)

    async def step(self) -> float:
        """Carry out the next decision, and return how long to wait before the step after it."""
        held, memory = self._held, self._state.memory
        self._look()
        match demand.decide(self._state):
            case Claim() as claim:
                await self._claim_more(claim)
            case SetWakeUps() as message:
                await self._set_wake_ups(message)
            case GiveBack(amount):
                held.give_back(held.take_last(amount))
            case Wait(seconds, low):
                held.low = low
                if memory.empty and not memory.more and not held.hinted:
                    held.idle.set()
                self._lease = self._lease or str(uuid4())
                return min(seconds, demand.SURPLUS_SECONDS) if held.buffer else seconds
        return 0.0

    def _look(self) -> None:
        held = self._held
        last, ahead = held.order(self._state.concurrency if held.hinted else 0)
        self._state = replace(
            self._state,
            now=time.monotonic(),
            running=len(held.running),
            buffered=len(held.buffer),
            unwritten=held.unwritten,
            pace=held.pace.measure(),
            hinted=held.hinted,
            last=last,
            ahead=ahead,
        )

    async def _claim_more(self, claim: Claim) -> None:
        held, before = self._held, self._state.memory
        hinted, held.hinted = held.hinted, False
        jobs = await self._claim(claim)
        if jobs and (before.empty or before.asleep):
            held.pace.begin()
        # The wake-ups may have been forgotten meanwhile.
        memory, now = self._state.memory, time.monotonic()
        self._remember(demand.after_claim(memory, claim, jobs, now=now, hinted=hinted))
        held.urgent_until = self._state.memory.urgent_at + demand.URGENT_SECONDS
        if len(jobs) == claim.amount and claim.above is not None:
            held.hinted = True  # there may be more of them

    async def _set_wake_ups(self, message: SetWakeUps) -> None:
        was_asleep, above = self._state.memory.asleep, message.above
        # If the reply is lost, nobody knows what the database has stored.
        self.forget_wake_ups()
        late = await self._session.run(workers.sleep(self._held.worker, above=above))
        self._remember(demand.after_setting(self._state.memory, message, late=late))
        # The worker may also have been woken meanwhile.
        if message.pass_on or (was_asleep and above is not None and self._held.hinted):
            await self._session.run(workers.pass_on(self._held.worker))

    async def _claim(self, claim: Claim) -> list[Claimed]:
        held, worker, begun = self._held, self._held.worker, time.monotonic()
        lease, self._lease = self._lease or str(uuid4()), ""
        call = self._call(worker=worker, lease=lease, amount=claim.amount, above=claim.above)
        with held.claiming(lease):
            try:
                jobs = await self._session.run(call)
                self._ask_pause = FIRST_ASK
            except DatabaseUnavailable as error:
                # The claim may have succeeded, and only the reply was lost: ask by its lease. If it succeeds
                # later, the keeper finds its jobs.
                emit("claim.failed", error=error)
                held.claim_doubted_at = time.monotonic()
                await asyncio.sleep(self._ask_pause)
                self._ask_pause = min(2 * self._ask_pause, LAST_ASK)
                jobs = await self._session.run(claiming.claimed(worker=worker, lease=lease))
            emit("jobs.claimed", worker=worker, jobs=Counted(jobs), seconds=time.monotonic() - begun)
            return held.take(lease, jobs)

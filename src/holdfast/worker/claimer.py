"""Claims jobs, and registers for which jobs to be woken. `demand` decides what to do next."""

import asyncio
import time
from dataclasses import replace
from uuid import uuid4

from holdfast.database import Session
from holdfast.operations import claiming, workers
from holdfast.operations.claiming import Claimed
from holdfast.telemetry import Counted, emit
from holdfast.values.errors import DatabaseUnavailable
from holdfast.worker import demand
from holdfast.worker.demand import Claim, Limits, Memory, Register, State, Wait
from holdfast.worker.held import HeldJobs
from holdfast.worker.pace import Pace

# The pause before the worker asks for a claim whose reply was lost.
ASK_SECONDS = 0.05


class Claimer:
    def __init__(
        self,
        session: Session,
        held: HeldJobs,
        limits: Limits,
        *,
        queues: list[str] | None,
        tasks: list[str],
    ) -> None:
        self._session = session
        self._held = held
        self._limits = limits
        self._queues = queues
        self._tasks = tasks
        self._memory = Memory()
        self._pace = Pace()
        self.jobs_per_second = 0.0
        # Made in advance: after an idle period it takes 70 µs.
        self._lease = str(uuid4())

    def forget_registration(self) -> None:
        """Forget for which jobs to be woken: it is outdated, or may be lost in a crash."""
        self._memory = replace(self._memory, asleep=False, above=None)

    async def step(self) -> float:
        """Do what is next, and return how long to wait before the step after it."""
        self.jobs_per_second = self._pace.after(self._held.ended)
        self._held.ended = 0
        self._give_back_surplus()
        match demand.decide(self._state()):
            case Claim() as claim:
                await self._claim_more(claim)
                return 0.0
            case Register() as step:
                await self._register(step)
                return 0.0
            case Wait(seconds, low):
                self._held.low = low
                if self._memory.empty and not self._memory.more and not self._held.hinted:
                    self._held.idle.set()
                self._lease = self._lease or str(uuid4())
                return min(seconds, demand.SURPLUS_SECONDS) if self._held.buffer else seconds

    def _state(self) -> State:
        held, last = self._held, self._held.last()
        ahead = 0
        if held.hinted and last is not None:
            first = held.first(self._limits.concurrency)
            ahead = sum(job.suspect or job.priority > last.priority for job in first)
        return State(
            now=time.monotonic(),
            memory=self._memory,
            limits=self._limits,
            running=len(held.running),
            buffered=len(held.buffer),
            unwritten=held.unwritten,
            pace=self.jobs_per_second,
            hinted=held.hinted,
            last=None if last is None else last.priority,
            ahead=ahead,
        )

    async def _claim_more(self, claim: Claim) -> None:
        held, memory = self._held, self._memory
        hinted, held.hinted = held.hinted, False
        jobs = await self._claim(claim)
        if jobs and (memory.empty or memory.asleep):
            self._pace.begin()
        now = time.monotonic()
        # The registration may have been forgotten meanwhile.
        self._memory = demand.after_claim(self._memory, claim, jobs, now=now, hinted=hinted)
        held.urgent_until = self._memory.urgent_at + demand.URGENT_SECONDS
        if len(jobs) == claim.amount and claim.above is not None:
            held.hinted = True  # there may be more of them

    async def _register(self, step: Register) -> None:
        was_asleep = self._memory.asleep
        # If the reply is lost, the registration is unknown.
        self.forget_registration()
        late = await self._session.run(workers.sleep(self._held.worker, above=step.above))
        self._memory = demand.after_registration(self._memory, step, late=late)
        # The worker may also have been woken while it registered.
        if step.pass_on or (was_asleep and step.above is not None and self._held.hinted):
            await self._session.run(workers.pass_on(self._held.worker))

    def _give_back_surplus(self) -> None:
        """Give back jobs that wait behind slow ones, for other workers."""
        if self._held.buffer and time.monotonic() - self._memory.found_at > demand.SURPLUS_SECONDS:
            self._held.give_back(self._held.take_surplus(self._state().prefetch))

    async def _claim(self, wanted: Claim) -> list[Claimed]:
        held, worker, begun = self._held, self._held.worker, time.monotonic()
        lease, self._lease = self._lease or str(uuid4()), ""
        call = claiming.claim(
            worker=worker,
            lease=lease,
            queues=self._queues,
            tasks=self._tasks,
            amount=wanted.amount,
            above=wanted.above,
        )
        held.in_flight.add(lease)
        try:
            try:
                jobs = await self._session.run(call)
            except DatabaseUnavailable as error:
                # The claim may have succeeded, and only the reply was lost: ask by its lease. If it succeeds
                # later, the keeper finds its jobs.
                emit("claim.failed", error=error)
                held.claim_doubted_at = time.monotonic()
                await asyncio.sleep(ASK_SECONDS)
                jobs = await self._session.run(claiming.claimed(worker=worker, lease=lease))
            emit("jobs.claimed", worker=worker, jobs=Counted(jobs), seconds=time.monotonic() - begun)
            return held.take(lease, jobs)
        except BaseException:
            # The question failed too. The keeper gives back jobs held under a lease that is unknown here.
            held.claim_doubted_at = time.monotonic()
            held.hinted = True  # so that the next step claims again
            raise
        finally:
            held.in_flight.discard(lease)
            held.changed.set()  # a drain may be waiting for this claim to return nothing

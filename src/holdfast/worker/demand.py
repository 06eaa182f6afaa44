"""Decides how much to claim, above which priority, and how long to wait.

A pure function of a small frozen state, so every rule here is tested as a row of a table. The claimer asks
`decide` for the next step, carries it out, and notes the result in its `Memory`.

    few jobs now and then     a notification brings each; the worker stays registered as asleep
    a stream of single jobs   claims every few milliseconds gather them, without notifications
    a backlog                 batches for the free slots and about 100 ms of work, one after another
    urgent jobs meanwhile     are claimed first; the others follow in small batches
"""

import math

import msgspec
from msgspec.structs import replace

from holdfast.operations.claiming import Claimed

BATCH = 2000
# While urgent jobs arrive, other jobs are claimed in small batches with a pause after each. An urgent job has
# to wait for the claim under way, and for its share of the server.
URGENT_BATCH, URGENT_PAUSE = 50, 0.01
# Another urgent job is expected for this long after the last one.
URGENT_SECONDS = 1.0
PREFETCH_SECONDS, MOST_PREFETCHED = 0.1, 4000
MOST_UNWRITTEN = 4000
# A claim ends at 16 MiB of payloads. One with this much may have left jobs behind.
MANY_BYTES = 8 * 1024 * 1024
# Jobs that come within this time of each other are a stream, and are claimed together every so often.
STREAM_SECONDS = 0.004
# The poll while transactions that may hold jobs are open. It doubles up to the longer one.
FIRST_POLL, LAST_POLL = 0.05, 1.0
# Jobs that have waited here for this long are given back, so no wait is longer while there are any.
SURPLUS_SECONDS = 1.0


# These are msgspec structs, because each job that comes alone waits for them: one takes 0.2 µs to make, and a
# dataclass 2 µs.
class Memory(msgspec.Struct, frozen=True):
    """What the worker remembers of its claims, and what it has registered."""

    # The last claim, and the last claim that found jobs.
    claimed_at: float = -math.inf
    found_at: float = -math.inf
    # Whether the last claim may have left jobs behind, and whether it found nothing.
    more: bool = True
    empty: bool = True
    # The priority of the last job found, and the time of the last urgent job.
    priority: int = 0
    urgent_at: float = -math.inf
    # Registered in the database: to be woken for every job, or only for jobs above a priority.
    asleep: bool = False
    above: int | None = None
    # The pause before the next look for transactions that were open when it fell asleep; 0 without any.
    late: float = 0.0


class State(msgspec.Struct, frozen=True):
    """The worker as the policy sees it. The first three fields stay as they are."""

    concurrency: int
    poll_interval: float
    listens: bool
    memory: Memory = Memory()
    now: float = 0.0
    running: int = 0
    buffered: int = 0
    unwritten: int = 0
    # Jobs per second.
    pace: float = 0.0
    # Whether there may be work that the last claim did not see.
    hinted: bool = False
    # The priority of the buffered job that starts last; None without one.
    last: int | None = None
    # How many of the jobs that start next are more urgent than that one.
    ahead: int = 0

    @property
    def expects_urgent(self) -> bool:
        return self.now - self.memory.urgent_at < URGENT_SECONDS

    @property
    def last_priority(self) -> int:
        return self.memory.priority if self.last is None else self.last

    @property
    def must_register(self) -> bool:
        """Return whether the worker must say that only more urgent jobs are to wake it."""
        above = self.memory.above
        return self.listens and (above is None or self.last_priority < above)


class Claim(msgspec.Struct, frozen=True):
    """Claim up to `amount` jobs; with `above`, only more urgent ones."""

    amount: int
    above: int | None = None


class Register(msgspec.Struct, frozen=True):
    """Tell the database for which jobs to wake the worker: all, or those above a priority."""

    above: int | None = None
    # The worker was woken and has no room, so others are woken instead.
    pass_on: bool = False


class GiveBack(msgspec.Struct, frozen=True):
    """Give back so many jobs that wait behind slow ones, for other workers."""

    amount: int


class Wait(msgspec.Struct, frozen=True):
    """Wait for a hint, or for a free slot while the buffer holds at most `low` jobs."""

    seconds: float
    low: int = -1


Decision = Claim | Register | GiveBack | Wait


def decide(state: State) -> Decision:
    """Return the next step of the claimer."""
    prefetch = min(int(state.pace * PREFETCH_SECONDS), MOST_PREFETCHED)
    wanted = state.concurrency - state.running + prefetch
    room, low = wanted - state.buffered, prefetch // 2
    has_room = room > low  # a good batch fits, or the buffer is nearly empty
    if state.unwritten > MOST_UNWRITTEN:
        return Wait(FIRST_POLL)
    if state.buffered > prefetch and state.now - state.memory.found_at > SURPLUS_SECONDS:
        return GiveBack(state.buffered - prefetch)
    above = min(state.concurrency, wanted) - state.ahead
    means_urgent = state.expects_urgent or (state.last is not None and not has_room)
    # A full worker that was asleep passes the wake-up on first.
    if state.hinted and means_urgent and above > 0 and (has_room or not state.memory.asleep):
        return Claim(above, above=state.last_priority)
    if has_room:
        return _rest(state) or Claim(min(room, URGENT_BATCH if state.expects_urgent else BATCH))
    if state.must_register:
        return Register(above=state.last_priority, pass_on=state.hinted and state.memory.asleep)
    return Wait(state.poll_interval, state.buffered if state.hinted else low)


def _rest(state: State) -> Decision | None:
    """Return what comes before the next claim: a pause or a registration; None to claim now."""
    memory, since = state.memory, state.now - state.memory.claimed_at
    if memory.more or state.hinted:
        streams = state.now - memory.found_at < STREAM_SECONDS and not memory.empty
        if streams and state.must_register:
            return Register(above=state.last_priority)  # further jobs like these need not send notifications
        if state.expects_urgent and not state.hinted and since < URGENT_PAUSE:
            return Wait(URGENT_PAUSE - since)
        return None
    if not memory.empty and not memory.asleep:
        return Wait(STREAM_SECONDS - since) if since < STREAM_SECONDS else None
    if state.listens and not memory.asleep:
        return Register()
    pause = min(memory.late or math.inf, state.poll_interval)
    if since < pause:
        return Wait(pause - since)
    return Register() if memory.late else None


def after_claim(memory: Memory, claim: Claim, jobs: list[Claimed], *, now: float, hinted: bool) -> Memory:
    """Return what the worker remembers after a claim. `hinted`: a hint came before it."""
    if claim.above is not None:
        if jobs:
            memory = replace(memory, urgent_at=now)
        elif now - memory.urgent_at >= URGENT_SECONDS:
            memory = replace(memory, above=None)  # the notification was for other jobs: register again
        # After the last urgent job, others follow at once.
        return memory if len(jobs) == claim.amount else replace(memory, more=True, claimed_at=-math.inf)
    if not jobs:
        return replace(memory, claimed_at=now, more=False, empty=True)
    first, last = jobs[0].priority, jobs[-1].priority
    more = len(jobs) == claim.amount or jobs[-1].suspect or sum(len(job.payload) for job in jobs) > MANY_BYTES
    urgent_at = now if hinted and first > last else memory.urgent_at
    found = replace(memory, claimed_at=now, found_at=now, more=more, empty=False)
    return replace(found, priority=last, urgent_at=urgent_at)


def after_registration(memory: Memory, step: Register, *, late: bool) -> Memory:
    """Return what the worker remembers after a registration. `late`: an open transaction may add jobs."""
    if step.above is not None:
        return replace(memory, asleep=False, above=step.above, late=0.0)
    pause = min(memory.late * 2 or FIRST_POLL, LAST_POLL) if late else 0.0
    # Jobs enqueued before the registration have sent no notification, so another claim follows.
    return replace(memory, asleep=True, above=None, late=pause, more=True)

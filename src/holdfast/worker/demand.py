"""Decide how much to claim, above which priority, and how long to wait.

A pure function of a small frozen state, so every rule here is tested as a row of a table. The claimer asks
`decide` for the next step, carries it out, and notes the result in its `Memory`.

    few jobs now and then     a notification brings each; the worker stays asleep
    a stream of single jobs   claims every few milliseconds gather them, without notifications
    a backlog                 batches for the free slots and about 100 ms of work, one after another
    urgent jobs meanwhile     are claimed first; the others follow in small batches
"""

import math

import msgspec
from msgspec.structs import replace

from holdfast.operations.claiming import Claimed

BATCH = 2000
# While urgent jobs arrive, other jobs are claimed in small batches with a pause after each. An urgent job
# waits until the claim under way ends, and competes with other jobs for the server.
URGENT_BATCH, URGENT_PAUSE = 50, 0.01
# Another urgent job is expected for this long after the last one.
URGENT_SECONDS = 1.0
PREFETCH_SECONDS, MOST_PREFETCHED = 0.1, 4000
MOST_UNWRITTEN = 4000
# A claim ends at 16 MiB of payloads. One with this much may have left jobs behind.
MANY_BYTES = 8 * 1024 * 1024
# Jobs that come within this time of each other are a stream, and are claimed together every 4 ms.
STREAM_SECONDS = 0.004
# The poll while transactions that may hold jobs are open. It doubles up to the longer one.
FIRST_POLL, LAST_POLL = 0.05, 1.0
# Buffered jobs are given back this long after the last claim that found jobs. While there are any, the
# claimer waits at most this long.
SURPLUS_SECONDS = 1.0


# These are msgspec structs, because each job that comes alone waits for them: one takes 0.2 µs to make, and a
# dataclass 2 µs.
class Memory(msgspec.Struct, frozen=True):
    """The last claims, and for which jobs the worker asked to be woken."""

    # The last claim, and the last claim that found jobs.
    claimed_at: float = -math.inf
    found_at: float = -math.inf
    # True if the last claim may have left jobs behind, and true if it found nothing.
    more: bool = True
    empty: bool = True
    # The priority of the last job found, and the time of the last urgent job.
    priority: int = 0
    urgent_at: float = -math.inf
    # What the database knows: every job wakes the worker, or only jobs above a priority.
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
    # True if there may be work that the last claim did not see.
    hinted: bool = False
    # The priority of the buffered job that starts last; None without one.
    last: int | None = None
    # The number of jobs among the next ones that are more urgent than that one. It is counted after a hint.
    ahead: int = 0

    @property
    def expects_urgent(self) -> bool:
        return self.now - self.memory.urgent_at < URGENT_SECONDS

    @property
    def last_priority(self) -> int:
        return self.memory.priority if self.last is None else self.last

    @property
    def wake_ups_outdated(self) -> bool:
        """Return whether the worker must limit its wake-ups to more urgent jobs."""
        above = self.memory.above
        return self.listens and (above is None or self.last_priority < above)


class Claim(msgspec.Struct, frozen=True):
    """A claim of up to `amount` jobs; with `above`, only of more urgent ones."""

    amount: int
    above: int | None = None


class SetWakeUps(msgspec.Struct, frozen=True):
    """A message to the database: which jobs wake this worker. All, or those above a priority."""

    above: int | None = None
    # True if the worker was woken and has no room, so that others must be woken instead.
    pass_on: bool = False


class GiveBack(msgspec.Struct, frozen=True):
    """`amount` jobs to return to other workers, because they wait behind slow ones."""

    amount: int


class Wait(msgspec.Struct, frozen=True):
    """A wait for a hint, or for a free slot while the buffer holds at most `low` jobs."""

    seconds: float
    low: int = -1


Decision = Claim | SetWakeUps | GiveBack | Wait


def decide(state: State) -> Decision:
    """Return the next step of the claimer."""
    prefetch = min(int(state.pace * PREFETCH_SECONDS), MOST_PREFETCHED)
    wanted = state.concurrency - state.running + prefetch
    room, low = wanted - state.buffered, prefetch // 2
    has_room = room > low  # the buffer is below half its target
    if state.unwritten > MOST_UNWRITTEN:
        return Wait(FIRST_POLL)
    if state.buffered > prefetch and state.now - state.memory.found_at > SURPLUS_SECONDS:
        return GiveBack(state.buffered - prefetch)
    urgent_room = min(state.concurrency, wanted) - state.ahead
    only_urgent = state.expects_urgent or (state.last is not None and not has_room)
    # A full worker that was asleep passes the wake-up on first.
    if state.hinted and only_urgent and urgent_room > 0 and (has_room or not state.memory.asleep):
        return Claim(urgent_room, above=state.last_priority)
    if has_room:
        return _before_claim(state) or Claim(min(room, URGENT_BATCH if state.expects_urgent else BATCH))
    if state.wake_ups_outdated:
        return SetWakeUps(above=state.last_priority, pass_on=state.hinted and state.memory.asleep)
    # After a hint, any free slot is a reason to look.
    return Wait(state.poll_interval, state.buffered if state.hinted else low)


def _before_claim(state: State) -> Decision | None:
    """Return the pause or the message that is due before the next claim; None to claim now."""
    memory, since = state.memory, state.now - state.memory.claimed_at
    if memory.more or state.hinted:
        found_just_now = state.now - memory.found_at < STREAM_SECONDS and not memory.empty
        if found_just_now and state.wake_ups_outdated:
            # Further jobs like these need not send notifications.
            return SetWakeUps(above=state.last_priority)
        if state.expects_urgent and not state.hinted and since < URGENT_PAUSE:
            return Wait(URGENT_PAUSE - since)
        return None
    if not memory.empty and not memory.asleep:
        return Wait(STREAM_SECONDS - since) if since < STREAM_SECONDS else None
    if state.listens and not memory.asleep:
        return SetWakeUps()
    pause = min(memory.late or math.inf, state.poll_interval)
    if since < pause:
        return Wait(pause - since)
    return SetWakeUps() if memory.late else None


def after_claim(memory: Memory, claim: Claim, jobs: list[Claimed], *, now: float, hinted: bool) -> Memory:
    """Return the memory after a claim. `hinted` tells that a hint came before it."""
    if claim.above is not None:
        if jobs:
            memory = replace(memory, urgent_at=now)
        elif now - memory.urgent_at >= URGENT_SECONDS:
            memory = replace(memory, above=None)  # the notification was for other jobs: ask again
        # After the last urgent job, others follow at once.
        return memory if len(jobs) == claim.amount else replace(memory, more=True, claimed_at=-math.inf)
    if not jobs:
        return replace(memory, claimed_at=now, more=False, empty=True)
    first, last = jobs[0].priority, jobs[-1].priority
    more = len(jobs) == claim.amount or jobs[-1].suspect or sum(len(job.payload) for job in jobs) > MANY_BYTES
    urgent_at = now if hinted and first > last else memory.urgent_at
    found = replace(memory, claimed_at=now, found_at=now, more=more, empty=False)
    return replace(found, priority=last, urgent_at=urgent_at)


def after_setting(memory: Memory, message: SetWakeUps, *, late: bool) -> Memory:
    """Return the memory after a message. `late` tells that an open transaction may add jobs."""
    if message.above is not None:
        return replace(memory, asleep=False, above=message.above, late=0.0)
    pause = min(memory.late * 2 or FIRST_POLL, LAST_POLL) if late else 0.0
    # Jobs enqueued before it have sent no notification, so another claim follows.
    return replace(memory, asleep=True, above=None, late=pause, more=True)

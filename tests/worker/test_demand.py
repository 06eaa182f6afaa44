"""The policy of the claimer, one rule a row. The id of each row is the promise."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.operations.claiming import Claimed
from holdfast.worker import demand
from holdfast.worker.demand import (
    BATCH,
    FIRST_POLL,
    LAST_POLL,
    MANY_BYTES,
    MOST_PREFETCHED,
    MOST_UNWRITTEN,
    STREAM_SECONDS,
    SURPLUS_SECONDS,
    URGENT_BATCH,
    URGENT_PAUSE,
    URGENT_SECONDS,
    Claim,
    Decision,
    GiveBack,
    Memory,
    SetWakeUps,
    State,
    Wait,
)

NOW = 0.0
POLL = 5.0
MILLISECOND = 0.001

# What a worker remembers in the situations that the rules are about.
NEW = Memory()
BUSY = Memory(claimed_at=NOW, found_at=NOW, more=False, empty=False, priority=100)
IDLE = Memory(claimed_at=NOW, found_at=NOW - 60, more=False, empty=True, priority=100)
ASLEEP = replace(IDLE, asleep=True)
# Just asleep, and the claim has found one job.
LONE_JOB = replace(BUSY, asleep=True)
# Only more urgent jobs are to wake it.
REGISTERED = replace(BUSY, above=100)
BACKLOG = replace(REGISTERED, more=True)
SLOW = replace(BACKLOG, found_at=NOW - SURPLUS_SECONDS - MILLISECOND)
URGENT = replace(BACKLOG, urgent_at=NOW)


def state(memory: Memory, *, concurrency: int = 10, listens: bool = True, **fields: Any) -> State:
    """Return a state with free slots, an empty buffer and nothing new."""
    return State(concurrency, POLL, listens, memory, NOW, **fields)


def full(memory: Memory, **fields: Any) -> State:
    """Return a state without a free slot."""
    return state(memory, **({"running": 10} | fields))


def rows(*table: tuple[str, State, Decision]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("situation", "decision"), [pytest.param(each, step, id=name) for name, each, step in table]
    )


def check(situation: State, decision: Decision) -> None:
    assert demand.decide(situation) == decision


@rows(
    ("a new worker claims at once", state(NEW, concurrency=9999), Claim(BATCH)),
    ("a claim asks for as many jobs as there are free slots", state(NEW, running=3), Claim(7)),
    ("a woken worker claims at once", state(ASLEEP, hinted=True), Claim(10)),
    ("a full batch is followed by the next claim", state(BACKLOG), Claim(10)),
    ("with a backlog a claim is large", state(BACKLOG, concurrency=9999), Claim(BATCH)),
    (
        "before it claims on, the worker says that further jobs need not wake it",
        state(replace(BACKLOG, above=None)),
        SetWakeUps(above=100),
    ),
)
def test_claiming(situation: State, decision: Decision) -> None:
    check(situation, decision)


@rows(
    ("a lone job stays registered and does not look again", state(LONE_JOB), Wait(POLL)),
    (
        "after a claim that found nothing, the last look follows, and no other registration",
        state(replace(LONE_JOB, empty=True, more=True)),
        Claim(10),
    ),
    (
        "a second job within the same milliseconds is a stream, and the others need not notify",
        state(replace(LONE_JOB, found_at=NOW - STREAM_SECONDS / 2), hinted=True),
        SetWakeUps(above=100),
    ),
    (
        "a second job after a while is just claimed",
        state(replace(LONE_JOB, found_at=NOW - STREAM_SECONDS), hinted=True),
        Claim(10),
    ),
    (
        "the jobs of a stream gather before the next claim",
        state(replace(REGISTERED, claimed_at=NOW - MILLISECOND)),
        Wait(STREAM_SECONDS - MILLISECOND),
    ),
    (
        "the gathered jobs of a stream are claimed together",
        state(replace(REGISTERED, claimed_at=NOW - STREAM_SECONDS)),
        Claim(10),
    ),
    (
        "a stream that has ended registers for every job again",
        state(replace(REGISTERED, empty=True)),
        SetWakeUps(),
    ),
    ("the registration is followed by a claim", state(replace(ASLEEP, more=True)), Claim(10)),
)
def test_a_stream_of_single_jobs(situation: State, decision: Decision) -> None:
    check(situation, decision)


@rows(
    ("an idle worker waits for its poll", state(replace(ASLEEP, claimed_at=NOW - 2)), Wait(POLL - 2)),
    ("an idle worker claims at its poll", state(replace(ASLEEP, claimed_at=NOW - POLL)), Claim(10)),
    ("an idle worker registers if it has not", state(IDLE), SetWakeUps()),
    (
        "a worker that does not listen never registers, and waits for its poll",
        state(replace(IDLE, claimed_at=NOW - 2), listens=False),
        Wait(POLL - 2),
    ),
    (
        "a worker that does not listen claims at its poll",
        state(replace(IDLE, claimed_at=NOW - POLL), listens=False),
        Claim(10),
    ),
    (
        "a full worker that does not listen just waits for a slot",
        full(replace(BACKLOG, above=None), listens=False),
        Wait(POLL, low=0),
    ),
    (
        "a worker that does not listen claims the jobs of a stream without registering",
        state(BUSY, listens=False, hinted=True),
        Claim(10),
    ),
    (
        "while a transaction is open that may add jobs, it waits less",
        state(replace(ASLEEP, late=FIRST_POLL, claimed_at=NOW - 0.02)),
        Wait(FIRST_POLL - 0.02),
    ),
    (
        "after that it registers again, to ask for such transactions",
        state(replace(ASLEEP, late=FIRST_POLL, claimed_at=NOW - FIRST_POLL)),
        SetWakeUps(),
    ),
    (
        "a poll that is shorter still takes place",
        state(replace(ASLEEP, late=POLL + 1, claimed_at=NOW - POLL)),
        SetWakeUps(),
    ),
)
def test_idle(situation: State, decision: Decision) -> None:
    check(situation, decision)


@rows(
    ("the work of the next 100 ms is prefetched", full(BACKLOG, pace=1000, last=100), Claim(100)),
    ("prefetched jobs count", full(BACKLOG, pace=1000, buffered=40, last=100), Claim(60)),
    (
        "the prefetch has a limit",
        full(BACKLOG, pace=1e6, buffered=MOST_PREFETCHED // 2, last=100),
        Wait(POLL, low=MOST_PREFETCHED // 2),
    ),
    (
        "a buffer that is half full waits until it is less than that",
        full(BACKLOG, pace=1000, buffered=50, last=100),
        Wait(POLL, low=50),
    ),
    (
        "a buffer that is less than half full is filled up",
        full(BACKLOG, pace=1000, buffered=49, last=100),
        Claim(51),
    ),
    ("without a pace there is no prefetch", full(BACKLOG), Wait(POLL, low=0)),
)
def test_prefetch(situation: State, decision: Decision) -> None:
    check(situation, decision)


@rows(
    (
        "jobs that wait behind slow ones are given back, except for the work of the next 100 ms",
        full(SLOW, pace=100, buffered=30, last=100),
        GiveBack(20),
    ),
    (
        "jobs that were found just now may still be run soon",
        full(replace(SLOW, found_at=NOW - SURPLUS_SECONDS), pace=100, buffered=30, last=100),
        Wait(POLL, low=5),
    ),
    (
        "what is run within the next 100 ms is kept",
        full(SLOW, pace=100, buffered=10, last=100),
        Wait(POLL, low=5),
    ),
)
def test_surplus(situation: State, decision: Decision) -> None:
    check(situation, decision)


@rows(
    (
        "unwritten outcomes stop the claims",
        state(BACKLOG, unwritten=MOST_UNWRITTEN + 1, hinted=True),
        Wait(FIRST_POLL),
    ),
    ("some unwritten outcomes do not stop the claims", state(BACKLOG, unwritten=MOST_UNWRITTEN), Claim(10)),
)
def test_unwritten_outcomes(situation: State, decision: Decision) -> None:
    check(situation, decision)


@rows(
    (
        "a full buffer claims more urgent jobs when woken, as many as there are slots",
        full(BACKLOG, pace=1000, buffered=100, last=100, hinted=True),
        Claim(10, above=100),
    ),
    (
        "urgent jobs in the buffer count",
        full(BACKLOG, pace=1000, buffered=100, last=100, ahead=7, hinted=True),
        Claim(3, above=100),
    ),
    (
        "if all that start next are urgent, no more are claimed",
        full(BACKLOG, pace=1000, buffered=100, last=100, ahead=10, hinted=True),
        Wait(POLL, low=100),
    ),
    (
        "while urgent jobs come, a notification means them, and there may be room for others",
        state(URGENT, pace=1000, buffered=20, last=100, hinted=True),
        Claim(10, above=100),
    ),
    (
        "while none come, a notification with room for others is answered by an ordinary claim",
        state(BACKLOG, pace=1000, buffered=20, last=100, hinted=True),
        Claim(90),
    ),
    (
        "while urgent jobs come, others are claimed in small batches",
        state(replace(URGENT, claimed_at=NOW - URGENT_PAUSE), concurrency=500),
        Claim(URGENT_BATCH),
    ),
    (
        "each small batch is followed by a pause",
        state(replace(URGENT, claimed_at=NOW - 0.004), pace=1000, buffered=20, last=100),
        Wait(URGENT_PAUSE - 0.004),
    ),
    (
        "after the pause comes the next small batch",
        state(replace(URGENT, claimed_at=NOW - URGENT_PAUSE), pace=1000, buffered=20, last=100),
        Claim(URGENT_BATCH),
    ),
    (
        "a notification ends the pause",
        state(
            replace(URGENT, claimed_at=NOW - 0.004), pace=1000, buffered=20, last=100, ahead=10, hinted=True
        ),
        Claim(URGENT_BATCH),
    ),
    (
        "with an empty buffer a notification is answered by jobs more urgent than the last ones",
        state(URGENT, concurrency=500, hinted=True),
        Claim(500, above=100),
    ),
    (
        "the pause comes also after jobs that have started at once",
        state(URGENT, concurrency=500, pace=1000),
        Wait(URGENT_PAUSE),
    ),
    (
        "a while after the last urgent job the batches are large again",
        state(replace(URGENT, urgent_at=NOW - URGENT_SECONDS), concurrency=9999),
        Claim(BATCH),
    ),
)
def test_urgent_jobs(situation: State, decision: Decision) -> None:
    check(situation, decision)


@rows(
    (
        "a full worker registers for more urgent jobs only",
        full(replace(BACKLOG, above=None)),
        SetWakeUps(above=100),
    ),
    (
        "a full worker that was woken passes that on",
        full(LONE_JOB, hinted=True),
        SetWakeUps(above=100, pass_on=True),
    ),
    (
        "a full worker that was not woken passes nothing on",
        full(LONE_JOB),
        SetWakeUps(above=100),
    ),
    (
        "the registration goes by the job that starts last",
        full(replace(LONE_JOB, priority=30), buffered=9, last=20),
        SetWakeUps(above=20),
    ),
    (
        "a registration that is higher than the waiting jobs is lowered",
        full(replace(BACKLOG, above=150), buffered=9, last=100),
        SetWakeUps(above=100),
    ),
    (
        "a registration that is lower than the waiting jobs is kept",
        full(replace(BACKLOG, above=50), buffered=9, last=100),
        Wait(POLL, low=0),
    ),
    (
        "a registration that was too low is raised",
        full(replace(BACKLOG, above=None), pace=1000, buffered=100, last=100),
        SetWakeUps(above=100),
    ),
    (
        "a full worker that may claim more looks again as soon as a slot is free",
        full(BACKLOG, pace=1000, buffered=80, last=100, ahead=10, hinted=True),
        Wait(POLL, low=80),
    ),
    (
        "a full worker waits until its buffer is nearly empty",
        full(BACKLOG, pace=1000, buffered=80, last=100),
        Wait(POLL, low=50),
    ),
    (
        "a full worker that was asleep passes the wake-up on before it looks for urgent jobs",
        full(ASLEEP, pace=1000, buffered=100, last=100, hinted=True),
        SetWakeUps(above=100, pass_on=True),
    ),
)
def test_a_full_worker(situation: State, decision: Decision) -> None:
    check(situation, decision)


# What a worker remembers after a claim.


def job(priority: int = 100, *, suspect: bool = False, payload: str = "{}") -> Claimed:
    return Claimed("lease", "id", "task", payload, 1, 3, "default", priority, suspect, 0, None)


ORDINARY = Claim(3)
ABOVE = Claim(3, above=100)
BEFORE = replace(IDLE, claimed_at=NOW - 9, found_at=NOW - 9)
FOUND: dict[str, Any] = {"claimed_at": NOW, "found_at": NOW, "empty": False, "priority": 100}


@pytest.mark.parametrize(
    ("memory", "claim", "jobs", "hinted", "changes"),
    [
        pytest.param(BEFORE, ORDINARY, [job()], False, FOUND, id="a claim that found fewer has taken all"),
        pytest.param(
            BEFORE, ORDINARY, [job()] * 3, False, {**FOUND, "more": True}, id="a full batch may leave jobs"
        ),
        pytest.param(
            BEFORE,
            ORDINARY,
            [job(), job(suspect=True)],
            False,
            {**FOUND, "more": True},
            id="a suspect comes alone, so it may leave jobs",
        ),
        pytest.param(
            BEFORE,
            ORDINARY,
            [job(payload=" " * MANY_BYTES), job(payload=" ")],
            False,
            {**FOUND, "more": True},
            id="many bytes of payload may leave jobs",
        ),
        pytest.param(
            BEFORE,
            ORDINARY,
            [job(payload=" " * (MANY_BYTES - 2)), job()],
            False,
            FOUND,
            id="fewer bytes of payload leave none",
        ),
        pytest.param(
            replace(BUSY, claimed_at=NOW - 1, more=True),
            ORDINARY,
            [],
            True,
            {"claimed_at": NOW, "more": False, "empty": True},
            id="a claim that found nothing is noted, and when jobs were last found is kept",
        ),
        pytest.param(
            BEFORE,
            ORDINARY,
            [job(200), job(30)],
            True,
            {**FOUND, "priority": 30, "urgent_at": NOW},
            id="a notified claim that found two priorities means that urgent jobs come",
        ),
        pytest.param(
            BEFORE,
            ORDINARY,
            [job(200), job(30)],
            False,
            {**FOUND, "priority": 30},
            id="a claim without a notification does not",
        ),
        pytest.param(
            BEFORE,
            ORDINARY,
            [job(30), job(30)],
            True,
            {**FOUND, "priority": 30},
            id="jobs of one priority are not urgent",
        ),
        pytest.param(
            REGISTERED,
            ABOVE,
            [job(200)],
            True,
            {"urgent_at": NOW, "more": True, "claimed_at": -math.inf},
            id="urgent jobs are expected after some",
        ),
        pytest.param(
            REGISTERED,
            ABOVE,
            [],
            True,
            {"more": True, "above": None, "claimed_at": -math.inf},
            id="no urgent job means that the registration is too low, so it is made anew",
        ),
        pytest.param(
            replace(REGISTERED, urgent_at=NOW - 0.01),
            ABOVE,
            [],
            True,
            {"more": True, "claimed_at": -math.inf},
            id="unless urgent jobs have come just before, and these were the last of them",
        ),
    ],
)
def test_what_a_claim_leaves_in_memory(
    memory: Memory, claim: Claim, jobs: list[Claimed], hinted: bool, changes: dict[str, Any]
) -> None:
    assert demand.after_claim(memory, claim, jobs, now=NOW, hinted=hinted) == replace(memory, **changes)


@pytest.mark.parametrize(
    ("memory", "step", "late", "changes"),
    [
        pytest.param(
            IDLE,
            SetWakeUps(),
            False,
            {"asleep": True, "more": True},
            id="jobs enqueued before it sent no notification, so a claim follows",
        ),
        pytest.param(
            REGISTERED,
            SetWakeUps(),
            False,
            {"asleep": True, "above": None, "more": True},
            id="it replaces a registration for urgent jobs",
        ),
        pytest.param(
            IDLE,
            SetWakeUps(),
            True,
            {"asleep": True, "more": True, "late": FIRST_POLL},
            id="an open transaction means polling",
        ),
        pytest.param(
            replace(ASLEEP, late=FIRST_POLL),
            SetWakeUps(),
            True,
            {"more": True, "late": 2 * FIRST_POLL},
            id="the poll doubles while it stays open",
        ),
        pytest.param(
            replace(ASLEEP, late=LAST_POLL * 0.8),
            SetWakeUps(),
            True,
            {"more": True, "late": LAST_POLL},
            id="the poll grows no further than a second",
        ),
        pytest.param(
            replace(ASLEEP, late=FIRST_POLL),
            SetWakeUps(),
            False,
            {"more": True, "late": 0.0},
            id="the poll ends with the transaction",
        ),
        pytest.param(
            replace(LONE_JOB, late=FIRST_POLL),
            SetWakeUps(above=30),
            True,
            {"asleep": False, "above": 30, "late": 0.0},
            id="a registration for urgent jobs ends the sleep and the poll",
        ),
        pytest.param(
            BACKLOG,
            SetWakeUps(above=30, pass_on=True),
            False,
            {"above": 30},
            id="a registration for urgent jobs does not forget a backlog",
        ),
    ],
)
def test_what_a_registration_leaves_in_memory(
    memory: Memory, step: SetWakeUps, late: bool, changes: dict[str, Any]
) -> None:
    assert demand.after_setting(memory, step, late=late) == replace(memory, **changes)

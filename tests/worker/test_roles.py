"""A producer, a worker, a viewer and an operator, each with its own role and no other right."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from holdfast import Context, Holdfast, JobState, NotAllowed, RetryPolicy, Schedule
from holdfast.database.copy_in import SMALLEST_COPY
from tests.fixtures import Ask, Login, Until
from tests.waiting import Told, Work

AMOUNT = SMALLEST_COPY * 2


@pytest.fixture
def roles(hf: Holdfast, login: Login) -> Iterator[dict[str, Holdfast]]:
    """A Holdfast for each role."""
    hf.migrate(roles=True)
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(Holdfast(login(kind)))
            for kind in ("producer", "worker", "viewer", "operator")
        }


def test_a_job_goes_its_way_with_a_role_for_each_who_handles_it(
    roles: dict[str, Holdfast], told: Told, until: Until
) -> None:
    producer, worker = roles["producer"], roles["worker"]

    @worker.task(name="double", retry=RetryPolicy(max_attempts=2), schedule=Schedule(cron="0 9 * * *"))
    async def double(ctx: Context, number: int = 1) -> int:
        ctx.progress(50, stage="half")
        ctx.event("seen", {"number": number})
        return await ctx.astep("doubled", twice, number)

    async def twice(number: int) -> int:
        return number * 2

    @worker.task(name="fails", max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    work = Work(worker, {"concurrency": 4})
    try:
        job = producer.enqueue("double", {"number": 4})
        assert job.result(timeout=15) == 8
        many = producer.enqueue_many([double.call(number=number) for number in range(AMOUNT)])
        dead = producer.enqueue("fails")
        assert producer.jobs.gather(many, timeout=15) == [number * 2 for number in range(AMOUNT)]
        until(lambda: producer.job(dead.id).refresh().state is JobState.DEAD)
        assert producer.job(job.id).refresh().state is JobState.COMPLETED
        later = producer.enqueue("double", delay=3600)
        assert later.cancel() == "cancelled"
    finally:
        work.end()
    assert [name for name, _ in told.events if name.endswith((".failed", ".error"))] == ["job.failed"]

    viewer, operator = roles["viewer"], roles["operator"]
    assert len(viewer.jobs.list(limit=1000)) == SMALLEST_COPY * 2 + 3
    assert "seen" in [event.name for event in viewer.job(job.id).events(follow=False)]
    assert [error.error for error in viewer.job(dead.id).errors()] == ["ValueError: no"]
    assert viewer.job(job.id).steps()[0].result == 8
    assert {row.queue for row in viewer.stats.count()} == {"default"}
    assert operator.job(dead.id).replay() is JobState.PENDING
    operator.queues.pause("default")
    operator.schedules.pause("double")
    operator.policies.set("double", RetryPolicy(max_attempts=5))
    worker.worker()  # declares its policies and schedules again, and says nothing against the operator
    assert [row.max_attempts for row in viewer.policies.list() if row.task == "double"] == [5]
    assert viewer.schedules.list()[0].paused_at is not None


def test_copy_is_the_way_of_a_producer_too(roles: dict[str, Holdfast], ask: Ask) -> None:
    producer = roles["producer"]

    @producer.task(name="t", queue="bulk")
    def task(number: int) -> None: ...

    producer.enqueue_many([task.call(number=number) for number in range(SMALLEST_COPY)])
    ((amount, ascending),) = ask(
        # Ids that this process has made, which only a COPY names, count up.
        "select count(*), bool_and(step = 1) from (select place - lag(place) over (order by seq) as step "
        "from (select seq, ('x' || right(id::text, 12))::bit(48)::bigint as place from holdfast.job) j) s "
        "where step is not null"
    )
    assert (amount, ascending) == (SMALLEST_COPY - 1, True)


def test_what_a_role_may_not_do_raises_an_error_that_says_what_to_ask_for(roles: dict[str, Holdfast]) -> None:
    attempts: dict[str, Callable[[Holdfast], object]] = {
        "producer": lambda hf: hf.jobs.list(),
        "worker": lambda hf: hf.enqueue("t"),
        "viewer": lambda hf: hf.queues.pause("default"),
        "operator": lambda hf: hf.grants.grant("somebody", ["a"]),
    }
    for kind, attempt in attempts.items():
        with pytest.raises(NotAllowed, match=r"permission denied for function .* holdfast_ roles") as raised:
            attempt(roles[kind])
        assert raised.value.sqlstate == "42501"
    for kind, holdfast in roles.items():
        holdfast.verify()
        assert holdfast.migrate() == [], f"there is nothing to do, not even for a {kind}"


def test_a_worker_without_its_role_does_not_start(roles: dict[str, Holdfast], login: Login) -> None:
    with Holdfast(login()) as stranger, pytest.raises(NotAllowed, match="permission denied"):
        stranger.worker()
    with pytest.raises(NotAllowed):
        roles["viewer"].worker().run(drain=True)


def test_access_is_granted_listed_and_taken_from_python(hf: Holdfast, roles: dict[str, Holdfast]) -> None:
    asyncio.run(_access(hf, roles))


async def _access(hf: Holdfast, roles: dict[str, Holdfast]) -> None:
    name = roles["producer"].dsn.partition("user=")[2].split()[0]
    hf.grants.grant(name, ["acme.*"])
    await hf.grants.agrant(name, ["shared"])
    assert [(row.role, row.queues) for row in await hf.grants.alist()] == [(name, "acme.*"), (name, "shared")]
    roles["producer"].enqueue("t", queue="acme.mail")
    with pytest.raises(NotAllowed, match="may not use queue other"):
        roles["producer"].enqueue("t", queue="other")
    assert await hf.grants.arevoke(name, ["shared"]) == 1
    assert hf.grants.revoke(name) == 1
    assert hf.grants.list() == []

"""What a type checker must see of the public names: checked by mypy and pyright in `make lint`, never run.

What it must refuse is in `refused.py`.
"""

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any, assert_type
from uuid import UUID

from holdfast import Context, Done, Event, Holdfast, Job, JobSnapshot, JobState, NewJob, Retry, Snooze
from holdfast.operations.jobs import Cancelled
from holdfast.operations.stats import Stat
from holdfast.testing import Clock, Crashes, HandlerFailed, assert_enqueued, inline

hf = Holdfast()
conn: Any = None


@hf.task
async def welcome(user_id: int) -> str:
    return str(user_id)


@hf.task(queue="mail", priority=150, max_attempts=5, timeout=60)
async def remind(ctx: Context, user_id: int) -> dict[str, int]:
    assert_type(ctx.attempt, int)
    return {"user": user_id}


@hf.task
def plain(path: str, *, times: int = 1) -> bytes:
    return path.encode() * times


@hf.task
def charge(ctx: Context, order: int) -> str | Retry:
    return Retry(60) if ctx.attempt == 1 else str(order)


@hf.task(queue="mail")
async def poll(address: str) -> bytes | Snooze | Done | None:
    return None if address else Snooze(5)


@hf.task
def anything(payload: Any) -> None: ...


@hf.task
def nothing() -> None: ...


# Enqueueing checks the parameters of the task, without the context, and knows the result of the handler.

assert_type(welcome.enqueue(7), Job[str])
assert_type(welcome.enqueue(user_id=7), Job[str])
assert_type(remind.enqueue(user_id=7), Job[dict[str, int]])
assert_type(remind.options(delay=60).enqueue(user_id=7), Job[dict[str, int]])
assert_type(remind.on(conn).options(delay=60).enqueue(7), Job[dict[str, int]])
assert_type(plain.enqueue("a", times=2), Job[bytes])
assert_type(plain.on(conn).enqueue("a"), Job[bytes])
assert_type(charge.enqueue(order=7), Job[str])
assert_type(poll.enqueue("a"), Job[bytes | None])
assert_type(nothing.enqueue(), Job[None])
anything.enqueue({"any": "thing"})
assert_type(welcome.call(user_id=7), NewJob)
assert_type(remind.options(priority=3).call(user_id=7), NewJob)

# A task is still its function.

assert_type(plain("a"), bytes)


async def enqueue_async(ctx: Context) -> None:
    assert_type(await welcome.aenqueue(user_id=7), Job[str])
    assert_type(await remind.aenqueue(7), Job[dict[str, int]])
    assert_type(await plain.options(delay=1).aenqueue("a"), Job[bytes])
    assert_type(await charge.on(conn).aenqueue(order=7), Job[str])
    assert_type(await poll.aenqueue("a"), Job[bytes | None])
    assert_type(await welcome(7), str)
    assert_type(await remind(ctx, user_id=7), dict[str, int])
    assert_type(await (await welcome.aenqueue(7)).aresult(timeout=1), str)
    assert_type(await hf.aenqueue("mail.welcome", {"user_id": 7}, delay=5), Job[Any])
    assert_type(await hf.aenqueue_many([welcome.call(7)]), list[Job[Any]])
    assert_type(await hf.jobs.agather([welcome.enqueue(7)]), list[str])
    assert_type(await hf.jobs.alist(queue="mail"), list[JobSnapshot])
    assert_type(await hf.on(conn).dead.areplay("id", start_over=True), JobState)
    assert_type(await hf.job("id").acancel(), str)
    assert_type(hf.events.aread(queue="mail"), AsyncIterator[Event])
    async with Holdfast() as client:
        assert_type(client, Holdfast)


# Results.

assert_type(welcome.enqueue(user_id=7).result(), str)
assert_type(charge.enqueue(order=7).result(timeout=5), str)
assert_type(hf.jobs.gather([plain.enqueue("a"), plain.enqueue("b")]), list[bytes])
assert_type(hf.jobs.gather([remind.enqueue(7)], return_exceptions=True), list[dict[str, int] | BaseException])

# The client and its namespaces.

assert_type(hf.enqueue("mail.welcome", {"user_id": 7}).run_now(), JobState)
assert_type(hf.enqueue(welcome.call(user_id=7)), Job[Any])
assert_type(hf.on(conn).enqueue_many(welcome.call(user_id=i) for i in range(3)), list[Job[Any]])
assert_type(welcome.enqueue(user_id=7).refresh(), JobSnapshot)
assert_type(welcome.enqueue(user_id=7).replay(start_over=True), JobState)
assert_type(hf.job("id").reschedule(delay=60), datetime)
assert_type(hf.dead.replay_many(queue="mail", limit=5), int)
assert_type(hf.jobs.cancel_many(["id"]), dict[UUID, str | None])
assert_type(hf.jobs.cancel_matching(queue="mail"), Cancelled)
assert_type(hf.stats.count(), list[Stat])
assert_type(hf.events.read(job_id="id"), Iterator[Event])
assert_type(hf.schedules.add("nightly", nothing, cron="0 2 * * *"), datetime)
assert_type(hf.schedules.run("nightly"), Job[Any])
hf.settings.configure("mail", retention=60, max_attempts=5)
hf.worker(queues=["mail"], concurrency=5, http=8080).run(drain=True)

# Testing.

assert_type(Clock("").advance(hours=1), datetime)
assert_type(assert_enqueued(hf, welcome, args={"user_id": 7}, count=1), list[JobSnapshot])
assert_type(Crashes(hf).before(welcome), JobSnapshot)
with inline(hf):
    assert_type(HandlerFailed("", plain.enqueue("a").refresh()).job, JobSnapshot)

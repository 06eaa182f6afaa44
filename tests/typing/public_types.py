"""What a type checker must see of the public names: checked by mypy in `make lint`, never run."""

from datetime import datetime
from typing import assert_type

from holdfast import Context, Holdfast, Job, JobSnapshot, JobState
from holdfast.task import JobHandle
from holdfast.testing import Clock, Crashes, HandlerFailed, assert_enqueued, inline

hf = Holdfast()


@hf.task
async def welcome(user_id: int) -> str:
    return str(user_id)


@hf.task(queue="mail", priority=150, max_attempts=5, timeout=60)
async def remind(user_id: int, ctx: Context) -> dict[str, int]:
    assert_type(ctx.attempt, int)
    return {"user": user_id}


@hf.task
def plain(path: str) -> bytes:
    return path.encode()


assert_type(welcome.enqueue(user_id=7), JobHandle[str])
assert_type(remind.options(delay=60).enqueue(user_id=7), JobHandle[dict[str, int]])
assert_type(plain.enqueue("a"), JobHandle[bytes])
assert_type(plain("a"), bytes)
assert_type(welcome.enqueue(user_id=7).refresh(), JobSnapshot)
assert_type(hf.enqueue("mail.welcome", {"user_id": 7}).run_now(), JobState)

jobs: list[Job[object]] = hf.enqueue_many(welcome.call(user_id=i) for i in range(3))

assert_type(Clock("").advance(hours=1), datetime)
assert_type(assert_enqueued(hf, welcome, args={"user_id": 7}, count=1), list[JobSnapshot])
assert_type(Crashes(hf).before(welcome), JobSnapshot)
with inline(hf):
    assert_type(HandlerFailed("", plain.enqueue("a").refresh()).job, JobSnapshot)

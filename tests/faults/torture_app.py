"""A worker for the torture: handlers of every kind, and effects that are counted afterwards."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from holdfast import Context, Holdfast, RetryPolicy, Snooze

hf = Holdfast()
soon = RetryPolicy(max_attempts=5, base=0.2, factor=1, jitter=0)


@hf.task(name="noop", retry=soon)
async def noop() -> None: ...


@hf.task(name="slow", retry=soon)
async def slow(seconds: float) -> None:
    await asyncio.sleep(seconds)


@hf.task(name="thread", retry=soon)
def thread(seconds: float) -> None:
    time.sleep(seconds)


@hf.task(name="flaky", retry=soon)
async def flaky(failures: int, ctx: Context) -> None:
    if ctx.attempt <= failures:
        raise ConnectionError("not yet")


@hf.task(name="snooze", retry=soon)
async def snooze(ctx: Context) -> Snooze | None:
    return Snooze(0.1) if ctx.max_attempts == soon.max_attempts else None


@hf.task(name="effect", retry=soon)
def effect(seconds: float, ctx: Context) -> None:
    with ctx.transaction() as conn:
        conn.execute("insert into effect (job_id) values (%s)", [ctx.job_id])
        time.sleep(seconds)


@hf.task(name="aeffect", retry=soon)
async def aeffect(seconds: float, ctx: Context) -> None:
    async with ctx.atransaction() as conn:
        await conn.execute("insert into effect (job_id) values (%s)", [ctx.job_id])
        await asyncio.sleep(seconds)


@hf.task(name="once", at_most_once=True)
def once(seconds: float, ctx: Context) -> None:
    """Its mark is made outside of any transaction of the job's: it stays, whatever becomes of the job."""
    with Path(os.environ["TORTURE_MARKS"]).open("a") as marks:
        marks.write(f"{ctx.job_id}\n")
    time.sleep(seconds)


@hf.task(name="poison", retry=RetryPolicy(max_attempts=2, base=0.2, factor=1, jitter=0))
async def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@hf.task(name="process", isolation="process", retry=soon)
def process(ends: str) -> None:
    if ends == "badly":
        os._exit(9)


def main() -> None:
    options = json.loads(sys.argv[1])
    if shift := options.pop("shift", 0):
        real = time.time
        time.time = lambda: real() + shift
    hf.worker(**options).run()


if __name__ == "__main__":
    main()

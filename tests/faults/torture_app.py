"""A worker for the torture: handlers of every kind, and effects that are counted afterwards.

Each handler says in its result, or in its error, under which lease it ran: whatever counts must have come
from the one who held the job then.
"""

import asyncio
import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast import Context, Holdfast, LeaseLost, RetryPolicy, Snooze, subscribe

hf = Holdfast()
soon = RetryPolicy(max_attempts=5, base=0.2, factor=1, jitter=0)


@hf.task(name="noop", retry=soon)
async def noop(ctx: Context) -> UUID:
    return ctx.lease


@hf.task(name="slow", retry=soon)
async def slow(seconds: float, ctx: Context) -> UUID:
    await asyncio.sleep(seconds)
    return ctx.lease


@hf.task(name="thread", retry=soon)
def thread(seconds: float, ctx: Context) -> UUID:
    time.sleep(seconds)
    return ctx.lease


@hf.task(name="flaky", retry=soon)
async def flaky(seconds: float, failures: int, ctx: Context) -> UUID:
    await asyncio.sleep(seconds)
    if ctx.attempt <= failures:
        raise ConnectionError(f"ran under {ctx.lease}")
    return ctx.lease


@hf.task(name="snooze", retry=soon)
async def snooze(ctx: Context) -> Snooze | UUID:
    return Snooze(0.1) if ctx.max_attempts == soon.max_attempts else ctx.lease


@hf.task(name="effect", retry=soon)
def effect(seconds: float, ctx: Context) -> None:
    with ctx.transaction() as conn:
        conn.execute("insert into effect (job_id) values (%s)", [ctx.job_id])
        time.sleep(seconds)
        ctx.set_result(ctx.lease)


@hf.task(name="aeffect", retry=soon)
async def aeffect(seconds: float, ctx: Context) -> None:
    async with ctx.atransaction() as conn:
        await conn.execute("insert into effect (job_id) values (%s)", [ctx.job_id])
        await asyncio.sleep(seconds)
        ctx.set_result(ctx.lease)


@hf.task(name="once", at_most_once=True)
def once(seconds: float, ctx: Context) -> UUID:
    """Its note is made outside of any transaction of the job's: it stays, whatever becomes of the job."""
    note("ran", ctx.job_id)
    time.sleep(seconds)
    return ctx.lease


@hf.task(name="poison", retry=RetryPolicy(max_attempts=2, base=0.2, factor=1, jitter=0))
async def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@hf.task(name="process", isolation="process", retry=soon)
def process(seconds: float, dies: str, ctx: Context) -> None:
    """Its process may die before the commit that completes the job, every time, or after it."""
    with ctx.transaction() as conn:
        conn.execute("insert into effect (job_id) values (%s)", [ctx.job_id])
        time.sleep(seconds)
        ctx.set_result(ctx.lease)
        if dies == "before":
            os._exit(9)
    if dies == "after":
        os._exit(9)


def note(what: str, job: object) -> None:
    with Path(os.environ["TORTURE_NOTES"]).open("a") as notes:
        notes.write(f"{what} {job}\n")


def note_refusals(name: str, fields: Mapping[str, Any]) -> None:
    if name == "report.refused" and fields["sqlstate"] == LeaseLost.sqlstate:
        note("refused", fields["job"])


def tell_where_we_are(*_: object) -> None:
    """Every thread and every task, for whoever asks why nothing goes on."""
    with Path(f"{os.environ['TORTURE_NOTES']}.{os.getpid()}").open("w") as stacks:
        faulthandler.dump_traceback(stacks)
        with contextlib.suppress(RuntimeError):  # no loop runs yet
            for task in asyncio.all_tasks():
                task.print_stack(file=stacks)


def main() -> None:
    signal.signal(signal.SIGUSR1, tell_where_we_are)
    subscribe(note_refusals)
    options = json.loads(sys.argv[1])
    if shift := options.pop("shift", 0):
        real = time.time
        time.time = lambda: real() + shift
    hf.worker(**options).run()


if __name__ == "__main__":
    main()

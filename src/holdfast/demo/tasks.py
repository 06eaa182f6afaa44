"""The tasks of the demo: a small shop with mails, payments, pictures and videos.

A program declares only functions, and the options of their jobs. These handlers only sleep. Real ones would
send, charge and render.
"""
# ruff: noqa: ARG001, S311 - nothing is sent, and nothing must be secret

import asyncio
import random
import time

from holdfast import Context, Holdfast, Priority, Retry

hf = Holdfast()


@hf.task(queue="demo.mail", priority=Priority.USER)
async def welcome(user: int) -> str:
    """Urgent: a new user waits for this mail."""
    await asyncio.sleep(random.uniform(0.1, 0.4))
    return f"sent to user {user}"


@hf.task(queue="demo.mail")
async def reminder(appointment: int) -> None:
    """Enqueued now, sent at its time."""
    await asyncio.sleep(0.1)


@hf.task(queue="demo.mail")
async def newsletter(issue: int) -> None:
    """Cancelled before a worker has started it."""


@hf.task(queue="demo.mail")
async def confirmation(order: int) -> None:
    """Enqueued in the transaction that stores the order: both happen, or neither."""
    await asyncio.sleep(0.1)


@hf.task(queue="demo.shop", max_attempts=5)
async def payment(ctx: Context, invoice: int) -> str | Retry:
    """The bank is down at first, so the job tries again. (A handler may also just raise.)"""
    await asyncio.sleep(0.2)
    if ctx.attempt <= 2:  # noqa: PLR2004 - twice
        return Retry(after=1.0, error="the bank does not answer")
    return f"invoice {invoice} is paid"


@hf.task(queue="demo.shop", max_attempts=2)
async def catalogue(file: str) -> Retry:
    """Never works: after its last attempt it is kept as dead, with its errors, for an operator."""
    await asyncio.sleep(0.2)
    return Retry(after=1.0, error="line 3 has no price")


@hf.task(queue="demo.shop", priority=Priority.BACKFILL)
async def reindex(product: int) -> None:
    """A backfill: runs when nothing more urgent is left."""
    await asyncio.sleep(random.uniform(0.2, 0.6))


@hf.task(queue="demo.media")
def thumbnail(picture: int) -> dict[str, int]:
    """A plain function runs in a thread, so it may block."""
    time.sleep(random.uniform(0.2, 0.6))
    return {"picture": picture, "width": 320}


@hf.task(queue="demo.media", priority=Priority.USER)
async def video(ctx: Context, number: int) -> str:
    """A long job that reports its progress. If its worker dies, another starts it again."""
    for percent in range(100):
        ctx.progress(percent, stage=("fetching", "encoding", "publishing")[percent // 34])
        await asyncio.sleep(0.04)
    return f"video-{number}.webm"


QUEUES = sorted({task.settings.queue for task in hf.tasks})

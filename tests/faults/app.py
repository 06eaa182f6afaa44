"""A worker in a process of its own, that prints its events: `python app.py '{"concurrency": 5}'`."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, subscribe
from holdfast.worker import demand, keeper, slots

hf = Holdfast()


@hf.task(name="noop")
async def noop() -> None: ...


@hf.task(name="work")
async def work(seconds: float) -> None:
    await asyncio.sleep(seconds)


@hf.task(name="hold")
async def hold(gate: str, ctx: Context) -> int:
    """Wait until a file is there."""
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - a file is seen from every process
        await asyncio.sleep(0.01)
    return os.getpid()


@hf.task(name="climb")
async def climb(log: str, gate: str, ctx: Context) -> list[int]:
    """Five steps, each of which writes a line; after the third it waits until a file is there."""

    def step(number: int) -> int:
        with Path(log).open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        return number

    done = []
    for number in range(1, 6):
        done.append(await ctx.astep(f"step {number}", step, number))
        while number == 3 and not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - as above
            await asyncio.sleep(0.01)
    return done


@hf.task(name="hold.thread")
def hold_thread(gate: str) -> None:
    while not Path(gate).exists():
        threading.Event().wait(0.01)


@hf.task(name="stubborn")
async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


@hf.task(name="stuck")
def stuck() -> None:
    threading.Event().wait()


@hf.task(name="poison")
async def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@hf.task(name="poison.late")
async def late_poison(fuse: str) -> None:
    """Kill its process as soon as a file is there."""
    while not Path(fuse).exists():  # noqa: ASYNC110, ASYNC240 - as above
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


@hf.task(name="alone", isolation="process")
def alone(pipe: str, how: str) -> None:
    """Say who it is, and hold the pipe for as long as it lives."""
    held = os.open(pipe, os.O_WRONLY)
    os.write(held, f"{os.getpid()}\n".encode())
    while how == "burns":
        pass
    threading.Event().wait()


@hf.task(name="fork")
def fork(pipe: str) -> int:
    """Leave a process behind, with a copy of all that the worker holds, until somebody closes the pipe."""
    pid = os.fork()
    if pid == 0:
        os.read(os.open(pipe, os.O_RDONLY), 1)
        os._exit(0)
    return pid


def tell(name: str, fields: Mapping[str, Any]) -> None:
    said = json.dumps([name, {key: str(value) for key, value in fields.items()}])
    os.write(1, f"{said}\n".encode())  # at once: several threads tell, and no line may be cut by another


def slow_beats() -> None:
    """So that handlers are sure to end before their worker learns that it is lost."""
    beat = keeper.Keeper._beat

    async def slow_beat(self: keeper.Keeper) -> None:
        await asyncio.sleep(0.3)
        await beat(self)

    keeper.Keeper._beat = slow_beat  # type: ignore[method-assign]


def main() -> None:
    options = json.loads(sys.argv[1])
    demand.SURPLUS_SECONDS = options.pop("longest_wait", demand.SURPLUS_SECONDS)
    slots.CLEAN_UP_SECONDS = options.pop("clean_up", slots.CLEAN_UP_SECONDS)
    if options.pop("slow_beats", False):
        slow_beats()
    subscribe(tell)
    with hf:
        hf.worker(**options).run()


if __name__ == "__main__":
    main()

"""What the Python agents share. Each runs in the environment of its peer, so: the standard library only.

An agent is the peer's side of the benchmark, in two roles:

    python x_agent.py produce DSN                  enqueues what it is asked for, line by line on its input
    python x_agent.py work DSN --concurrency 20    loads everything, says "ready", starts at "go"

Both talk to the harness in lines of JSON on standard output. A worker says every 20 ms how many handlers it
has called, when it called the first, and what the stamped jobs among them found.
"""

import argparse
import asyncio
import inspect
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

QUEUE = "bench"
REPORT_SECONDS = 0.02


class Producer(Protocol):
    """One connection's worth of enqueueing. The methods may be async, all of them or none.

    `delay` is in seconds; `urgent` asks for the peer's high priority.
    """

    def one(self, task: str, payload: dict[str, Any], *, delay: float = 0, urgent: bool = False) -> Any: ...
    def bulk(self, tasks: list[str], payloads: list[dict[str, Any]], *, delay: float = 0) -> Any: ...


class Report:
    """What the handlers of this worker saw."""

    def __init__(self) -> None:
        self.ran = 0
        self.first: float | None = None
        self._waits: list[float] = []

    def noop(self) -> None:
        if self.first is None:
            self.first = time.monotonic()
        self.ran += 1

    def stamped(self, payload: dict[str, Any]) -> None:
        """A job that carries when it was enqueued (`at`, monotonic) or should run (`due`, wall clock)."""
        now, since = (time.monotonic(), payload["at"]) if "at" in payload else (time.time(), payload["due"])
        self.noop()
        self._waits.append((now - since) * 1000)

    def speak(self) -> None:
        """Tell the harness now and then, from a thread."""
        threading.Thread(target=self._speak, name="report", daemon=True).start()

    def _speak(self) -> None:
        told = -1
        while True:
            if self.ran != told:
                told = self.ran
                waits, self._waits = self._waits, []
                say({"ran": told, "first": self.first, "waits": waits})
            time.sleep(REPORT_SECONDS)


REPORT = Report()


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(
    open_producer: Callable[[str], Producer | Awaitable[Producer]],
    work: Callable[[str, argparse.Namespace], None],
    *,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> None:
    """Play the role that the command line asks for; `work` runs until the process is told to stop.

    `run` is the loop of an async producer.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["produce", "work"])
    parser.add_argument("dsn")
    parser.add_argument("--concurrency", type=int, default=0)
    parser.add_argument("--no-notify", dest="notify", action="store_false")
    given = parser.parse_args()
    if given.role == "work":
        say({"ready": True})
        sys.stdin.readline()
        REPORT.speak()
        work(given.dsn, given)
    else:
        run(_produce(given.dsn, open_producer))


async def _produce(dsn: str, open_producer: Callable[[str], Producer | Awaitable[Producer]]) -> None:
    producer = await _result(open_producer(dsn))
    say({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        match order.pop("do"):
            case "one":
                answer = await _one(producer, **order)
            case "bulk":
                answer = await _bulk(producer, **order)
            case "stamp":
                answer = await _stamp(producer, **order)
            case "stream":
                answer = await _stream(producer, **order)
            case "scatter":
                answer = await _scatter(producer, **order)
            case "race":
                answer = await _race(dsn, open_producer, **order)
            case unknown:
                raise ValueError(unknown)
        say(answer)


async def _one(producer: Producer, amount: int) -> dict[str, Any]:
    """Enqueue one by one, each with its own commit."""
    begun = time.monotonic()
    for number in range(amount):
        await _result(producer.one("noop", {"n": number}))
    return {"amount": amount, "seconds": time.monotonic() - begun}


async def _bulk(
    producer: Producer, amount: int, tasks: list[str], delay: float = 0, at_once: int = 100_000
) -> dict[str, Any]:
    """Enqueue by the peer's bulk call; `tasks` is the cycle that the jobs go through."""
    begun = time.monotonic()
    for start in range(0, amount, at_once):
        size = min(at_once, amount - start)
        names = tasks * size if len(tasks) == 1 else [tasks[(start + i) % len(tasks)] for i in range(size)]
        # `delay` counts from the beginning, so that all fall due together.
        left = max(delay - (time.monotonic() - begun), 0) if delay else 0
        await _result(producer.bulk(names, [{"n": start + i} for i in range(size)], delay=left))
    return {"amount": amount, "seconds": time.monotonic() - begun}


async def _stamp(producer: Producer, gaps: list[float], urgent: bool = False) -> dict[str, Any]:
    """Enqueue a stamped job after each gap; the clock of each starts before its enqueue."""
    for gap in gaps:
        await asyncio.sleep(gap)
        await _result(producer.one("stamp", {"at": time.monotonic()}, urgent=urgent))
    return {"amount": len(gaps)}


async def _stream(producer: Producer, seconds: float) -> dict[str, Any]:
    """Enqueue stamped jobs one by one, each right after the other."""
    begun = now = time.monotonic()
    amount = 0
    while now < begun + seconds:
        await _result(producer.one("stamp", {"at": now}))
        amount += 1
        now = time.monotonic()
    return {"amount": amount, "seconds": now - begun}


async def _scatter(producer: Producer, delays: list[float]) -> dict[str, Any]:
    """Enqueue jobs that fall due at these moments from now."""
    begun = time.time()
    for delay in delays:
        due = begun + delay
        await _result(producer.one("stamp", {"due": due}, delay=due - time.time()))
    return {"amount": len(delays), "seconds": time.time() - begun}


async def _race(
    dsn: str,
    open_producer: Callable[[str], Producer | Awaitable[Producer]],
    producers: int,
    seconds: float,
) -> dict[str, Any]:
    """Enqueue one by one from several connections at a time."""
    opened = [await _result(open_producer(dsn)) for _ in range(producers)]
    for producer in opened:
        await _result(producer.one("noop", {"n": 0}))
    begun = time.monotonic()
    if inspect.iscoroutinefunction(opened[0].one):
        amounts = await asyncio.gather(*(_run(producer, begun + seconds) for producer in opened))
    else:
        threads = (asyncio.to_thread(_run_in_thread, producer, begun + seconds) for producer in opened)
        amounts = await asyncio.gather(*threads)
    return {"amount": sum(amounts), "seconds": time.monotonic() - begun}


async def _run(producer: Producer, until: float) -> int:
    amount = 0
    while time.monotonic() < until:
        await producer.one("noop", {"n": amount})
        amount += 1
    return amount


def _run_in_thread(producer: Producer, until: float) -> int:
    amount = 0
    while time.monotonic() < until:
        producer.one("noop", {"n": amount})
        amount += 1
    return amount


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value

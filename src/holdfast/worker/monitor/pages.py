"""The pages of a worker: /healthz, /readyz, /metrics, /metrics/queues."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.database import Database
from holdfast.telemetry import subscribe
from holdfast.telemetry.metrics import (
    CONTENT_TYPE,
    Family,
    Metrics,
    Overview,
    exposition,
    families_of,
    questions,
)
from holdfast.worker.monitor import health
from holdfast.worker.monitor.health import Condition
from holdfast.worker.monitor.http import Address, HttpServer, Page, Response

PROBE_SECONDS = 0.5
# Counting the jobs of a database is slow, so all requests within this time share one count.
OVERVIEW_SECONDS = 5.0
OVERVIEW_DEADLINE = 10.0


@contextlib.contextmanager
def served(address: Address | None, database: Database, condition: Callable[[], Condition]) -> Iterator[None]:
    """Serve the worker's pages while the block runs. Without an address, nothing is served or counted.

    `condition` is called from another thread than the worker's.
    """
    if address is None:
        yield
        return
    metrics, probe = Metrics(), LoopProbe()
    pages = Pages(database, condition, metrics, probe)
    server = HttpServer(address, pages.by_path())
    unsubscribe = subscribe(metrics)
    try:
        server.start()
        yield
    finally:
        server.stop()
        unsubscribe()
        probe.stop()


class Pages:
    def __init__(
        self, database: Database, condition: Callable[[], Condition], metrics: Metrics, probe: "LoopProbe"
    ) -> None:
        self._database = database
        self._condition = condition
        self._metrics = metrics
        self._probe = probe
        self._started_at = time.time()
        self._overview_lock = asyncio.Lock()
        self._overview = ""
        self._seen_at: float | None = None

    def by_path(self) -> dict[str, Page]:
        return {
            "/healthz": self.healthz,
            "/readyz": self.readyz,
            "/metrics": self.metrics,
            "/metrics/queues": self.queues,
        }

    async def healthz(self) -> Response:
        condition = self._condition()
        return _health_response(condition, health.why_not_alive(condition, self._probe.missed))

    async def readyz(self) -> Response:
        condition = self._condition()
        return _health_response(condition, health.why_not_ready(condition, self._probe.missed))

    async def metrics(self) -> Response:
        families = [
            *self._metrics.families(),
            *health.gauges_of(self._condition(), self._probe.missed),
            *_process(self._started_at),
        ]
        return Response(200, exposition(families), CONTENT_TYPE)

    async def queues(self) -> Response:
        """Return the gauges of the whole database. They are the same on every worker, so scrape only one."""
        async with self._overview_lock:
            if self._seen_at is None or time.monotonic() - self._seen_at > OVERVIEW_SECONDS:
                self._overview = await self._query_overview()
                self._seen_at = time.monotonic()
            return Response(200, self._overview, CONTENT_TYPE)

    async def _query_overview(self) -> str:
        session = self._database.session(("application_name", "holdfast metrics"), deadline=OVERVIEW_DEADLINE)
        try:
            answers = [await session.run(question) for question in questions()]
        finally:
            await session.close()
        return exposition(families_of(Overview(*answers)))


class LoopProbe:
    """A timer that runs in the worker's loop twice a second. It is late while a handler blocks the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._run()

    @property
    def missed(self) -> float:
        """Return the seconds by which the timer is late. May be called from any thread."""
        return max(time.monotonic() - self._ran_at - PROBE_SECONDS, 0.0)

    def stop(self) -> None:
        self._next.cancel()

    def _run(self) -> None:
        self._ran_at = time.monotonic()
        self._next = self._loop.call_later(PROBE_SECONDS, self._run)


def _health_response(condition: Condition, why: list[str]) -> Response:
    said = {"worker": condition.worker or None, "name": condition.name}
    if why:
        return Response.json(503, status="unavailable", why=why, **said)
    return Response.json(200, status="ok", **said)


def _process(started_at: float) -> Iterator[Family]:
    """Yield the gauges of the process that every Prometheus client exports, under the usual names."""
    cpu = Family("process_cpu_seconds_total", "counter", "User and system CPU time of this process.")
    cpu.add(time.process_time())
    yield cpu
    start = Family(
        "process_start_time_seconds", "gauge", "The start time of this worker, in seconds since 1970."
    )
    start.add(started_at)
    yield start
    with contextlib.suppress(OSError, ValueError, IndexError):  # only Linux reports it
        memory = Family("process_resident_memory_bytes", "gauge", "Memory of this process.")
        memory.add(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        yield memory

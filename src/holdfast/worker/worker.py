"""The public side of a worker: its options, `run` and `stop`. `runtime` does the work."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

from holdfast.database import Database
from holdfast.task import Registry, Task
from holdfast.telemetry import emit
from holdfast.values import limits
from holdfast.values.errors import HoldfastError, nearest, suggest
from holdfast.worker.failure import storable
from holdfast.worker.monitor.http import Address
from holdfast.worker.monitor.pages import served
from holdfast.worker.runtime import Runtime, WorkerOptions

_LEASE_TIMES = (timedelta(seconds=1), timedelta(days=1))
_NAME_LENGTH = 200


class Worker:
    """A worker that runs the jobs of this process's tasks; made by `hf.worker(…)`.

    `run()` uses uvloop if it is installed: `pip install 'holdfast[fast]'`.

    `run()` returns after SIGTERM or SIGINT. It stops claiming and gives back jobs that have not started, with
    their attempt refunded. It lets running jobs finish for up to `grace` seconds. Then it interrupts them and
    gives them back too, but their attempt counts. A second signal does not wait for the grace to pass. A
    handler that cannot be stopped, such as a plain function that never returns, is abandoned and does not
    keep the process from ending.
    """

    # Makes the runtime. Tests replace it.
    make_runtime: Callable[[Database, Registry, WorkerOptions], Runtime] = Runtime

    def __init__(
        self,
        database: Database,
        registry: Registry,
        *,
        queues: list[str] | None = None,
        concurrency: int = 20,
        lease_time: float | timedelta = 30.0,
        poll_interval: float | None = None,
        grace: float = 30.0,
        notify: bool = True,
        name: str | None = None,
        http: int | str | None = None,
        max_isolated: int | None = None,
    ) -> None:
        self._database = database
        self._registry = registry
        _check_isolated([task for task in registry if task.isolated])
        self._options = WorkerOptions(
            queues=None if queues is None else _queues(queues),
            concurrency=limits.integer("concurrency", concurrency, range(1, 10_001)),
            lease_time=_lease_time(lease_time),
            poll_interval=None
            if poll_interval is None
            else limits.number("poll_interval", poll_interval, 0.01, 3600),
            grace=limits.number("grace", grace, 0, 86_400),
            notify=notify and not database.transaction_pooling,
            name=None if name is None else storable(str(name), _NAME_LENGTH),
            http=None if http is None else Address.of(http),
            max_isolated=None
            if max_isolated is None
            else limits.integer("max_isolated", max_isolated, range(1, 10_001)),
        )
        self._runtime: Runtime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, *, drain: bool = False) -> None:
        """Run jobs until stopped; with `drain`, until no job for this worker is due."""
        _refuse_in_a_loop()
        runner = asyncio.Runner(loop_factory=_loop_factory())
        try:
            stuck = runner.run(self._run(drain=drain, signals=True))
        except BaseException:
            runner.close()
            raise
        if stuck:
            # Closing the runner would cancel these handlers again, and wait for them without end.
            runner.get_loop().close()
        else:
            runner.close()

    async def arun(self, *, drain: bool = False) -> None:
        """Run in the current event loop. Handle signals yourself: call `stop`, or cancel this coroutine."""
        await self._run(drain=drain, signals=False)

    def stop(self) -> None:
        """Ask a running worker to stop. A second call ends the grace. May be called from any thread."""
        runtime, loop = self._runtime, self._loop
        if runtime is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(runtime.stop)

    async def _run(self, *, drain: bool, signals: bool) -> bool:
        """Run, and return whether any handlers ignore their cancellation."""
        self._warn_of_unknown_queues()
        runtime = self.make_runtime(self._database, self._registry, self._options)
        self._loop, self._runtime = asyncio.get_running_loop(), runtime
        try:
            with (
                _on_signals(runtime.stop) if signals else contextlib.nullcontext(),
                served(self._options.http, self._database, runtime.condition),
            ):
                await runtime.run(drain=drain)
        finally:
            self._runtime = self._loop = None
        return runtime.stuck

    def _warn_of_unknown_queues(self) -> None:
        """Warn of queues without a declared task. This is not an error, because a queue may have any name."""
        asked = self._options.queues or []
        declared = {task.settings.queue for task in self._registry}
        for queue in asked:
            if queue not in declared and (nearest(queue, declared) or declared.isdisjoint(asked)):
                hint = f"No task here is declared for it. {suggest(queue, declared)}"
                emit("queue.doubted", queue=queue, hint=hint)


def _check_isolated(tasks: list[Task[..., Any]]) -> None:
    """Check isolated tasks now instead of at their first job, and load what they need."""
    if tasks:
        from holdfast.worker.isolation.process import import_path  # noqa: PLC0415 - most workers need no processes

        for task in tasks:
            import_path(task)


def _lease_time(value: float | timedelta) -> timedelta:
    lease_time = limits.duration("lease_time", value)
    shortest, longest = _LEASE_TIMES
    if not shortest <= lease_time <= longest:
        raise limits.refused("lease_time", value, "must be between 1 second and 1 day")
    return lease_time


def _refuse_in_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # as it should be
        return
    raise HoldfastError(
        "run() starts its own event loop, and one is running here already", hint="Write await worker.arun()."
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop, or None for Python's own. With uvloop an async job takes a fifth less CPU."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextlib.contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT.

    Python handles signals in the main thread only, so nothing happens in another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    for one in before:
        loop.add_signal_handler(one, stop)
    try:
        yield
    finally:
        for one, handler in before.items():
            loop.remove_signal_handler(one)
            signal.signal(one, handler or signal.SIG_DFL)


def _queues(names: object) -> list[str]:
    # A string would count as a list of letters.
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise limits.refused("queues", names, "must be a list of names", hint='Write queues=["mail"].')
    queues = [limits.name("queue", name) for name in names]
    if not queues:
        raise limits.refused("queues", names, "must not be empty", hint="Leave it out to serve every queue.")
    return queues

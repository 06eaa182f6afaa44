"""How our tests wait: for an event, or for a fact in the database; never for the clock."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast import Holdfast

PATIENCE = 15.0


def until(
    condition: Callable[[], Any], *, timeout: float = PATIENCE, say: Callable[[], Any] | None = None
) -> Any:
    """Wait for a fact; what the condition said when it came true."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true in {timeout} s: {say() if say else condition}")
        time.sleep(0.02)
    return found


class Told:
    """Everything that Holdfast told while the test ran."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self._news = threading.Condition()

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        with self._news:
            self.events.append((name, fields))
            self._news.notify_all()

    def named(self, name: str) -> list[Mapping[str, Any]]:
        return [fields for known, fields in self.events if known == name]

    def wait_for(self, name: str, times: int = 1, *, timeout: float = PATIENCE) -> Mapping[str, Any]:
        """Wait until this was told so many times; what was said then."""
        with self._news:
            if not self._news.wait_for(lambda: len(self.named(name)) >= times, timeout):
                raise AssertionError(f"{name} was not told {times} times: {self.events[-20:]}")
            return self.named(name)[times - 1]


class Work:
    """A worker in a thread of its own."""

    def __init__(self, holdfast: Holdfast, options: Mapping[str, Any]) -> None:
        self.worker = holdfast.worker(**options)
        self._thread = threading.Thread(target=self.worker.run)
        self._thread.start()

    def stop(self) -> None:
        self.worker.stop()

    def wait(self, timeout: float = PATIENCE) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the worker did not end"

    def end(self) -> None:
        self.stop()
        self.stop()
        self.wait()

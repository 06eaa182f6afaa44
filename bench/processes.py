"""The agents as the harness sees them: processes that answer in lines of JSON."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

AGENTS = Path(__file__).parent / "agents"
LOADING_SECONDS = 60.0


class AgentFailed(Exception):  # noqa: N818 - it says what is the case
    """An agent ended, or fell silent; the message has its last words."""


class Agent:
    """A process of a peer's environment."""

    def __init__(self, command: Sequence[str | Path], environ: Mapping[str, str]) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._told_to_end = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env={**os.environ, "PYTHONPATH": str(AGENTS), "PYTHONDONTWRITEBYTECODE": "1", **environ},
            cwd=AGENTS,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # closed under our hands
            for line in self._process.stdout:
                with suppress(json.JSONDecodeError):
                    self._heard(json.loads(line))
        self._heard(None)

    def _heard(self, said: dict[str, Any] | None) -> None:
        """A line came, or the end."""
        raise NotImplementedError

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failed("ended") from error

    def _failed(self, how: str) -> AgentFailed:
        self._complaints.seek(0)
        last = self._complaints.read().decode(errors="replace").strip().splitlines()[-3:]
        return AgentFailed(f"the agent {how}: {' / '.join(last) or 'it said nothing'}")

    def tell_to_end(self) -> None:
        """Ask it once to end in good order."""
        if self._process.poll() is None and not self._told_to_end:
            self._told_to_end = True
            self.resume()
            self._process.terminate()

    def stop(self, *, patience: float = 3.0) -> None:
        """Ask it to end in good order, then see to it."""
        self.tell_to_end()
        if self._process.poll() is None:
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            with suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()

    def pause(self) -> None:
        """It and its children stand still until they are to go on."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in family(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Producer(Agent):
    """Enqueues what it is asked for and answers when that is done."""

    def __init__(self, command: Sequence[str | Path], environ: Mapping[str, str]) -> None:
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        super().__init__(command, environ)
        self._answer(LOADING_SECONDS)

    def _heard(self, said: dict[str, Any] | None) -> None:
        self._answers.put(said)

    def ask(self, do: str, *, patience: float = 300.0, **order: Any) -> dict[str, Any]:
        self.begin(do, **order)
        return self._answer(patience)

    def begin(self, do: str, **order: Any) -> None:
        self._tell(json.dumps({"do": do, **order}))

    def end(self, *, patience: float = 300.0) -> dict[str, Any]:
        """The answer to what was begun."""
        return self._answer(patience)

    def _answer(self, patience: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=patience)
        except queue.Empty:
            raise self._failed(f"did not answer for {patience:.0f} s") from None
        if answer is None:
            raise self._failed("ended")
        return answer


class Worker(Agent):
    """Loads, waits for `go`, and then says how far it is."""

    def __init__(self, command: Sequence[str | Path], environ: Mapping[str, str]) -> None:
        self.ran = 0
        self.first: float | None = None
        self.waits: list[float] = []
        self._ready = threading.Event()
        self._ended = False
        super().__init__(command, environ)

    def _heard(self, said: dict[str, Any] | None) -> None:
        if said is None:
            self._ended = True
            self._ready.set()
        elif "ready" in said:
            self._ready.set()
        elif "ran" in said:
            self.ran, self.first = said["ran"], said["first"]
            self.waits += said["waits"]

    def until_ready(self) -> None:
        if not self._ready.wait(LOADING_SECONDS):
            raise self._failed(f"was not ready after {LOADING_SECONDS:.0f} s")

    def go(self) -> None:
        self.until_ready()
        self._tell("go")

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self._ended:
            raise self._failed("ended")

    def rss(self) -> float:
        """Megabytes in memory, of the process and its children."""
        return sum(_resident(pid) for pid in family(self._process.pid)) / 1e6


class Workers:
    """The worker processes of one cell, which start together."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    def until_ready(self) -> None:
        for worker in self._workers:
            worker.until_ready()

    def go(self) -> None:
        for worker in self._workers:
            worker.go()

    def pause(self) -> None:
        for worker in self._workers:
            worker.pause()

    def resume(self) -> None:
        for worker in self._workers:
            worker.resume()

    @property
    def ran(self) -> int:
        return sum(worker.ran for worker in self._workers)

    @property
    def first(self) -> float | None:
        """When the first handler was called, on the monotonic clock."""
        times = [worker.first for worker in self._workers if worker.first is not None]
        return min(times) if times else None

    @property
    def waits(self) -> list[float]:
        return [wait for worker in self._workers for wait in worker.waits]

    def forget_waits(self) -> None:
        for worker in self._workers:
            worker.waits.clear()

    def check(self) -> None:
        for worker in self._workers:
            worker.check()

    def until_ran(self, amount: int, *, patience: float) -> None:
        """Wait until so many handlers have been called."""
        deadline = time.monotonic() + patience
        while self.ran < amount:
            self.check()
            if time.monotonic() > deadline:
                raise AgentFailed(f"{self.ran} of {amount} handlers were called in {patience:.0f} s")
            time.sleep(0.01)

    def rss(self) -> float:
        return sum(worker.rss() for worker in self._workers)

    def stop(self) -> None:
        """Stop all of them at the same time: fifty would take long one after the other."""
        for worker in self._workers:
            worker.tell_to_end()
        for worker in self._workers:
            worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _resident(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def family(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    children = []
    with suppress(OSError):
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid, *(each for child in children for each in family(child))]

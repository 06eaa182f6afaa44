"""Worker processes, as a test starts, stops, kills and hears them."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE, Told

APP = Path(__file__).with_name("app.py")


class Process:
    """A running `app.py`."""

    def __init__(self, dsn: str, options: dict[str, Any]) -> None:
        self.told = Told()
        self._process = subprocess.Popen(
            [sys.executable, APP, json.dumps(options)],
            env={**os.environ, "HOLDFAST_DSN": dsn},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.told(*json.loads(line))

    def wait_until_started(self) -> "Process":
        self.told.wait_for("worker.started")
        return self

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait until it has ended; its exit code."""
        code = self._process.wait(timeout)
        self._reader.join()
        return code

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        self.wait()
        assert self._process.stdout
        self._process.stdout.close()


StartProcess = Callable[..., Process]

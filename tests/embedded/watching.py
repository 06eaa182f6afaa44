"""How the tests look at a server from outside, and who else uses it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from holdfast.embedded import server
from holdfast.embedded.home import Home, is_held

QUICK = {"fsync": "off"}

SHARE = """
import sys
from pathlib import Path
from holdfast import embedded

home, *bin_directory = map(Path, sys.argv[1:])
server = embedded.start(home, bin_directory=next(iter(bin_directory), None), settings={"fsync": "off"})
print(server.dsn, flush=True)
sys.stdin.read()  # until told to leave; the end of the process does the rest
"""


class Sharer:
    """Another process that uses the server of a home until it is told to leave, or killed."""

    def __init__(self, home: Path, *bin_directory: Path) -> None:
        command = [sys.executable, "-c", SHARE, str(home), *map(str, bin_directory)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def dsn(self) -> str:
        """What it says once the server answers."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        with self.process:
            assert self.process.stdin
            self.process.stdin.close()
        assert self.process.returncode == 0

    def kill(self) -> None:
        with self.process:
            self.process.kill()


def postmaster(home: Path) -> int:
    """The pid of the server that runs in this home, or 0."""
    return server._listener(Home(home.resolve()))


def ask(dsn: str, query: str) -> Any:
    """The first value of the answer."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def end_server(home: Path, request: signal.Signals = signal.SIGQUIT) -> None:
    if pid := postmaster(home):
        os.kill(pid, request)
    wait_until(lambda: not is_held(Home(home).server_lock))


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """For what gives no event to wait for, such as the death of a process that is not our child."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)

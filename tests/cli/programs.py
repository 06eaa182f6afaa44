"""The command in a process of its own, and ways to wait for what it does."""

import codecs
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

HOLDFAST = [sys.executable, "-m", "holdfast"]
PATIENCE = 20.0
# Makes its standard input the terminal of a new session, and becomes the program.
AT_A_TERMINAL = [
    sys.executable,
    "-c",
    "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])",
]

APP = """
import asyncio
import os
from pathlib import Path

from holdfast import Context, Holdfast, Secret

hf = Holdfast()
number = 7


@hf.task(name="whoami")
async def whoami() -> int:
    return os.getpid()


@hf.task(name="hold")
async def hold(until: str) -> int:
    while not Path(until).exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@hf.task(name="render")
async def render(until: str, ctx: Context) -> None:
    ctx.progress(40, stage="rendering", message="page 4 of 10")
    while not Path(until).exists():
        await asyncio.sleep(0.01)


@hf.task(name="charge", max_attempts=1)
async def charge(card: Secret[str]) -> None:
    raise RuntimeError(f"card {card.reveal()} was refused")
"""


def until(fact: Callable[[], T], *, seconds: float = PATIENCE) -> T:
    """Ask the database, or the machine, until the answer is yes."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (answer := fact()):
        assert time.monotonic() < deadline, "it did not come true in time"
        pause.wait(0.02)
    return answer


@dataclass(frozen=True)
class Answer:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a plain table, without its head."""
        return [line.split() for line in self.out.splitlines()[1:]]


Command = Callable[..., Answer]


class Program:
    """`holdfast …` as a process. What it says, on either stream, is kept and can be waited for."""

    def __init__(self, *arguments: str, cwd: Path, dsn: str, terminal: bool = False) -> None:
        command, environment = [*HOLDFAST, *arguments], {**os.environ, "HOLDFAST_DSN": dsn}
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self._process = subprocess.Popen(
            [*AT_A_TERMINAL, *command] if terminal else command,
            cwd=cwd,
            env=environment,
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=not terminal,  # there it makes its own
        )
        os.close(theirs)
        self._hears = ours
        self.pid = self._process.pid
        self._said = ""
        self._ended = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def says(self, pattern: str, times: int = 1) -> list[Any]:
        """What it said that matches, as soon as it did so this often."""
        with self._news:
            enough = self._news.wait_for(
                lambda: self._ended or len(re.findall(pattern, self._said)) >= times, PATIENCE
            )
            found = re.findall(pattern, self._said)
            assert enough, f"it did not say {pattern!r} in time, but:\n{self._said}"
            assert len(found) >= times, f"it ended without saying {pattern!r}, but said:\n{self._said}"
            return found

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """As the terminal does for Ctrl-C."""
        os.killpg(self.pid, number)

    def press_ctrl_c(self) -> None:
        """At its terminal."""
        os.write(self._hears, b"\x03")

    def exit_code(self) -> int:
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in time, but said:\n{self.said}") from None
        self._reader.join(PATIENCE)
        return code

    def falls_silent(self) -> None:
        """Wait until nobody is left who could say anything: neither it nor a child of its."""
        with self._news:
            assert self._news.wait_for(lambda: self._ended, PATIENCE), self._said

    @property
    def said(self) -> str:
        with self._news:
            return self._said

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)  # the children hold the other end for as long as they live
        assert not self._reader.is_alive()
        os.close(self._hears)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        while chunk := _read_from(self._hears):
            with self._news:
                self._said += decoder.decode(chunk).replace("\r\n", "\n")
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


StartProgram = Callable[..., Program]


def on_terminal(arguments: Sequence[str], *, dsn: str, columns: int) -> str:
    """What `holdfast …` writes to a terminal that is this wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "HOLDFAST_DSN": dsn, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    with subprocess.Popen([*HOLDFAST, *arguments], env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        while chunk := _read_from(ours):
            written += chunk
    os.close(ours)
    assert process.returncode == 0, written
    return written.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    """Without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _read_from(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that nobody is at the other end
        return b""


def is_alive(pid: int) -> bool:
    """Return whether a process has this pid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

"""Stands between a worker and PostgreSQL, and breaks what the test asks it to break.

    worker ──► Proxy ──► PostgreSQL

Each connection is known by what the worker uses it for: claimer (it listens too), finisher, duties, keeper.
Those of a pool have no purpose, unless it is a producer's that says so: `application_name=holdfast producer`.
"""

import contextlib
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

READY = b"Z\x00\x00\x00\x05I"  # the end of an answer, after its transaction has been committed
_PURPOSE = re.compile(rb"holdfast (claimer|finisher|duties|keeper|producer)")


class Line:
    """One connection through the proxy."""

    def __init__(self, proxy: "Proxy", client: socket.socket, server: socket.socket, *, silent: bool) -> None:
        self.purpose = ""
        self.silent = silent
        self._proxy = proxy
        self._client = client
        self._server = server
        self._threads = [threading.Thread(target=pump) for pump in (self._up, self._down)]
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._server.close()

    def _up(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(65536):
                if match := _PURPOSE.search(data):
                    self.purpose = match[1].decode()
                if not self.silent:
                    self._server.sendall(data)
        self.cut()

    def _down(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                if self.silent:
                    continue
                if self._proxy.swallows(self.purpose, data):
                    while not data.endswith(READY) and (more := self._server.recv(65536)):
                        data += more
                    break
                self._client.sendall(data)
        self.cut()


class Proxy:
    """`proxy.dsn` leads through it; `cut`, `silence` and `swallow` break things."""

    def __init__(self, dsn: str) -> None:
        self._to = conninfo_to_dict(dsn)
        self._directory = Path(tempfile.mkdtemp(prefix="hf-"))
        self.dsn = make_conninfo(dsn, host=str(self._directory), port=5432)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._directory / ".s.PGSQL.5432"))
        self._listener.listen(50)
        self._lines: list[Line] = []
        self._lock = threading.Lock()
        self._swallow: Callable[[str, bytes], bool] = lambda _purpose, _data: False
        self._left = 0
        self._mute = False
        self.swallowed = 0
        self._thread = threading.Thread(target=self._accept)

    def lines(self, purpose: str) -> list[Line]:
        return [line for line in self._lines if line.purpose == purpose]

    def cut(self, purpose: str) -> None:
        """Cut the connections of this purpose, or all."""
        for line in self._chosen(purpose):
            line.cut()

    def silence(self, purpose: str) -> None:
        """Let nothing through any more on these connections, without a word; on all: on new ones neither."""
        self._mute = self._mute or purpose == "all"
        for line in self._chosen(purpose):
            line.silent = True

    def swallow(self, answers: Callable[[str, bytes], bool], *, times: int = 1) -> None:
        """Let the next answers like these be lost on their way, and their connections with them."""
        with self._lock:
            self._swallow, self._left = answers, times

    def swallows(self, purpose: str, data: bytes) -> bool:
        with self._lock:
            chosen = self._left > 0 and self._swallow(purpose, data)
            self._left -= chosen
            self.swallowed += chosen
            return chosen

    def _chosen(self, purpose: str) -> list[Line]:
        return list(self._lines) if purpose == "all" else self.lines(purpose)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(f"{self._to['host']}/.s.PGSQL.{self._to['port']}")
                except OSError:  # the server is away
                    client.close()
                    server.close()
                    continue
                self._lines.append(Line(self, client, server, silent=self._mute))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.cut("all")
        for line in self._lines:
            line.join()
        shutil.rmtree(self._directory)

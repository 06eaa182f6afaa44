"""The few words of Redis that the harness needs; the peers bring clients of their own."""

import socket
from contextlib import suppress
from typing import Any, Self

HOST, PORT = "127.0.0.1", 6379


class Redis:
    """One connection to one numbered database."""

    def __init__(self) -> None:
        self._socket = socket.create_connection((HOST, PORT), timeout=5)
        self._file = self._socket.makefile("rb")

    def ask(self, *words: str | int) -> Any:
        encoded = [str(word).encode() for word in words]
        message = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
        self._socket.sendall(b"*%d\r\n%s" % (len(encoded), message))
        return self._read()

    def _read(self) -> Any:
        line = self._file.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        match kind:
            case b":":
                return int(rest)
            case b"+":
                return rest.decode()
            case b"$":
                return None if rest == b"-1" else self._file.read(int(rest) + 2)[:-2].decode()
            case b"*":
                return [self._read() for _ in range(int(rest))]
            case _:
                raise RuntimeError(f"Redis: {line.decode(errors='replace')}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()


def free_database() -> int | None:
    """The highest numbered database that is empty, so that nobody's data is touched; None without a Redis."""
    with suppress(OSError), Redis() as redis:
        for number in range(15, 0, -1):
            redis.ask("select", number)
            if redis.ask("dbsize") == 0:
                return number
    return None

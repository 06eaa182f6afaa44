"""A small HTTP server for probes and Prometheus, in its own thread and event loop.

It answers even while a handler blocks the worker's loop, and takes nothing from that loop. It accepts GET and
HEAD, one request per connection, with limits in size and time. A client sees the names of queues and tasks
and their counts, but never a payload.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.telemetry import emit
from holdfast.values import limits
from holdfast.values.errors import HoldfastError

REQUEST_BYTES = 8 * 1024
REQUEST_SECONDS = 5.0
RESPONSE_SECONDS = 10.0
MOST_CONNECTIONS = 128
# The default host: only this machine can connect.
LOCAL = "127.0.0.1"
STOP_SECONDS = 2.0

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Address(NamedTuple):
    """An address to listen on: a port of a host, or the path of a socket."""

    host: str = LOCAL
    port: int = 0
    path: str | None = None

    @classmethod
    def of(cls, value: object) -> "Address":
        """Return the address for 8080, "8080", "0.0.0.0:8080", "[::]:8080" or "unix:/run/worker.sock".

        A port without a host means 127.0.0.1.
        """
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str):
            raise _bad(value)
        if text.startswith("unix:"):
            if not text.removeprefix("unix:"):
                raise _bad(value)
            return cls(path=text.removeprefix("unix:"))
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (port.isascii() and port.isdigit() and int(port) < 2**16) or (colon and not host):
            raise _bad(value)
        return cls(host=host or LOCAL, port=int(port))

    def of_process(self, number: int) -> "Address":
        """Return the address of one of several processes, counted from 1. Each takes the next port."""
        if self.path is not None:
            return self._replace(path=f"{self.path}.{number}")
        if self.port == 0:
            return self
        return self._replace(port=limits.integer("http", self.port + number - 1, range(1, 2**16)))

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Response(NamedTuple):
    status: int
    body: str
    content_type: str = "application/json"

    @classmethod
    def json(cls, status: int, /, **fields: object) -> "Response":
        return cls(status, json.dumps(fields) + "\n")


Page = Callable[[], Awaitable[Response]]


class HttpServer:
    """A server of `pages`, by path. The pages run in its own loop."""

    def __init__(self, address: Address, pages: Mapping[str, Page]) -> None:
        self._address = address
        self._pages = pages
        # The oldest first.
        self._connections: dict[asyncio.StreamWriter, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: OSError | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="holdfast-http", daemon=True)

    def start(self) -> None:
        """Start, and return when the server listens; raises if it cannot."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise HoldfastError(
                f"cannot listen on {self._address}: {self._error.strerror or self._error}",
                hint="Another process may use it: choose another port with --http, or http=….",
            ) from self._error

    def stop(self) -> None:
        """Stop at once, and cut off open requests."""
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(STOP_SECONDS)

    def _main(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._ready.set()
        if self._address.path is not None and self._error is None:
            Path(self._address.path).unlink(missing_ok=True)

    async def _serve(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        address = self._address
        if address.path is not None:
            server = await asyncio.start_unix_server(self._handle, address.path, limit=REQUEST_BYTES)
        else:
            server = await asyncio.start_server(
                self._handle, address.host, address.port, limit=REQUEST_BYTES, reuse_address=True
            )
            address = address._replace(port=server.sockets[0].getsockname()[1])
        emit("http.started", address=str(address))
        self._ready.set()
        async with server:
            await server.serve_forever()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = None
        if len(self._connections) > MOST_CONNECTIONS:
            # Close the oldest connection instead of refusing this one: idle connections must not keep a probe
            # out.
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()
        try:
            response, head_only = await self._respond(reader)
            async with asyncio.timeout(REQUEST_SECONDS):
                writer.write(_encoded(response, head_only=head_only))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has gone, or has sent no request
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[Response, bool]:
        """Return the response, and whether the request was a HEAD."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return Response.json(408, error="the request did not come in time"), False
        except asyncio.LimitOverrunError:
            return Response.json(431, error=f"a request may have {REQUEST_BYTES} bytes"), False
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not method.isalpha() or not target.startswith(b"/") or version not in {b"HTTP/1.1", b"HTTP/1.0"}:
            return Response.json(400, error="not an HTTP/1 request"), False
        if method not in {b"GET", b"HEAD"}:
            return Response.json(405, error="only GET and HEAD"), False
        return await self._page(target.partition(b"?")[0].decode("latin-1")), method == b"HEAD"

    async def _page(self, path: str) -> Response:
        page = self._pages.get(path)
        if page is None:
            return Response.json(404, error="no such page", pages=list(self._pages))
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                return await page()
        except (HoldfastError, TimeoutError) as error:
            return Response.json(503, error=f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - a bug here must not look like a dead worker
            emit("http.broken", path=path, error=error)
            return Response.json(500, error=type(error).__name__)


def _encoded(response: Response, *, head_only: bool) -> bytes:
    body = response.body.encode()
    allow = "Allow: GET, HEAD\r\n" if response.status == 405 else ""  # noqa: PLR2004
    head = (
        f"HTTP/1.1 {response.status} {_PHRASES[response.status]}\r\nContent-Type: {response.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else body)


def _bad(value: object) -> Exception:
    return limits.refused(
        "http",
        value,
        "is not an address to listen on",
        hint="Write 8080, 0.0.0.0:8080 or unix:/run/worker.sock.",
    )

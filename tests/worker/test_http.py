"""A worker tells probes and Prometheus how it is, and why it is not well."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Holdfast, HoldfastError
from holdfast.telemetry import subscribers as events
from holdfast.values.errors import BadValue
from holdfast.worker.monitor.http import MOST_CONNECTIONS, REQUEST_BYTES, Address
from tests.fixtures import Counts, StartWorker, Until
from tests.waiting import Told

LOCAL = "127.0.0.1:0"


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def raw(address: str, *parts: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        for part in parts:
            line.sendall(part)
        answer = b""
        while chunk := line.recv(65536):
            answer += chunk
        return answer


def values(text: str) -> dict[tuple[Any, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_worker_serves_its_health_and_what_it_counted(
    hf: Holdfast, work: StartWorker, told: Told, until: Until, counts: Counts
) -> None:
    go = threading.Event()

    @hf.task(name="hold", queue="mail")
    def hold() -> None:
        go.wait(15)

    @hf.task(name="bad", max_attempts=1)
    async def bad() -> None:
        raise ValueError("no")

    worker = work(http=LOCAL, concurrency=2, name="anchor")
    address = told.wait_for("http.started")["address"]
    for path in ("/healthz", "/readyz"):
        status, body = get(address, path)
        assert (status, json.loads(body)["status"], json.loads(body)["name"]) == (200, "ok", "anchor")

    hold.enqueue()
    hf.enqueue_many(bad.call() for _ in range(3))
    mail, default = [("queue", "mail"), ("task", "hold")], [("queue", "default"), ("task", "bad")]

    def all_dead_are_counted() -> dict[tuple[Any, ...], float]:
        """What a worker counts is what the database has answered: a moment after it is there."""
        counted = values(get(address, "/metrics")[1])
        return counted if counted.get(("holdfast_jobs_dead_total", *default)) == 3 else {}

    now = until(all_dead_are_counted)
    assert counts()["dead"] == 3
    assert now["holdfast_jobs_claimed_total", *default] == now["holdfast_jobs_failed_total", *default] == 3
    assert now["holdfast_job_run_seconds_count", *default] == 3
    assert now["holdfast_jobs_running", *mail] == now["holdfast_slots_busy",] == 1
    assert (now["holdfast_slots",], now["holdfast_worker_ready",]) == (2, 1)
    assert now["process_cpu_seconds_total",] > 0

    everything = values(get(address, "/metrics/queues")[1])
    assert everything["holdfast_jobs", ("queue", "default"), ("state", "dead")] == 3
    assert everything["holdfast_workers", ("status", "busy")] == 1
    assert values(hf.health.metrics()).keys() == everything.keys()

    worker.stop()
    told.wait_for("worker.stopping")
    status, body = get(address, "/readyz")
    assert (status, json.loads(body)["why"]) == (503, ["it is stopping"])
    assert get(address, "/healthz")[0] == 200
    go.set()
    worker.wait()
    with pytest.raises(OSError):
        get(address, "/healthz")


def test_a_worker_whose_database_is_away_is_not_ready_and_in_the_end_not_alive(
    hf: Holdfast, holdfast_dsn: str, holdfast_server: str, work: StartWorker, told: Told, until: Until
) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    work(http=LOCAL, lease_time=1, poll_interval=0.1)
    address = told.wait_for("http.started")["address"]
    assert get(address, "/readyz")[0] == 200
    name = psycopg.conninfo.conninfo_to_dict(holdfast_dsn)["dbname"]
    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute(f'alter database "{name}" allow_connections false')
        server.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        until(lambda: get(address, "/readyz")[0] == 503)
        assert "the database does not answer" in json.loads(get(address, "/readyz")[1])["why"][0]
        until(lambda: get(address, "/healthz")[0] == 503)
        why = json.loads(get(address, "/healthz")[1])["why"]
        assert "no heartbeat was accepted" in why[0]
        assert get(address, "/metrics/queues")[0] == 503
        assert values(get(address, "/metrics")[1])["holdfast_worker_alive",] == 0
        server.execute(f'alter database "{name}" allow_connections true')
    until(lambda: get(address, "/readyz")[0] == get(address, "/healthz")[0] == 200)


def test_a_handler_that_blocks_the_loop_is_seen_from_outside(
    hf: Holdfast, work: StartWorker, told: Told, until: Until
) -> None:
    go = threading.Event()

    @hf.task(name="block")
    async def block() -> None:
        go.wait(15)

    work(http=LOCAL, lease_time=1)
    address = told.wait_for("http.started")["address"]
    block.enqueue()
    try:
        until(lambda: get(address, "/healthz")[0] == 503)
        why = json.loads(get(address, "/healthz")[1])["why"]
        assert "a handler has blocked its event loop for" in why[0]
    finally:
        go.set()
    until(lambda: get(address, "/healthz")[0] == 200)


def test_requests_that_are_none_are_refused_and_cost_little(
    hf: Holdfast, work: StartWorker, told: Told, tmp_path: Path
) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    worker = work(http=LOCAL)
    address = told.wait_for("http.started")["address"]
    status, body = get(address, "/nothing")
    assert (status, json.loads(body)["pages"]) == (
        404,
        ["/healthz", "/readyz", "/metrics", "/metrics/queues"],
    )
    assert get(address, "/healthz?verbose=1")[0] == 200
    assert get(address, "/healthz", "HEAD") == (200, "")
    assert get(address, "/healthz", "POST")[0] == 405
    assert b"Allow: GET, HEAD\r\n" in raw(address, b"DELETE /healthz HTTP/1.1\r\n\r\n")
    for request in (b"nonsense\r\n\r\n", b"GET healthz HTTP/1.1\r\n\r\n", b"GET /healthz HTTP/2\r\n\r\n"):
        assert raw(address, request).startswith(b"HTTP/1.1 400 ")
    assert raw(address, b"GET / HTTP/1.1\r\n", b"x" * (REQUEST_BYTES + 1)).startswith(b"HTTP/1.1 431 ")

    host, _, port = address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(80)]
    assert get(address, "/healthz")[0] == 200
    begun = time.monotonic()
    worker.end()  # nobody who hangs about keeps it
    assert time.monotonic() - begun < 3
    for line in silent:
        line.close()


def test_slow_connections_keep_no_probe_out(hf: Holdfast, work: StartWorker, told: Told) -> None:
    work(http=LOCAL)
    address = told.wait_for("http.started")["address"]
    host, _, port = address.rpartition(":")
    slow = []
    for number in range(2 * MOST_CONNECTIONS):
        line = socket.create_connection((host, int(port)), timeout=10)
        slow.append(line)
        if number % 2:
            line.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")  # and no more of it
        if number % 16 == 0:
            assert get(address, "/healthz")[0] == 200, number
    assert get(address, "/readyz")[0] == 200
    assert slow[0].recv(1) == b"", "the oldest has made room"
    slow[-1].sendall(b"1\r\n\r\n")
    assert slow[-1].recv(12) == b"HTTP/1.1 200", "the newest is still heard"
    for line in slow:
        line.close()


def test_a_port_alone_is_one_of_this_machine(hf: Holdfast, told: Told) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    listened = []
    for http in (0, "0", "0.0.0.0:0", "[::]:0"):
        hf.worker(http=http).run(drain=True)
        listened.append(told.named("http.started")[-1]["address"].rpartition(":")[0])
    assert listened == ["127.0.0.1", "127.0.0.1", "0.0.0.0", "[::]"]


def test_an_address_that_is_taken_or_none_is_refused(hf: Holdfast, told: Told, tmp_path: Path) -> None:
    @hf.task(name="noop")
    async def noop() -> None: ...

    for wrong in ("", "port", ":8080", "1.2.3.4:", 70000, -1, True, "unix:", 1.5):
        with pytest.raises(BadValue, match=r"http .* is not an address to listen on"):
            hf.worker(http=wrong)  # type: ignore[arg-type]
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(HoldfastError, match=r"cannot listen on 127\.0\.0\.1:.*in use"),
    ):
        hf.worker(http=f"127.0.0.1:{taken.getsockname()[1]}").run(drain=True)
    path = tmp_path / "worker.sock"
    hf.worker(http=f"unix:{path}").run(drain=True)
    assert told.wait_for("http.started")["address"] == f"unix:{path}"
    assert not path.exists()
    assert [str(Address.of(it)) for it in (8080, "8080", "[::1]:80", "unix:/a")] == [
        "127.0.0.1:8080",
        "127.0.0.1:8080",
        "[::1]:80",
        "unix:/a",
    ]
    assert [str(Address.of(it).of_process(3)) for it in (8080, "localhost:0", "unix:/a")] == [
        "127.0.0.1:8082",
        "localhost:0",
        "unix:/a.3",
    ]


def test_nothing_is_counted_where_nobody_asks(hf: Holdfast) -> None:
    listening: list[int] = []

    @hf.task(name="noop")
    async def noop() -> None:
        listening.append(len(events._subscribers))

    for http in (None, LOCAL):
        noop.enqueue()
        hf.worker(http=http).run(drain=True)
    without, counted = listening
    assert (without, counted) == (len(events._subscribers), without + 1)

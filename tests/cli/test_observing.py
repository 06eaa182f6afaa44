"""What `holdfast worker` and `holdfast metrics` say to machines."""

import json
import signal
import socket
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from holdfast import Holdfast, JobState
from tests.cli.programs import Command, StartProgram


def free_ports(amount: int) -> int:
    """The first of so many ports in a row that nobody has."""
    for _ in range(100):
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            try:
                for more in range(1, amount):
                    socket.create_server(("127.0.0.1", port + more)).close()
            except OSError:
                continue
            return port
    raise AssertionError("no ports are free")


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


def test_each_of_several_processes_has_the_next_port(program: StartProgram) -> None:
    port = free_ports(2)
    crew = program("worker", "app:hf", "--processes=2", f"--http=127.0.0.1:{port}", "--name=w")
    crew.says("http.started", 2)
    crew.says("worker.started", 2)
    names = [json.loads(get(port + it, "/healthz"))["name"] for it in range(2)]
    assert names == ["w-1", "w-2"]
    crew.signal(signal.SIGTERM)
    assert crew.exit_code() == 0


def test_ports_that_do_not_exist_are_refused_before_any_process_starts(program: StartProgram) -> None:
    for address, said in (("65535", "http 65536"), ("nowhere", "http 'nowhere': is not an address")):
        crew = program("worker", "app:hf", "--processes=2", f"--http={address}")
        assert crew.exit_code() == 2
        assert said in crew.said
        assert "process.started" not in crew.said


def test_log_lines_are_json_on_request_and_hold_no_secret(program: StartProgram, hf: Holdfast) -> None:
    job = hf.enqueue("charge", {"card": {"$secret": "canary-4111"}}, max_attempts=1)
    worker = program("worker", "app:hf", "--log-format=json", "--name=w", "--drain")
    assert worker.exit_code() == 0
    assert job.refresh().state is JobState.DEAD
    lines = [json.loads(line) for line in worker.said.splitlines()]
    assert {line["worker_name"] for line in lines} == {"w"}
    assert [line["event"] for line in lines][:2] == ["app.loaded", "worker.started"]
    (failed,) = (line for line in lines if line["event"] == "job.failed")
    assert (failed["level"], failed["error"]) == ("WARNING", "RuntimeError: card ***** was refused")
    assert "canary" not in worker.said


def test_metrics_prints_what_prometheus_reads(holdfast: Command, hf: Holdfast) -> None:
    for _ in range(3):
        hf.enqueue("whoami", queue="mail")
    hf.queues.pause("mail")
    said = holdfast("metrics")
    assert said.code == 0
    families = {family.name: family for family in text_string_to_metric_families(said.out)}
    waiting = {s.labels["state"]: s.value for s in families["holdfast_jobs"].samples}
    assert (waiting["pending"], waiting["dead"]) == (3, 0)
    assert families["holdfast_queue_paused"].samples[0].value == 1
    assert families["holdfast_queue_oldest_waiting_seconds"].samples[0].value > 0
    names = {row["name"] for row in holdfast("metrics", "--json").json}
    assert names == set(families)

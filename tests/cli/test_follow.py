"""Following jobs from the command line: a bar, a log, a result."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Context, Holdfast, JobState, Secret
from holdfast.cli import output
from tests.cli.programs import Command, StartProgram, plain
from tests.fixtures import AsyncTask, Drain, StartWorker, Until

Render = AsyncTask[dict[str, int]]


@pytest.fixture
def render(hf: Holdfast) -> Render:
    @hf.task(name="render", queue="prints", max_attempts=1)
    async def render(ctx: Context, ok: bool = True, word: Secret[str] | None = None) -> dict[str, int]:
        ctx.progress(40, stage="layout")
        ctx.event("page_rendered", {"page": 1})
        await ctx.astep("fetch", lambda: {"rows": 3})
        ctx.checkpoint({"row": 7})
        if not ok:
            raise ValueError("no ink")
        return {"pages": 2}

    return render


def test_watch_tells_each_change_until_the_end(
    holdfast: Command, hf: Holdfast, render: Render, drain: Drain
) -> None:
    job = render.enqueue()
    drain()
    answer = holdfast("watch", str(job.id))
    assert (answer.code, answer.out.split()[1]) == (0, "completed")
    (line,) = holdfast("watch", str(job.id), "--json").out.splitlines()
    assert json.loads(line)["result"] == {"pages": 2}


def test_watch_says_by_its_exit_code_that_there_is_no_result(
    holdfast: Command, hf: Holdfast, render: Render, drain: Drain
) -> None:
    job = render.enqueue(ok=False)
    drain()
    answer = holdfast("watch", str(job.id))
    assert answer.code == 1
    assert "dead" in answer.out
    assert "no ink" in answer.out
    assert holdfast("watch", str(uuid4())).code == 1


def test_watch_draws_a_bar_on_a_terminal(
    program: StartProgram, hf: Holdfast, work: StartWorker, until: Until
) -> None:
    go = threading.Event()

    @hf.task(name="render")
    def render(ctx: Context) -> None:
        ctx.progress(40, stage="layout")
        go.wait(20)

    job = render.enqueue()
    work()
    until(lambda: job.refresh().progress == 40)
    watching = program("watch", str(job.id), terminal=True)
    watching.says("layout")
    go.set()
    assert watching.exit_code() == 0
    shown = plain(watching.said)
    assert "━" in shown
    assert "40%" in shown
    assert "completed" in shown


def test_jobs_that_run_are_shown_as_they_go(
    program: StartProgram, hf: Holdfast, work: StartWorker, until: Until, holdfast: Command
) -> None:
    go = threading.Event()

    @hf.task(name="render")
    def render(ctx: Context) -> None:
        ctx.progress(40, stage="layout")
        go.wait(20)

    job = render.enqueue()
    hf.enqueue("other", delay=60)
    work()
    until(lambda: job.refresh().progress == 40)
    ((first, *_),) = holdfast("jobs", "--running").rows
    assert first == str(job.id)
    assert holdfast("jobs", "--running", "--state", "dead").code == 2
    table = program("jobs", "--running", terminal=True)
    table.says("40%")
    go.set()
    table.says("No job is running.")
    table.press_ctrl_c()
    assert table.exit_code() == 130


def test_ctrl_c_ends_the_table_wherever_it_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the main thread holds a lock of its own, too: at each line that it passes as it waits.
    monkeypatch.setattr(output, "LIVE_SECONDS", 0.001)
    lines = 0
    while _table_is_interrupted(at_line=lines):
        lines += 1
    assert lines > 5


def _table_is_interrupted(*, at_line: int) -> bool:
    """Whether the loop of the table passes so many lines at all."""
    nothing: list[object] = []
    looks, passed = iter([nothing] * 3), 0

    def look() -> list[object]:
        try:
            return next(looks)
        except StopIteration:
            raise LookupError from None

    def stuck(*_: object) -> None:
        raise AssertionError(f"it hangs, interrupted at line {at_line}")

    def strike(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed
        if frame.f_code.co_filename not in {output.__file__, threading.__file__}:
            return None
        if event == "line" and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            if passed == at_line:
                os.kill(os.getpid(), signal.SIGINT)
            passed += 1
        return strike

    # What runs in the background may have been started with Ctrl-C ignored.
    with handled(signal.SIGALRM, stuck), handled(signal.SIGINT, signal.default_int_handler):
        signal.alarm(20)
        sys.settrace(strike)
        try:
            output.show_live([], look, empty="Nothing.")
        except LookupError:
            return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
            signal.alarm(0)
    raise AssertionError("the table ended by itself")


@contextmanager
def handled(number: int, handler: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_events_of_a_job_and_of_a_queue(
    holdfast: Command, hf: Holdfast, render: Render, drain: Drain
) -> None:
    job = render.enqueue()
    drain()
    lines = holdfast("events", str(job.id)).out.splitlines()
    assert [line.split()[3] for line in lines] == ["page_rendered", "job.step", "job.completed"]
    assert '{"page": 1}' in lines[0]
    answers = [
        json.loads(line) for line in holdfast("events", "--queue", "prints", "--json").out.splitlines()
    ]
    assert {answer["job_id"] for answer in answers} == {str(job.id)}
    rest = holdfast("events", "--queue", "prints", "--after", answers[0]["cursor"], "--json")
    assert len(rest.out.splitlines()) == 2
    assert holdfast("events", "--after", "now").out == ""
    assert holdfast("events", str(job.id), "--follow").code == 0, "it has ended"
    assert holdfast("events", str(job.id), "--queue", "prints").code == 2
    assert holdfast("events", "--after", "x").code == 2
    assert "there is no job" in holdfast("events", str(uuid4())).err


def test_a_result_is_printed_or_its_lack_explained(
    holdfast: Command, hf: Holdfast, render: Render, drain: Drain
) -> None:
    done, broken = render.enqueue(), render.enqueue(ok=False)
    drain()
    assert holdfast("result", str(done.id)).json == {"pages": 2}
    answer = holdfast("result", str(broken.id))
    assert answer.code == 1
    assert "no ink" in answer.err
    late = holdfast("result", str(render.enqueue().id), "--timeout", "100ms")
    assert late.code == 1
    assert "has not ended within 0.1 s" in late.err
    assert "holdfast watch" in late.err


def test_a_job_is_shown_with_its_steps(holdfast: Command, hf: Holdfast, render: Render, drain: Drain) -> None:
    job = render.enqueue(ok=False)
    drain()
    shown = holdfast("job", str(job.id)).out
    assert "fetch" in shown
    assert '{"rows": 3}' in shown
    assert '{"row": 7}' in shown
    document = holdfast("job", str(job.id), "--json").json
    assert document["steps"][0]["name"] == "fetch"
    assert document["checkpoint"] == {"row": 7}
    assert document["events"] == 3


def test_a_secret_is_shown_nowhere(holdfast: Command, hf: Holdfast, drain: Drain) -> None:
    @hf.task(name="login", max_attempts=2)
    async def login(ctx: Context, word: Secret[str]) -> str:
        told = word.reveal()
        ctx.progress(10, stage=f"as {told}")
        ctx.event("used", {told: [told]})
        await ctx.astep(f"with {told}", lambda: told)
        ctx.checkpoint({"word": told})
        if ctx.attempt == 1:
            raise ValueError(told)
        return told

    job = login.enqueue(word=Secret("s3same-0pen"))
    drain()
    job.run_now()
    drain()
    assert job.refresh().state is JobState.COMPLETED
    for command in ("job", "events", "result", "watch"):
        for more in ((), ("--json",)):
            answer = holdfast(command, str(job.id), *more)
            assert (answer.code, "s3same" in answer.out) == (0, False)
            assert "*****" in answer.out or command == "watch"
    assert "s3same" not in holdfast("events", "--json").out


def test_a_replay_can_start_over(holdfast: Command, hf: Holdfast, render: Render, drain: Drain) -> None:
    job = render.enqueue(ok=False)
    drain()
    assert holdfast("replay", str(job.id), "--start-over").code == 0
    assert job.steps() == []
    assert job.refresh().state is JobState.PENDING
    assert asyncio.run(job.asteps()) == []

"""One trace leads from the enqueue to the run, through a real worker and a real database."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Context, Holdfast, Secret
from holdfast.contrib.opentelemetry import instrument
from holdfast.testing import Clock
from tests.fixtures import Drain, StartWorker, Until

Spans = Callable[[str], list[ReadableSpan]]


def attributes(noted: ReadableSpan | Event) -> dict[str, Any]:
    """The attributes of a span or an event."""
    return dict(noted.attributes or {})


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Spans:
    """`spans("run mail")`: the spans of that name that have ended, in the order of their ends."""
    return lambda name: [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_run_is_a_child_of_its_enqueue(
    hf: Holdfast, provider: TracerProvider, spans: Spans, drain: Drain
) -> None:
    instrument(hf, tracer_provider=provider)
    tracer = provider.get_tracer("app")

    @hf.task(name="mail", queue="outbox")
    async def mail() -> None:
        with tracer.start_as_current_span("smtp"):
            thumbs.enqueue()

    @hf.task(name="thumbs")
    def thumbs() -> None:  # in a thread
        with tracer.start_as_current_span("draw"):
            pass

    with tracer.start_as_current_span("request"):
        job = mail.options(headers={"tenant": "a"}).enqueue()
    drain()

    (request,), (sent,), (run,) = spans("request"), spans("enqueue mail"), spans("run mail")
    (smtp,), (sent_on,), (ran_on,) = spans("smtp"), spans("enqueue thumbs"), spans("run thumbs")
    (draw,) = spans("draw")
    chain = [request, sent, run, smtp, sent_on, ran_on, draw]
    assert [span.parent.span_id for span in chain[1:]] == [span.context.span_id for span in chain[:-1]]
    assert {span.context.trace_id for span in chain} == {request.context.trace_id}
    assert (sent.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attributes(sent) == {
        "messaging.system": "holdfast",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": "outbox",
        "messaging.message.id": str(job.id),
        "holdfast.task": "mail",
    }
    assert attributes(run) == {
        "messaging.system": "holdfast",
        "messaging.operation.type": "process",
        "messaging.operation.name": "run",
        "messaging.destination.name": "outbox",
        "messaging.message.id": str(job.id),
        "holdfast.task": "mail",
        "holdfast.attempt": 1,
        "holdfast.priority": 100,
        "holdfast.outcome": "completed",
    }
    headers = job.refresh().headers
    assert headers
    assert headers["tenant"] == "a"
    assert headers["traceparent"].split("-")[1] == f"{request.context.trace_id:032x}"


def test_each_attempt_is_a_span_and_says_what_went_wrong_without_secrets(
    hf: Holdfast, provider: TracerProvider, spans: Spans, drain: Drain, clock: Clock
) -> None:
    instrument(hf, tracer_provider=provider)

    @hf.task(name="charge")
    async def charge(ctx: Context, card: Secret[str]) -> None:
        if ctx.attempt == 1:
            raise ValueError(f"card {card.reveal()} was refused")

    asyncio.run(charge.aenqueue(card="canary-4111"))  # type: ignore[call-overload]
    drain()
    clock.advance(minutes=5)
    drain()
    (sent,) = spans("enqueue charge")
    failed, done = spans("run charge")
    assert {failed.parent.span_id, done.parent.span_id} == {sent.context.span_id}
    assert [attributes(span)["holdfast.attempt"] for span in (failed, done)] == [1, 2]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "ValueError: card ***** was refused"
    (event,) = failed.events
    assert (event.name, attributes(event)["exception.type"]) == ("exception", "ValueError")
    assert "in charge" in str(attributes(event)["exception.stacktrace"])
    assert "canary" not in failed.to_json() + done.to_json() + sent.to_json()
    assert done.status.status_code is StatusCode.UNSET


def test_all_jobs_of_a_bulk_enqueue_lead_back_to_one_span(
    hf: Holdfast, provider: TracerProvider, spans: Spans, drain: Drain
) -> None:
    instrument(hf, tracer_provider=provider)

    @hf.task(name="tile")
    async def tile(number: int) -> None: ...

    hf.enqueue_many(tile.call(number=it) for it in range(150))  # by COPY
    asyncio.run(hf.aenqueue_many([tile.call(number=150)]))
    drain()
    many, single = spans("enqueue")
    counts = [attributes(span)["messaging.batch.message_count"] for span in (many, single)]
    assert counts == [150, 1]
    parents = [run.parent.span_id for run in spans("run tile")]
    assert (parents.count(many.context.span_id), parents.count(single.context.span_id)) == (150, 1)


def test_a_run_may_begin_a_trace_of_its_own_with_a_link(
    hf: Holdfast, provider: TracerProvider, spans: Spans, drain: Drain
) -> None:
    instrument(hf, tracer_provider=provider, link=True)

    @hf.task(name="later")
    async def later() -> None: ...

    later.enqueue()
    drain()
    (sent,), (run,) = spans("enqueue later"), spans("run later")
    assert run.parent is None
    assert [link.context.span_id for link in run.links] == [sent.context.span_id]


def test_jobs_without_a_sender_and_handlers_cut_off_have_spans_too(
    hf: Holdfast, provider: TracerProvider, spans: Spans, work: StartWorker, until: Until
) -> None:
    begun = threading.Event()

    @hf.task(name="endless")
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    endless.options(headers={"traceparent": 7}).enqueue()  # not one of ours
    instrument(hf, tracer_provider=provider, link=True)
    worker = work(grace=0)
    assert begun.wait(15)
    worker.end()
    (run,) = spans("run endless")
    assert (run.parent, run.links, attributes(run)["holdfast.outcome"]) == (None, (), "interrupted")


def test_a_baggage_without_room_in_the_headers_stays_behind(
    hf: Holdfast, provider: TracerProvider, spans: Spans, drain: Drain
) -> None:
    instrument(hf, tracer_provider=provider)

    @hf.task(name="mail")
    async def mail() -> None: ...

    for own in ({"tenant": "a"}, {"tenant": "a" * 8100}):
        context = baggage.set_baggage("long", "x" * 8000)
        token = attach(context)
        try:
            job = mail.options(headers=own).enqueue()
        finally:
            detach(token)
        headers = job.refresh().headers
        assert headers
        assert headers["tenant"] == own["tenant"]
        assert "baggage" not in headers
        assert ("traceparent" in headers) == (own == {"tenant": "a"})


def test_nothing_is_left_when_it_is_undone(
    hf: Holdfast, provider: TracerProvider, exporter: InMemorySpanExporter, drain: Drain
) -> None:
    end = instrument(hf, tracer_provider=provider)

    @hf.task(name="noop")
    async def noop() -> None:
        assert not trace.get_current_span().get_span_context().is_valid

    end()
    job = noop.enqueue()
    drain()
    assert (job.refresh().state, job.refresh().headers) == ("completed", None)
    assert exporter.get_finished_spans() == ()


def test_opentelemetry_is_loaded_by_nobody_else() -> None:
    code = "import sys, holdfast, holdfast.worker.worker, holdfast.cli.run; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "opentelemetry" not in loaded

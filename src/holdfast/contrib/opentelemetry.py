"""OpenTelemetry spans from the enqueue of a job to its run: `pip install 'holdfast[otel]'`.

    from holdfast.contrib.opentelemetry import instrument

    instrument(hf)

    request ─► enqueue mail.welcome (PRODUCER)            in the web server
                      └─► run mail.welcome (CONSUMER)     in a worker, perhaps later, perhaps on a retry
                                 └─► spans of the handler

The job's headers carry the context, as the configured propagators write it: by default as `traceparent`,
`tracestate` and `baggage` of the W3C. Attributes follow the conventions for messaging. They contain no
arguments and no results. An error is the text that is stored with the job, with secrets masked.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
except ImportError as error:  # pragma: no cover - only if the extra is not installed
    raise ImportError("OpenTelemetry is not installed; pip install 'holdfast[otel]'") from error

from holdfast.client import Holdfast
from holdfast.operations.claiming import Claimed, Report
from holdfast.task import Sending
from holdfast.values.job import NewJob

# The limit is 8,192 bytes as PostgreSQL writes them, with a space after each comma and colon.
_ROOM = 8000
_TELLS_OF_FAILURE = {"failed", "interrupted"}


def instrument(
    hf: Holdfast, *, tracer_provider: TracerProvider | None = None, link: bool = False
) -> Callable[[], None]:
    """Make spans for all jobs that `hf` enqueues and runs from now on. Return a function that stops it.

    A run is a child of its enqueue, so both are one trace. With `link` the run begins its own trace with a
    link to the enqueue. Use it for jobs that run hours later, or for thousands of jobs from one request. Call
    this before `hf.worker()`.
    """
    tracing = _Tracing(trace.get_tracer("holdfast", tracer_provider=tracer_provider), link=link)
    hf.tasks.around_enqueue = tracing.enqueuing
    hf.tasks.around = tracing.running

    def end() -> None:
        if hf.tasks.around_enqueue == tracing.enqueuing:
            hf.tasks.around_enqueue = None
        if hf.tasks.around == tracing.running:
            hf.tasks.around = None

    return end


class _Tracing:
    def __init__(self, tracer: Tracer, *, link: bool) -> None:
        self._tracer = tracer
        self._link = link

    @contextlib.contextmanager
    def enqueuing(self, jobs: Iterable[NewJob]) -> Iterator[Sending]:
        """Make one span for a call of one or many jobs, and put its context into their headers."""
        single = jobs[0] if isinstance(jobs, tuple) else None
        name = "enqueue" if single is None else f"enqueue {single.task}"
        attributes: dict[str, Any] = {
            "messaging.system": "holdfast",
            "messaging.operation.type": "send",
            "messaging.operation.name": "enqueue",
        }
        if single is not None:
            attributes |= {"messaging.destination.name": single.queue, "holdfast.task": single.task}
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            sending = Sending(_addressed(jobs, carrier) if carrier else jobs)
            yield sending
            _note_sent(span, sending, single=single is not None)

    @contextlib.contextmanager
    def running(self, job: Claimed) -> Iterator[Callable[[Report], None]]:
        sender = propagate.extract(_texts(job.headers), context=Context())
        links = []
        if self._link:
            links = [Link(trace.get_current_span(sender).get_span_context())]
            sender = Context()
        with self._tracer.start_as_current_span(
            f"run {job.task}",
            context=sender,
            kind=SpanKind.CONSUMER,
            links=[link for link in links if link.context.is_valid],
            attributes={
                "messaging.system": "holdfast",
                "messaging.operation.type": "process",
                "messaging.operation.name": "run",
                "messaging.destination.name": job.queue,
                "messaging.message.id": job.id,
                "holdfast.task": job.task,
                "holdfast.attempt": job.attempt,
                "holdfast.priority": job.priority,
            },
            record_exception=False,  # it may quote a secret; the report does not
            set_status_on_exception=False,
        ) as span:
            try:
                yield lambda report: _note_outcome(span, report)
            except BaseException:
                span.set_attribute("holdfast.outcome", "interrupted")
                raise


def _note_sent(span: Span, sending: Sending, *, single: bool) -> None:
    if single:
        span.set_attribute("messaging.message.id", str(sending.ids[0]))
    else:
        span.set_attribute("messaging.batch.message_count", len(sending.ids))


def _note_outcome(span: Span, report: Report) -> None:
    span.set_attribute("holdfast.outcome", report.outcome)
    if report.outcome in _TELLS_OF_FAILURE:
        kind, _, _ = (report.error or report.outcome).partition(":")
        told = {"exception.type": kind, "exception.message": report.error or report.outcome}
        if report.traceback:
            told["exception.stacktrace"] = report.traceback
        span.add_event("exception", told)
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, report.error))


def _addressed(jobs: Iterable[NewJob], carrier: Mapping[str, str]) -> Iterable[NewJob]:
    """Return the jobs with the context in their headers; the caller's own headers stay."""
    plain = _beside({}, carrier)
    for job in jobs:
        headers = plain if job.headers is None else _beside(msgspec.json.decode(job.headers), carrier)
        yield msgspec.structs.replace(job, headers=headers)


def _beside(own: dict[str, Any], carrier: Mapping[str, str]) -> str:
    """Return the headers with as much of the context as fits: baggage alone may have 8 KiB."""
    for names in (carrier.keys(), {"traceparent"}):
        context = {name: value for name, value in carrier.items() if name in names}
        text = msgspec.json.encode(context | own)
        if len(text) <= _ROOM:
            return text.decode()
    return msgspec.json.encode(own).decode()


def _texts(headers: str | None) -> dict[str, str]:
    found = msgspec.json.decode(headers) if headers else {}
    return {key: value for key, value in found.items() if isinstance(value, str)}

"""Traces by the OpenTelemetry SDK, sent as OTLP over HTTP, in W3C trace contexts.

Spans are exported from a thread of the SDK's, whose queue drops what a collector does not take in time: a request never
waits for one. Whoever sends a `traceparent` decides whether its request is sampled; a share of the others is.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from types import TracebackType

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.status import Status, StatusCode

from serving.errors import WeftError
from serving.observability.request_trace import NO_ATTRIBUTES, Attributes, RequestTrace, Tracing

EXPORT_SECONDS = 5.0  # one export, retries included; also what the end waits for
TRACES_PATH = "/v1/traces"

_CONTEXT = TraceContextTextMapPropagator()


def otlp_tracing(endpoint: str | None, sample: float) -> "OtelTracing":
    """`endpoint` is the collector's, with or without /v1/traces; None: the standard variables of OpenTelemetry say it.
    `sample` is the share of requests that come without a trace context."""
    # Of a collector that is away, one line for each export is enough: its library writes one for each attempt too.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    if endpoint is not None:
        endpoint = endpoint.rstrip("/").removesuffix(TRACES_PATH) + TRACES_PATH
    return OtelTracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)), sample)


class OtelTracing(Tracing):
    """Every span goes to `processor`."""

    def __init__(self, processor: SpanProcessor, sample: float = 1.0) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample)), resource=_resource(), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("weft", metadata.version("weft"))

    def begin(
        self, name: str, headers: Mapping[str, str], arrival: float, attributes: Attributes = NO_ATTRIBUTES
    ) -> RequestTrace:
        epoch = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            name,
            context=_CONTEXT.extract(headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=epoch + int(arrival * 1e9),
        )
        trace_id = f"{span.get_span_context().trace_id:032x}"
        return _Span(self._tracer, span, epoch, trace_id) if span.is_recording() else RequestTrace(trace_id)

    def close(self) -> None:
        # A collector that is away would hold the SDK's own end for every batch that waits.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(EXPORT_SECONDS)


class _Span(RequestTrace):
    __slots__ = ("_epoch", "_span", "_tracer")
    is_recorded = True

    def __init__(self, tracer: Tracer, span: Span, epoch: int, trace_id: str | None) -> None:
        """`epoch` are the nanoseconds since 1970 at the monotonic clock's zero: one for a request, so that a step of
        the wall clock does not tear its spans apart."""
        super().__init__(trace_id)
        self._tracer = tracer
        self._span = span
        self._epoch = epoch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if isinstance(error, WeftError):
            self.end(error.code or error.kind)
        else:  # a cancellation is no failure, and an exception's message may repeat what a client wrote
            self.end(type(error).__name__ if isinstance(error, Exception) else None)

    def stage(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> RequestTrace:
        span = self._child(name, time.monotonic(), attributes)
        return _Span(self._tracer, span, self._epoch, self.trace_id)

    def record(self, name: str, begin: float, end: float, attributes: Attributes = NO_ATTRIBUTES) -> None:
        self._child(name, begin, attributes).end(self._nanoseconds(max(begin, end)))

    def describe(self, attributes: Attributes, *, name: str | None = None) -> None:
        self._span.set_attributes(attributes)
        if name is not None:
            self._span.update_name(name)

    def end(self, code: str | None = None) -> None:
        if code is not None:
            self._span.set_attribute("error.type", code)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._nanoseconds(time.monotonic()))

    def _child(self, name: str, begin: float, attributes: Attributes) -> Span:
        return self._tracer.start_span(
            name,
            context=set_span_in_context(self._span),
            attributes=attributes,
            start_time=self._nanoseconds(begin),
        )

    def _nanoseconds(self, seconds: float) -> int:
        return self._epoch + int(seconds * 1e9)


def _resource() -> Resource:
    """The standard variables (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) stand over what is said here."""
    own = {"service.name": "weft", "service.version": metadata.version("weft"), "process.pid": os.getpid()}
    return Resource(own).merge(OTELResourceDetector().detect())

"""Spans as a collector gets them: what an exporter in memory holds, and what an OTLP receiver hears."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from serving.app import COLLECTOR_VARIABLES, build_tracing
from serving.config import TracesConfig
from serving.errors import OverloadedError
from serving.observability import otel
from serving.observability.otel import OtelTracing, otlp_tracing
from serving.observability.request_trace import UNTRACED, RequestTrace, Tracing

PARENT_TRACE, PARENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{PARENT_TRACE}-{PARENT_SPAN}-01", f"00-{PARENT_TRACE}-{PARENT_SPAN}-00"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> OtelTracing:
    return OtelTracing(SimpleSpanProcessor(exporter))


def spans_of(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def context_of(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def test_a_request_goes_on_with_the_trace_that_it_came_with(
    tracing: OtelTracing, exporter: InMemorySpanExporter
) -> None:
    trace = tracing.begin("door", {"traceparent": SAMPLED, "tracestate": "a=1"}, time.monotonic())
    assert trace.trace_id == PARENT_TRACE
    trace.end()
    span = spans_of(exporter)["door"]
    assert f"{context_of(span).trace_id:032x}" == PARENT_TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT_SPAN


@pytest.mark.parametrize("header", ["", "00-zz-1-01", "ff" * 40, SAMPLED[:-3], "\udcff"])
def test_a_malformed_context_begins_a_trace_of_its_own(
    tracing: OtelTracing, exporter: InMemorySpanExporter, header: str
) -> None:
    tracing.begin("door", {"traceparent": header}, time.monotonic()).end()
    assert spans_of(exporter)["door"].parent is None


def test_who_sends_a_context_decides_and_a_share_of_the_others_is_sampled(exporter: InMemorySpanExporter) -> None:
    never, always = (OtelTracing(SimpleSpanProcessor(exporter), sample) for sample in (0.0, 1.0))
    assert never.begin("a", {}, 0.0).is_recorded is False
    assert never.begin("b", {"traceparent": SAMPLED}, 0.0).is_recorded is True
    assert always.begin("c", {}, 0.0).is_recorded is True
    unsampled = always.begin("d", {"traceparent": UNSAMPLED}, 0.0)
    assert (unsampled.is_recorded, unsampled.trace_id) == (False, PARENT_TRACE)
    with unsampled.stage("e") as stage:
        stage.record("f", 0.0, 1.0)
    unsampled.end("x")
    assert exporter.get_finished_spans() == ()


def test_stages_have_their_own_times_and_stand_below_each_other(
    tracing: OtelTracing, exporter: InMemorySpanExporter
) -> None:
    arrival = time.monotonic() - 5.0
    trace = tracing.begin("door", {}, arrival, {"k": 1})
    with trace.stage("outer") as outer, outer.stage("inner"):
        pass
    trace.record("past", arrival + 1.0, arrival + 3.5, {"n": 2})
    trace.end()
    found = spans_of(exporter)
    door, past = found["door"], found["past"]
    assert found["inner"].parent == context_of(found["outer"])
    assert found["outer"].parent == past.parent == context_of(door)
    assert door.start_time is not None
    assert past.start_time is not None
    assert past.end_time is not None
    assert past.start_time - door.start_time == pytest.approx(1e9, abs=1e3)
    assert past.end_time - past.start_time == pytest.approx(2.5e9, abs=1e3)
    assert abs(door.start_time / 1e9 + 5.0 - time.time()) < 3600
    assert past.attributes == {"n": 2}


@pytest.mark.parametrize(
    ("error", "code"),
    [(OverloadedError("secret", retry_after=1.0, code="queue_full"), "queue_full"), (KeyError("secret"), "KeyError")],
)
def test_a_failed_stage_has_the_errors_code_and_nothing_of_its_message(
    tracing: OtelTracing, exporter: InMemorySpanExporter, error: Exception, code: str
) -> None:
    def fail(trace: RequestTrace) -> None:
        with trace.stage("stage"):
            raise error

    trace = tracing.begin("door", {}, time.monotonic())
    with pytest.raises(type(error)):
        fail(trace)
    span = spans_of(exporter)["stage"]
    assert span.attributes == {"error.type": code}
    assert not span.status.is_ok
    assert "secret" not in span.to_json()


def test_a_cancelled_stage_is_no_failure(tracing: OtelTracing, exporter: InMemorySpanExporter) -> None:
    trace = tracing.begin("door", {}, time.monotonic())
    with pytest.raises(asyncio.CancelledError), trace.stage("stage"):
        raise asyncio.CancelledError
    assert spans_of(exporter)["stage"].status.is_ok


def test_what_records_nothing_takes_every_call() -> None:
    trace = Tracing().begin("door", {"traceparent": SAMPLED}, 0.0)
    assert trace is UNTRACED
    assert trace.log_fields == {}
    with trace.stage("a", {"b": 1}) as stage:
        stage.describe({"c": 2}, name="d")
        stage.record("e", 0.0, 1.0)
    trace.end("code")


def test_traces_are_off_until_a_collector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COLLECTOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert type(build_tracing(TracesConfig())) is Tracing
    with collector() as (address, received):
        for name in (None, *COLLECTOR_VARIABLES):
            if name is not None:
                monkeypatch.setenv(name, address + ("/v1/traces" if name.endswith("TRACES_ENDPOINT") else ""))
            tracing = build_tracing(TracesConfig(endpoint=address if name is None else None))
            tracing.begin("door", {}, time.monotonic()).end()
            tracing.close()
    assert [path for path, _ in received] == ["/v1/traces"] * 3


def test_spans_reach_a_collector_with_who_sent_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=chat,deployment.environment.name=test")
    with collector() as (address, received):
        tracing = otlp_tracing(address + "/v1/traces/", 1.0)
        trace = tracing.begin("door", {"traceparent": SAMPLED}, time.monotonic())
        with trace.stage("stage"):
            pass
        trace.end()
        tracing.close()
    groups = [group for _, message in received for group in message.resource_spans]
    spans = [span for group in groups for scope in group.scope_spans for span in scope.spans]
    assert {span.name for span in spans} == {"door", "stage"}
    assert {span.trace_id.hex() for span in spans} == {PARENT_TRACE}
    resource = {attribute.key: attribute.value.string_value for attribute in groups[0].resource.attributes}
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("chat", "test")


def test_a_collector_that_is_away_loses_spans_and_holds_nothing_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(otel, "EXPORT_SECONDS", 0.1)
    with collector() as (address, _):
        pass  # its port is closed now
    tracing = otlp_tracing(address, 1.0)
    for number in range(5000):  # more than the queue holds
        tracing.begin(f"door {number}", {}, 0.0).end()
    tracing.close()


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, ExportTraceServiceRequest]]]]:
    """A receiver of OTLP over HTTP: its address, and the (path, message) pairs that came."""
    received: list[tuple[str, ExportTraceServiceRequest]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

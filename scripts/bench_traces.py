"""What tracing costs a request: off, with a request that is not sampled, and with one that is.

    python -m scripts.bench_traces

Counts what the server does for its spans alone (the door's, eight stages, the end of one generation), in microseconds
of CPU for each request. What the exporter's thread does then, for sampled ones, is in the last figure too.
"""

import time
from statistics import median

from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from scripts.flags import flags_of
from serving.observability.otel import OtelTracing
from serving.observability.request_trace import Tracing

REQUESTS, ROUNDS = 2000, 5
STAGES = ("chat", "prepare", "render", "encode", "admission")
HEADERS = {"host": "localhost", "content-type": "application/json"}


class _Nowhere(SpanExporter):
    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def request(tracing: Tracing) -> None:
    arrival = time.monotonic()
    trace = tracing.begin("POST", HEADERS, arrival)
    for name in STAGES:
        with trace.stage(name):
            pass
    if trace.is_recorded:  # as EngineSpans is made only then
        for name in ("engine queue", "prefill", "decode", "reply"):
            trace.record(name, arrival, arrival + 1.0, {"gen_ai.usage.input_tokens": 10})
        trace.describe({"http.request.method": "POST", "http.response.status_code": 200})
    trace.end()


def microseconds(tracing: Tracing) -> float:
    def once() -> float:
        begin = time.process_time()
        for _ in range(REQUESTS):
            request(tracing)
        return (time.process_time() - begin) / REQUESTS * 1e6

    return median(once() for _ in range(ROUNDS))


def main() -> None:
    flags_of(__doc__).parse_args()
    for name, tracing in (
        ("off", Tracing()),
        ("not sampled", OtelTracing(BatchSpanProcessor(_Nowhere()), 0.0)),
        ("sampled", OtelTracing(BatchSpanProcessor(_Nowhere()), 1.0)),
    ):
        print(f"{name:<12} {microseconds(tracing):7.1f} us a request")
        tracing.close()


if __name__ == "__main__":
    main()

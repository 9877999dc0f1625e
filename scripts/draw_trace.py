"""Draws one request's trace, as a picture for the docs: a collector that waits for the first whole trace.

    python -m scripts.draw_trace docs/images/trace.svg --port 4318

and meanwhile a server whose deployment has `[traces] endpoint = "http://127.0.0.1:4318"`, and a request to it.
"""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from scripts.flags import flags_of

WIDTH, NAMES, ROW, TOP, EDGE = 960, 250, 30, 46, 16
_TOLD = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "http.response.status_code")
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24221e } .soft { fill: #5f5a51 } .ground { fill: #fbfaf7 }
.bar { fill: #4f5bb0 } .engine { fill: #b36f12 } .rule { stroke: #e2ddd2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e9e6df } .soft { fill: #aba79e } .ground { fill: #17181c }
  .bar { fill: #8e9bf0 } .engine { fill: #e0a64a } .rule { stroke: #32353e }
}"""


@dataclass(frozen=True)
class Row:
    span: Span
    depth: int


def rows(spans: Sequence[Span]) -> list[Row]:
    """The spans of one trace, each below its parent, in the order in which they began."""
    known = {span.span_id for span in spans}
    below: dict[bytes, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano)):
        below.setdefault(span.parent_span_id if span.parent_span_id in known else b"", []).append(span)

    def walk(parent: bytes, depth: int) -> list[Row]:
        return [row for span in below.get(parent, []) for row in (Row(span, depth), *walk(span.span_id, depth + 1))]

    return walk(b"", 0)


def picture(spans: Sequence[Span]) -> str:
    """An SVG, light or dark as its reader is."""
    listed = rows(spans)
    begin = min(span.start_time_unix_nano for span in spans)
    whole = max(max(span.end_time_unix_nano for span in spans) - begin, 1)
    height = TOP + ROW * len(listed) + EDGE
    scale = (WIDTH - NAMES - EDGE - 80) / whole
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="A trace">',
        f'<style>{_STYLE}</style><rect class="ground" width="{WIDTH}" height="{height}" rx="10"/>',
    ]
    for quarter in range(5):
        x = NAMES + quarter / 4 * whole * scale
        parts.append(f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - EDGE}"/>')
        parts.append(f'<text class="soft" x="{x:.1f}" y="{TOP - 18}">{_milliseconds(quarter / 4 * whole)}</text>')
    for number, row in enumerate(listed):
        parts += _drawn(row, TOP + number * ROW, begin, scale)
    return "\n".join([*parts, "</svg>", ""])


def _drawn(row: Row, y: int, begin: int, scale: float) -> list[str]:
    span = row.span
    left = NAMES + (span.start_time_unix_nano - begin) * scale
    length = max((span.end_time_unix_nano - span.start_time_unix_nano) * scale, 2.0)
    kind = "engine" if span.name in ("engine queue", "prefill", "decode") else "bar"
    told = {item.key: item.value.int_value for item in span.attributes if item.key in _TOLD}
    title = ", ".join(f"{key} {value}" for key, value in told.items())
    duration = _milliseconds(span.end_time_unix_nano - span.start_time_unix_nano)
    return [
        f'<text x="{EDGE + 16 * row.depth}" y="{y + 17}">{escape(span.name)}</text>',
        f'<rect class="{kind}" x="{left:.1f}" y="{y + 5}" width="{length:.1f}" height="16" rx="3">'
        f"<title>{escape(title)}</title></rect>",
        f'<text class="soft" x="{left + length + 7:.1f}" y="{y + 17}">{duration}</text>',
    ]


def _milliseconds(nanoseconds: float) -> str:
    value = nanoseconds / 1e6
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


def record(port: int) -> list[Span]:
    """Waits for the first request whose spans have all arrived: its own, of kind SERVER, ends last."""
    arrived: queue.Queue[list[Span]] = queue.Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            arrived.put([s for group in message.resource_spans for scope in group.scope_spans for s in scope.spans])
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", port), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    spans: list[Span] = []
    try:
        while True:
            spans += arrived.get()
            for span in spans:
                if span.kind == Span.SPAN_KIND_SERVER and any(one.name == "decode" for one in spans):
                    return [one for one in spans if one.trace_id == span.trace_id]
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--port", type=int, default=4318)
    args = parser.parse_args()
    args.picture.write_text(picture(record(args.port)), encoding="utf-8")
    print(args.picture)


if __name__ == "__main__":
    main()

"""The picture of a trace: what stands below what, and where."""

import xml.etree.ElementTree as ElementTree

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from scripts.draw_trace import picture, rows


def span(name: str, parent: str, begin: float, end: float) -> Span:
    return Span(
        name=name,
        span_id=name.encode(),
        parent_span_id=parent.encode(),
        start_time_unix_nano=10**18 + int(begin * 1e6),
        end_time_unix_nano=10**18 + int(end * 1e6),
    )


SPANS = [
    span("decode", "chat", 40.0, 90.0),
    span("chat", "door", 1.0, 91.0),
    span("reply", "door", 50.0, 92.0),
    span("prepare", "chat", 2.0, 5.0),
    span("door", "a caller's", 0.0, 100.0),
]


def test_spans_stand_below_their_parents_in_the_order_of_their_beginnings() -> None:
    assert [(row.span.name, row.depth) for row in rows(SPANS)] == [
        ("door", 0), ("chat", 1), ("prepare", 2), ("decode", 2), ("reply", 1),
    ]  # fmt: skip


def test_a_bar_is_as_long_as_its_span() -> None:
    root = ElementTree.fromstring(picture(SPANS))
    bars = [node for node in root.iter("{http://www.w3.org/2000/svg}rect") if node.get("class") != "ground"]
    door, _, _, decode, _ = [(float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars]
    assert abs(decode[1] / door[1] - 0.5) < 0.01
    assert abs((decode[0] - door[0]) / door[1] - 0.4) < 0.01
    assert "50 ms" in {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}

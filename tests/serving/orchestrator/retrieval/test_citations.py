import random
from typing import Any

from serving.orchestrator.retrieval.citations import CitedText, marker_of

SOURCES = [
    {"marker": "12345", "file_id": "file-a", "filename": "a.md", "start": 3, "end": 9, "quote": "quoted", "page": None},
    {"marker": "00007", "file_id": "file-b", "filename": "b.pdf", "start": 0, "end": 4, "quote": "text", "page": 2},
]
ANSWER = "Wool is warm [12345]. It shrinks [12345][00007], see [1] and [99999] and [123"
TOLD = "Wool is warm. It shrinks, see [1] and [99999] and [123"


def cited(answer: str) -> tuple[str, list[dict[str, Any]]]:
    text = CitedText(SOURCES)
    return text.feed(answer) + text.finish(), text.annotations


def test_markers_become_annotations_and_other_brackets_stay() -> None:
    text, annotations = cited(ANSWER)
    assert text == TOLD
    assert [(each["file_id"], each["index"]) for each in annotations] == [
        ("file-a", 12),
        ("file-a", 24),
        ("file-b", 24),
    ]
    assert annotations[2] == {
        "type": "file_citation",
        "index": 24,
        "file_id": "file-b",
        "filename": "b.pdf",
        "quote": "text",
        "start": 0,
        "end": 4,
        "page": 2,
    }


def test_a_stream_tells_what_the_whole_tells_wherever_it_is_cut() -> None:
    draw = random.Random(3)
    for _ in range(300):
        cuts = sorted(draw.choices(range(len(ANSWER) + 1), k=draw.randint(0, 30)))
        stream, told = CitedText(SOURCES), ""
        for start, end in zip([0, *cuts], [*cuts, len(ANSWER)], strict=True):
            told += stream.feed(ANSWER[start:end])
            assert TOLD.startswith(told)
        assert (told + stream.finish(), stream.annotations) == cited(ANSWER)


def test_a_passage_has_the_same_marker_each_time() -> None:
    first = marker_of("a.txt", 0, "Wool.")
    assert first == marker_of("a.txt", 0, "Wool.")
    assert (
        len({first, marker_of("a.txt", 1, "Wool."), marker_of("b.txt", 0, "Wool."), marker_of("a.txt", 0, "Silk.")})
        == 4
    )

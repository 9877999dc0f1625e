from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.orchestrator.quality_watch.canary import Canary, Kind, read_canaries
from tests.fakes.word_encoder import word_text_embedder

SHIPPED = Path(__file__).resolve().parents[4] / "configs" / "quality"


@pytest.mark.parametrize(
    ("kind", "expected", "answer", "score"),
    [
        ("exact", "Paris", " paris\n", 1.0),
        ("exact", "Paris", "It is Paris", 0.0),
        ("contains", "Paris", "it is PARIS.", 1.0),
        ("contains", "Paris", "it is Rome", 0.0),
        ("regex", r"\b42\b", "that makes 42.", 1.0),
        ("regex", r"\b42\b", "that makes 421", 0.0),
    ],
)
async def test_an_answer_is_scored_by_its_kind(kind: Kind, expected: str, answer: str, score: float) -> None:
    canary = Canary(name="c", prompt="p", expected=expected, kind=kind)
    assert await canary.score(answer, None) == score


async def test_an_answer_is_scored_by_what_it_means(tmp_path: Path) -> None:
    encoder = word_text_embedder(tmp_path, "it is paris in france rome")
    canary = Canary(name="c", prompt="p", expected="it is paris", kind="similarity")
    near, far = [await canary.score(text, encoder) for text in ("it is in paris", "rome rome")]
    assert 0.6 < near < 1
    assert far < near
    assert await canary.score("it is paris", encoder) == 1
    assert await canary.score("", encoder) == 0


def test_those_that_come_with_weft_can_be_read() -> None:
    for path in SHIPPED.glob("*.toml"):
        assert len(read_canaries(path, has_encoder=True)) >= 3


def text(**fields: Any) -> str:
    lines = {"name": "c", "prompt": "p", "expected": "e"} | fields
    return "[[canaries]]\n" + "".join(f"{name} = {value!r}\n" for name, value in lines.items())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a file of canaries"),
        ("[[canaries]", "not a file of canaries"),
        (text(kind="vibes"), "vibes"),
        (text(colour="red"), "colour"),
        (text(usual=2.0), "usual"),
        (text() + text(), "'c' has a name that an earlier one has"),
        (text(kind="regex", expected="("), "RE2 cannot read"),
        (text(kind="similarity"), r"needs an \[embeddings\] table"),
    ],
)
def test_a_file_that_cannot_work_is_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=says):
        read_canaries(path, has_encoder=False)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_canaries(tmp_path / "none.toml", has_encoder=False)

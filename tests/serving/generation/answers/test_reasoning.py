import random

import pytest

from serving.generation.answers.parts import ParsedText, Part
from serving.generation.answers.reasoning import REASONING_FORMS, Begins, ReasoningParser, reasoning_form_of

THINK = REASONING_FORMS["think"]


@pytest.mark.parametrize(
    ("begins", "text", "reasoning", "content"),
    [
        (Begins.EITHER, "<think>\nTwo and two.\n</think>\n\nFour.", "Two and two.", "Four."),
        (Begins.EITHER, "\n <think>a</think>b", "a", "b"),
        (Begins.EITHER, "<think>\n\n</think>\n\nFour.", "", "Four."),
        (Begins.EITHER, "Four. <think>no</think>", "", "Four. <think>no</think>"),
        (Begins.EITHER, "  Four.\n", "", "  Four.\n"),
        (Begins.EITHER, "<thin", "", "<thin"),
        (Begins.OPEN, "Two\n\nand two.\n</think>\nFour.", "Two\n\nand two.", "Four."),
        (Begins.OPEN, "cut off in the mid", "cut off in the mid", ""),
        (Begins.OPEN, "a</think>", "a", ""),
        (Begins.OPEN, "a</think>b</think>c", "a", "b</think>c"),
        (Begins.CONTENT, "\nFour.</think> <think>", "", "\nFour.</think> <think>"),
    ],
)
def test_reasoning_is_told_apart_from_the_answer(begins: Begins, text: str, reasoning: str, content: str) -> None:
    assert read(begins, [text]) == ParsedText(content=content, reasoning=reasoning)


@pytest.mark.parametrize("begins", Begins)
def test_any_chunking_gives_the_same_as_the_whole(begins: Begins) -> None:
    draw = random.Random(5)
    pieces = ["<think>", "</think>", "\n", " ", "word", "<", "</th", "ink>", "\n\n"]
    for _ in range(400):
        text = "".join(draw.choices(pieces, k=draw.randrange(8)))
        cuts = sorted(draw.choices(range(len(text) + 1), k=draw.randrange(6)))
        chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(begins, chunks) == read(begins, [text]), text


def test_neither_reasoning_nor_content_waits_for_more_than_a_tag() -> None:
    parser = ReasoningParser(THINK, Begins.OPEN)
    assert ParsedText.of(parser.feed("so <")).reasoning == "so "
    assert ParsedText.of(parser.feed("b")).reasoning == "<b"
    assert parser.feed("</think>") == []
    assert parser.feed("yes") == ["yes"]


def test_a_template_that_only_cuts_reasoning_out_knows_of_it_too() -> None:
    assert reasoning_form_of("{{ content.split('</think>')[-1] }}") == "think"
    assert reasoning_form_of("[THINK]") == "mistral"
    assert reasoning_form_of("<|im_start|>") == ""


def read(begins: Begins, chunks: list[str]) -> ParsedText:
    parser, parts = ReasoningParser(THINK, begins), list[Part]()
    for chunk in chunks:
        parts += parser.feed(chunk)
    return ParsedText.of([*parts, *parser.finish()])

import random

import pytest

from serving.orchestrator.retrieval.chunks import Chunk, ChunkSizes, chunks_of, sentences_of


def words(text: str) -> int:
    return len(text.split())


def cut(text: str, least: int, most: int, overlap: int) -> list[Chunk]:
    return chunks_of(text, words, ChunkSizes(least=least, most=most, overlap=overlap))


def test_chunks_end_with_sentences_and_overlap_by_whole_ones() -> None:
    text = "One two three. Four five! Six seven? Eight nine ten.\n\nA heading\n\nEleven twelve."
    found = cut(text, 5, 8, 3)
    assert [chunk.text for chunk in found] == [
        "One two three. Four five!",
        "Four five! Six seven? Eight nine ten.",
        "Eight nine ten.\n\nA heading",
        "A heading\n\nEleven twelve.",
    ]


def test_a_short_text_is_one_chunk_and_an_empty_one_none() -> None:
    assert cut("  Only this. ", 5, 8, 2) == [Chunk(2, 12, "Only this.")]
    assert cut(" \n\n ", 5, 8, 2) == []


def test_a_sentence_longer_than_a_chunk_is_cut_between_words() -> None:
    found = cut(" ".join(f"w{n}" for n in range(25)), 8, 10, 0)
    assert [words(chunk.text) for chunk in found] == [10, 10, 5]


def test_closing_quotes_stay_with_their_sentence() -> None:
    assert [chunk.text for chunk in cut('He said "No." Then (so it goes.) He left.', 3, 5, 0)] == [
        'He said "No."',
        "Then (so it goes.)",
        "He left.",
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "The mill was built by Dr. Ada Bell in 1901. ",
        "It was painted by J. R. Lane. ",
        "Use small parts, e.g. Bolts (see Fig. 2). ",
    ],
)
def test_titles_initials_and_their_like_end_no_sentence(sentence: str) -> None:
    text = sentence + "Another one."
    assert [text[start:end] for start, end in sentences_of(text)] == [sentence, "Another one."]


def test_a_question_after_a_single_letter_ends_its_sentence() -> None:
    text = "Is it plan B? It is."
    assert [text[start:end] for start, end in sentences_of(text)] == ["Is it plan B? ", "It is."]


def test_offsets_tell_where_a_chunk_stands_and_nothing_is_lost() -> None:
    draw = random.Random(5)
    for _ in range(2000):
        text = "".join(draw.choice(["word ", "x. ", "Long-er! ", "\n\n", "  ", "”. ", "。", "é? "]) for _ in range(60))
        least = draw.randint(2, 12)
        sizes = ChunkSizes(least=least, most=least + draw.randint(0, 6), overlap=draw.randint(0, least - 1))
        found = chunks_of(text, words, sizes)
        covered = set[int]()
        for before, chunk in zip([None, *found], found, strict=False):
            assert text[chunk.start : chunk.end] == chunk.text == chunk.text.strip()
            assert words(chunk.text) <= sizes.most
            if before is not None:
                assert before.start < chunk.start
                assert before.end < chunk.end
                shared = text[chunk.start : before.end] if chunk.start < before.end else ""
                assert words(shared) <= sizes.overlap
            covered |= set(range(chunk.start, chunk.end))
        assert all(text[at].isspace() for at in set(range(len(text))) - covered)


@pytest.mark.parametrize("sizes", [(5, 4, 1), (5, 8, 5), (5, 8, -1)])
def test_sizes_that_cannot_hold_together_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="overlap < least <= most"):
        ChunkSizes(least=sizes[0], most=sizes[1], overlap=sizes[2])

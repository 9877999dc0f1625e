"""What is kept is found, by vector and by words, in its store alone, by whichever process, whatever it is kept in."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from serving.orchestrator.retrieval.chunks import Chunk
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.index import DocumentGoneError, Index
from serving.orchestrator.retrieval.index_postgres import PostgresIndex
from serving.orchestrator.retrieval.index_sqlite import SqliteIndex
from serving.orchestrator.retrieval.passages import EmbeddedPassage, Passage

BODIES = ("in memory", "from the disk", "postgres")
D = 8

Maker = Callable[[], Index]


def unit(at: int, lean: float = 0.0) -> np.ndarray:
    vector = np.full(D, lean, np.float32)
    vector[at] = 1.0
    return vector / np.linalg.norm(vector)


def passage(text: str, start: int, *vectors: np.ndarray) -> EmbeddedPassage:
    step = len(text) // len(vectors)
    windows = tuple((start + at * step, start + (at + 1) * step) for at in range(len(vectors)))
    return EmbeddedPassage(Passage(Chunk(start, start + len(text), text), windows), np.stack(vectors))


async def put(index: Index, store: str, file: str, *passages: EmbeddedPassage, pages: Sequence[int] = ()) -> None:
    await index.put_document(store, file, Document("".join(p.passage.chunk.text for p in passages), tuple(pages)))
    await index.add(store, file, 0, passages)


@pytest.fixture(params=BODIES)
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Maker]:
    """Each call is another process."""
    made: list[Index] = []

    def make_one() -> Index:
        if request.param == "postgres":
            made.append(PostgresIndex(request.getfixturevalue("postgres_server").url, dimensions=D))
        else:
            made.append(SqliteIndex(tmp_path, cache_bytes=1 << 20 if request.param == "in memory" else 0))
        return made[-1]

    yield make_one
    for store in ("vs_a", "vs_b"):  # the server is shared
        await made[0].drop(store)
    for index in made:
        await index.close()


@pytest.fixture
def index(make: Maker) -> Index:
    return make()


async def test_the_nearest_window_ranks_a_passage_and_each_comes_once(index: Index) -> None:
    await put(
        index,
        "vs_a",
        "f1",
        passage("near and far", 0, unit(0), unit(1), unit(0, 0.1)),
        passage("leans", 12, unit(0, 0.3)),
    )
    await put(index, "vs_a", "f2", passage("elsewhere", 0, unit(2)))
    found = await index.passages("vs_a", await index.by_vector("vs_a", unit(0), ["f1", "f2"], 2))
    assert [held.embedded.passage.chunk.text for held in found] == ["near and far", "leans"]
    assert len(await index.by_vector("vs_a", unit(0), ["f1", "f2"], 10)) == 3
    only = await index.passages("vs_a", await index.by_vector("vs_a", unit(0), ["f2"], 10))
    assert [held.file_id for held in only] == ["f2"]


async def test_what_was_added_or_removed_since_a_search_counts_in_the_next(index: Index) -> None:
    await put(index, "vs_a", "f1", passage("one", 0, unit(0)))
    assert len(await index.by_vector("vs_a", unit(0), ["f1"], 10)) == 1
    for number in range(2, 12):
        await put(index, "vs_a", f"f{number}", passage(f"number {number}", 0, unit(number % D)))
        assert len(await index.by_vector("vs_a", unit(0), [f"f{n}" for n in range(1, 12)], 99)) == number
    await index.remove("vs_a", "f1")
    left = await index.passages("vs_a", await index.by_vector("vs_a", unit(0), [f"f{n}" for n in range(1, 12)], 99))
    assert {held.file_id for held in left} == {f"f{n}" for n in range(2, 12)}
    assert await index.by_words("vs_a", "one", ["f1"], 9) == []
    assert await index.document("vs_a", "f1") is None


async def test_words_are_found_in_other_forms_and_a_query_is_no_expression(index: Index) -> None:
    await put(index, "vs_a", "f1", passage("The weaver was weaving.", 0, unit(0)), passage("Sheep graze.", 23, unit(1)))
    (first,) = await index.by_words("vs_a", "who weaves?", ["f1"], 9)
    assert (await index.passages("vs_a", [first]))[0].number == 0
    assert await index.by_words("vs_a", 'NOT "sheep* AND (x:y', ["f1"], 9) != []
    for nothing in ("", "?!", "\x00", "loom"):
        assert await index.by_words("vs_a", nothing, ["f1"], 9) == []
    assert len(await index.by_words("vs_a", "the was", ["f1"], 9)) == 1  # words that are everywhere, alone


async def test_a_store_sees_nothing_of_another(index: Index) -> None:
    await put(index, "vs_a", "f1", passage("mine", 0, unit(0)))
    await put(index, "vs_b", "f1", passage("theirs", 0, unit(0)))
    (held,) = await index.passages("vs_a", await index.by_vector("vs_a", unit(0), ["f1"], 9))
    assert held.embedded.passage.chunk.text == "mine"
    assert await index.by_words("vs_a", "theirs", ["f1"], 9) == []
    await index.drop("vs_a")
    assert len(await index.by_vector("vs_b", unit(0), ["f1"], 9)) == 1
    assert await index.by_vector("vs_a", unit(0), ["f1"], 9) == []
    with pytest.raises(DocumentGoneError):
        await index.add("vs_a", "f1", 1, [passage("late", 4, unit(0))])


async def test_files_come_into_a_new_store_at_once_while_it_is_searched(index: Index) -> None:
    files = [f"f{n}" for n in range(8)]

    async def fill(file: str) -> None:
        await index.put_document("vs_a", file, Document("text " * 40))
        for number in range(10):
            await index.add("vs_a", file, number, [passage(f"text {number} of {file}", number * 5, unit(number % D))])

    async def search() -> int:
        return max([len(await index.by_vector("vs_a", unit(0), files, 99)) for _ in range(60)])

    most, *_ = await asyncio.gather(search(), *map(fill, files))
    assert most <= 80
    assert len(await index.by_vector("vs_a", unit(0), files, 99)) == 80


async def test_a_document_that_is_put_again_comes_alone_and_its_passages_are_counted(index: Index) -> None:
    assert await index.count("vs_a", "f1") == 0
    await put(index, "vs_a", "f1", passage("old", 0, unit(0)), passage("er", 3, unit(1)))
    assert await index.count("vs_a", "f1") == 2
    await put(index, "vs_a", "f1", passage("new\x00 \U0001f9f6", 0, unit(2)))
    assert await index.count("vs_a", "f1") == 1
    assert await index.document("vs_a", "f1") == Document("new\x00 \U0001f9f6")
    (held,) = await index.passages("vs_a", await index.by_vector("vs_a", unit(0), ["f1"], 9))
    assert held.embedded.passage.chunk.text == "new\x00 \U0001f9f6"
    assert await index.by_words("vs_a", "old", ["f1"], 9) == []


async def test_a_word_that_few_passages_have_counts_for_more(index: Index) -> None:
    texts = ["wool wool wool", "wool and cloth", "grease, or lanolin", "wool and yarn", "wool and felt"]
    for number, text in enumerate(texts):
        await put(index, "vs_a", f"f{number}", passage(text, 0, unit(0)))
    files = [f"f{number}" for number in range(len(texts))]
    best, *others = await index.passages("vs_a", await index.by_words("vs_a", "wool lanolin", files, 9))
    assert best.file_id == "f2"
    assert len(others) == 4
    assert len(await index.by_words("vs_a", "wool", ["f1", "f3"], 9)) == 2
    assert len(await index.by_words("vs_a", "wool", files, 3)) == 3


async def test_words_are_found_without_their_marks_and_within_others_signs(index: Index) -> None:
    await put(index, "vs_a", "f1", passage("Naïve weaver@example.com paid 3.50 to foo_bar's café.", 0, unit(0)))
    for query in ("naive", "NAÏVE", "weavers", "example", "3.50", "foo", "cafes"):
        assert len(await index.by_words("vs_a", query, ["f1"], 9)) == 1, query


async def test_another_process_finds_what_this_one_kept(make: Maker) -> None:
    mine, other = make(), make()
    await put(
        mine, "vs_a", "f1", passage("first page ", 0, unit(0)), passage("second page", 11, unit(1)), pages=(0, 11)
    )
    found = await other.passages("vs_a", await other.by_vector("vs_a", unit(1), ["f1"], 1))
    assert [(held.number, held.page_of(11), held.page_of(10)) for held in found] == [(1, 2, 1)]
    np.testing.assert_array_equal(found[0].embedded.vectors, unit(1)[None])
    assert found[0].embedded.passage.windows == ((11, 22),)
    await mine.remove("vs_a", "f1")
    assert await other.by_vector("vs_a", unit(1), ["f1"], 1) == []

"""What is kept is found, by vector and by words, in its store alone, whoever has opened the folder since."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from serving.orchestrator.retrieval.chunks import Chunk
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.index import DocumentGoneError
from serving.orchestrator.retrieval.index_sqlite import SqliteIndex
from serving.orchestrator.retrieval.passages import EmbeddedPassage, Passage

D = 8


def unit(at: int, lean: float = 0.0) -> np.ndarray:
    vector = np.full(D, lean, np.float32)
    vector[at] = 1.0
    return vector / np.linalg.norm(vector)


def passage(text: str, start: int, *vectors: np.ndarray) -> EmbeddedPassage:
    step = len(text) // len(vectors)
    windows = tuple((start + at * step, start + (at + 1) * step) for at in range(len(vectors)))
    return EmbeddedPassage(Passage(Chunk(start, start + len(text), text), windows), np.stack(vectors))


def put(index: SqliteIndex, store: str, file: str, *passages: EmbeddedPassage, pages: Sequence[int] = ()) -> None:
    index.put_document(store, file, Document("".join(p.passage.chunk.text for p in passages), tuple(pages)))
    index.add(store, file, 0, passages)


@pytest.fixture(params=[1 << 20, 0], ids=["in memory", "from the disk"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteIndex:
    return SqliteIndex(tmp_path, cache_bytes=request.param)


def test_the_nearest_window_ranks_a_passage_and_each_comes_once(index: SqliteIndex) -> None:
    put(
        index,
        "vs_a",
        "f1",
        passage("near and far", 0, unit(0), unit(1), unit(0, 0.1)),
        passage("leans", 12, unit(0, 0.3)),
    )
    put(index, "vs_a", "f2", passage("elsewhere", 0, unit(2)))
    found = index.passages("vs_a", index.by_vector("vs_a", unit(0), ["f1", "f2"], 2))
    assert [held.embedded.passage.chunk.text for held in found] == ["near and far", "leans"]
    assert len(index.by_vector("vs_a", unit(0), ["f1", "f2"], 10)) == 3
    only = index.passages("vs_a", index.by_vector("vs_a", unit(0), ["f2"], 10))
    assert [held.file_id for held in only] == ["f2"]


def test_what_was_added_or_removed_since_a_search_counts_in_the_next(index: SqliteIndex) -> None:
    put(index, "vs_a", "f1", passage("one", 0, unit(0)))
    assert len(index.by_vector("vs_a", unit(0), ["f1"], 10)) == 1
    for number in range(2, 12):
        put(index, "vs_a", f"f{number}", passage(f"number {number}", 0, unit(number % D)))
        assert len(index.by_vector("vs_a", unit(0), [f"f{n}" for n in range(1, 12)], 99)) == number
    index.remove("vs_a", "f1")
    left = index.passages("vs_a", index.by_vector("vs_a", unit(0), [f"f{n}" for n in range(1, 12)], 99))
    assert {held.file_id for held in left} == {f"f{n}" for n in range(2, 12)}
    assert index.by_words("vs_a", "one", ["f1"], 9) == []
    assert index.document("vs_a", "f1") is None


def test_words_are_found_in_other_forms_and_a_query_is_no_expression(index: SqliteIndex) -> None:
    put(index, "vs_a", "f1", passage("The weaver was weaving.", 0, unit(0)), passage("Sheep graze.", 23, unit(1)))
    (first,) = index.by_words("vs_a", "who weaves?", ["f1"], 9)
    assert index.passages("vs_a", [first])[0].number == 0
    assert index.by_words("vs_a", 'NOT "sheep* AND (x:y', ["f1"], 9) != []
    for nothing in ("", "?!", "\x00", "loom"):
        assert index.by_words("vs_a", nothing, ["f1"], 9) == []
    assert len(index.by_words("vs_a", "the was", ["f1"], 9)) == 1  # words that are everywhere, where no others are


def test_a_store_sees_nothing_of_another(index: SqliteIndex) -> None:
    put(index, "vs_a", "f1", passage("mine", 0, unit(0)))
    put(index, "vs_b", "f1", passage("theirs", 0, unit(0)))
    (held,) = index.passages("vs_a", index.by_vector("vs_a", unit(0), ["f1"], 9))
    assert held.embedded.passage.chunk.text == "mine"
    assert index.by_words("vs_a", "theirs", ["f1"], 9) == []
    index.drop("vs_a")
    assert index.stores() == ["vs_b"]
    assert index.by_vector("vs_a", unit(0), ["f1"], 9) == []
    with pytest.raises(DocumentGoneError):
        index.add("vs_a", "f1", 1, [passage("late", 4, unit(0))])
    with pytest.raises(ValueError, match="no name of a store"):
        index.document("../vs_b", "f1")


def test_files_come_into_a_new_store_at_once_while_it_is_searched(index: SqliteIndex) -> None:
    files = [f"f{n}" for n in range(8)]
    begin = threading.Barrier(9)

    def fill(file: str) -> None:
        begin.wait()
        index.put_document("vs_a", file, Document("text " * 40))
        for number in range(10):
            index.add("vs_a", file, number, [passage(f"text {number} of {file}", number * 5, unit(number % D))])

    def search() -> int:
        begin.wait()
        return max(len(index.by_vector("vs_a", unit(0), files, 99)) for _ in range(60))

    with ThreadPoolExecutor(9) as threads:
        work = [threads.submit(fill, file) for file in files]
        assert threads.submit(search).result() <= 80
        for each in work:
            each.result()
    assert len(index.by_vector("vs_a", unit(0), files, 99)) == 80


def test_another_process_finds_what_this_one_kept(tmp_path: Path) -> None:
    mine, other = SqliteIndex(tmp_path), SqliteIndex(tmp_path)
    put(mine, "vs_a", "f1", passage("first page ", 0, unit(0)), passage("second page", 11, unit(1)), pages=(0, 11))
    found = other.passages("vs_a", other.by_vector("vs_a", unit(1), ["f1"], 1))
    assert [(held.number, held.page_of(11), held.page_of(10)) for held in found] == [(1, 2, 1)]
    np.testing.assert_array_equal(found[0].embedded.vectors, unit(1)[None])
    assert found[0].embedded.passage.windows == ((11, 22),)
    mine.remove("vs_a", "f1")
    assert other.by_vector("vs_a", unit(1), ["f1"], 1) == []

from serving.orchestrator.retrieval.chunks import ChunkSizes
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.passages import passages_of

SIZES = ChunkSizes(least=20, most=40, overlap=6)


def words(text: str) -> int:
    return len(text.split())


def test_the_windows_of_a_passage_are_all_of_it_and_fit_the_encoder() -> None:
    document = Document(" ".join(f"This is sentence {n} of a text." for n in range(40)))
    passages = passages_of(document, words, SIZES, 12)
    assert len(passages) > 4
    for passage in passages:
        texts = [passage.text_of(window) for window in passage.windows]
        assert " ".join(texts) == passage.chunk.text
        assert all(words(text) <= 12 for text in texts)
        assert [document.text[start:end] for start, end in passage.windows] == texts


def test_a_window_ends_with_its_page() -> None:
    first, second = "One two three.\n\n", "Four five six.\n\n"
    (passage,) = passages_of(Document(first + second, (0, len(first))), words, SIZES, 12)
    assert [passage.text_of(window) for window in passage.windows] == ["One two three.", "Four five six."]


def test_coded_bytes_without_spaces_are_cut_to_fit() -> None:
    def letters(text: str) -> int:
        return len(text.strip())

    (*_, last) = passages = passages_of(
        Document("x" * 9000 + " end."), letters, ChunkSizes(least=200, most=400, overlap=0), 100
    )
    assert last.chunk.text.endswith("end.")
    assert all(letters(passage.chunk.text) <= 400 for passage in passages)
    assert all(end - start <= 100 for passage in passages for start, end in passage.windows)
    assert sum(len(passage.chunk.text) for passage in passages) >= 9004

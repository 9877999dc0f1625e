"""Which sentences of what was found a model is told: those nearest to the question, in their order, each once."""

from pathlib import Path

import numpy as np

from serving.engine.embedding import EmbedRequest, Texts
from serving.orchestrator.retrieval.chunks import ChunkSizes
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.encoding import Encoding
from serving.orchestrator.retrieval.index import Held
from serving.orchestrator.retrieval.nearest_sentences import NearestSentences
from serving.orchestrator.retrieval.passages import EmbeddedPassage, passages_of
from serving.orchestrator.retrieval.search import Found, Told
from serving.orchestrator.retrieval.vector_store import StoreFile
from tests.fakes.word_encoder import DIMENSIONS, ENCODER, LONGEST, WordEmbedder, word_text_embedder

LOOM = (
    "A loom holds the warp under tension. The weft is drawn through it by a shuttle.\n"
    "The flying shuttle was patented\r\nby John Kay in 1733. It doubled what a weaver could make."
)
WOOL = "Sheep are shorn in spring. Wool is washed in warm water. A weaver buys wool in spring."


class Shelf:
    """Documents cut, embedded and found, in the order in which they are put."""

    def __init__(self, folder: Path) -> None:
        self.embedder = WordEmbedder()
        made = word_text_embedder(folder, f"{LOOM} {WOOL} who when ?", self.embedder)

        async def embed(texts: Texts, account: bytes) -> np.ndarray:
            assert account == b"account"
            return await self.embedder.embed(EmbedRequest(request_id="r", texts=texts))

        self.encoding = Encoding(
            name=ENCODER, dimensions=DIMENSIONS, max_tokens=LONGEST, tokenizer=made.tokenizer, embed=embed
        )
        self.found: list[Found] = []

    async def put(self, name: str, text: str, sizes: ChunkSizes) -> None:
        file = StoreFile(
            store_id="s", file_id=name, filename=name, tenant="t", principal=b"", encoder=ENCODER, created_at=0
        )
        document = Document(text, (0,))
        counter = self.encoding.counter()
        for number, passage in enumerate(passages_of(document, counter, sizes, self.encoding.window_tokens)):
            texts = [passage.text_of(window) for window in passage.windows]
            vectors = await self.encoding.embed(self.encoding.tokenizer.encode(texts), b"account")
            held = Held(len(self.found), name, number, document.page_starts, EmbeddedPassage(passage, vectors))
            self.found.append(Found(file, held, 0.5, passage.windows[0]))

    async def told(self, most: int, *questions: str) -> list[Told]:
        return await NearestSentences(self.encoding, most).of(self.found, questions, b"account")


WHOLE = ChunkSizes(least=100, most=200, overlap=0)


async def test_the_nearest_sentence_of_all_passages_is_told_on_one_line(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await shelf.put("wool.pdf", WOOL, WHOLE)
    await shelf.put("loom.pdf", LOOM, WHOLE)
    (told,) = await shelf.told(1, "who patented the flying shuttle ?")
    assert told == Told(shelf.found[1], "The flying shuttle was patented by John Kay in 1733.")


async def test_sentences_keep_their_passages_and_the_order_of_their_document(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await shelf.put("wool.pdf", WOOL, WHOLE)
    await shelf.put("loom.pdf", LOOM, WHOLE)
    told = await shelf.told(3, "a weaver buys wool in spring", "sheep are shorn in spring", "by a shuttle it is drawn")
    assert [(each.found.file.filename, each.text.split("\n")) for each in told] == [
        ("wool.pdf", ["Sheep are shorn in spring.", "A weaver buys wool in spring."]),
        ("loom.pdf", ["The weft is drawn through it by a shuttle."]),
    ]


async def test_a_sentence_in_two_passages_that_overlap_is_told_once(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await shelf.put("wool.pdf", WOOL, ChunkSizes(least=12, most=14, overlap=8))
    assert len(shelf.found) == 2
    told = await shelf.told(64, "wool")
    lines = [line for each in told for line in each.text.split("\n")]
    assert lines == ["Sheep are shorn in spring.", "Wool is washed in warm water.", "A weaver buys wool in spring."]


async def test_a_long_document_costs_no_more_than_64_sentences_of_its_nearest_windows(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    words = WOOL.replace(".", "").lower().split()
    many = " ".join(f"{words[at % len(words)]} {words[at // len(words) % len(words)]} water." for at in range(200))
    nearest = f"{'Flying shuttle ' * 15}."
    await shelf.put("long.txt", f"{many} {nearest}", ChunkSizes(least=60, most=120, overlap=0))
    (told,) = await shelf.told(1, "flying shuttle")
    assert told.text == nearest
    assert [len(asked.texts) for asked in shelf.embedder.asked[-2:]] == [1, 64]


async def test_of_nothing_nothing_is_told(tmp_path: Path) -> None:
    assert await Shelf(tmp_path).told(3, "wool") == []

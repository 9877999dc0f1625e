"""recall@5 on the project's own set: how often one of the first five passages has the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from scripts.retrieval.recall_set import RecallSet
from serving.engine.embedding import EmbedRequest, Texts
from serving.generation.text_embedder import TextEmbedder
from serving.orchestrator.retrieval.catalog import Catalog, CatalogLimits
from serving.orchestrator.retrieval.encoding import Encoding
from serving.orchestrator.retrieval.index import Index
from serving.orchestrator.retrieval.ingest import FileIngest
from serving.orchestrator.retrieval.parse_process import ParseLimits
from serving.orchestrator.retrieval.query import Query
from serving.orchestrator.retrieval.search import Search
from serving.orchestrator.retrieval.vector_store import StoreFile, VectorStore

FIRST = 5
WEIGHTS = {"vectors": (1.0, 0.0), "full text": (0.0, 1.0), "both": (1.0, 1.0)}
STORE, TENANT = "vs_recall", "bench"


@dataclass(frozen=True, slots=True)
class Recall:
    sizes: tuple[int, int]  # tokens of a chunk, and of the overlap
    passages: int
    found: dict[str, float]  # share of the questions, by ranking


def encoding_of(encoder: TextEmbedder) -> Encoding:
    async def embed(texts: Texts, _: bytes):
        return await encoder.embedder.embed(EmbedRequest(request_id="bench", texts=texts))

    return Encoding(
        name=encoder.name,
        dimensions=encoder.facts.dimensions,
        max_tokens=encoder.facts.max_tokens,
        tokenizer=encoder.tokenizer,
        embed=embed,
    )


async def ingest(
    folder: Path, index: Index, encoding: Encoding, documents: dict[str, str], sizes: tuple[int, int]
) -> tuple[Search, int]:
    """And how many passages there are."""
    limits = CatalogLimits(tenant_stores=9, store_files=99_999, tenant_bytes=1 << 40)
    catalog = Catalog(folder, limits, lambda: 0.0)
    await catalog.add_store(VectorStore(id=STORE, tenant=TENANT, encoder=encoding.name, created_at=0, last_active_at=0))
    (folder / "files").mkdir()
    work = FileIngest(catalog, index, encoding, lambda file_id: folder / "files" / file_id, ParseLimits())
    passages = 0
    for name, text in documents.items():
        (folder / "files" / name).write_text(text, encoding="utf-8")
        file = StoreFile(
            store_id=STORE,
            file_id=name,
            filename=name,
            tenant=TENANT,
            principal=msgspec.msgpack.encode(None),
            encoder=encoding.name,
            created_at=0,
            max_tokens=sizes[0],
            overlap=sizes[1],
        )
        await catalog.attach([file])
        await work.run(file)
        ended = await catalog.file(STORE, name)
        assert ended.status == "completed", ended
        passages += ended.passages_done
    return Search(catalog, index, encoding), passages


async def measure(
    folder: Path, index: Index, encoder: TextEmbedder, given: RecallSet, sizes: tuple[int, int]
) -> Recall:
    """The unit is a chunk, so small ones make it harder: one of many must have the answer."""
    search, passages = await ingest(folder, index, encoding_of(encoder), given.documents, sizes)
    found: dict[str, float] = {}
    for name, (vectors, words) in WEIGHTS.items():
        hits = 0
        for question in given.questions:
            query = Query(texts=[question.text], limit=FIRST, vector_weight=vectors, text_weight=words)
            best = await search.find(TENANT, [STORE], query, b"")
            hits += any(question.answer in each.held.embedded.passage.chunk.text for each in best)
        found[name] = hits / len(given.questions)
    return Recall(sizes, passages, found)


def table(rows: Sequence[Recall]) -> str:
    lines = ["| chunks of (overlap) | passages | " + " | ".join(WEIGHTS) + " |", "|---|---|---|---|---|"]
    for row in rows:
        shares = " | ".join(f"{share:.2f}" for share in row.found.values())
        lines.append(f"| {row.sizes[0]} ({row.sizes[1]}) tokens | {row.passages} | {shares} |")
    return "\n".join(lines)

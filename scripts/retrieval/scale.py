"""A store of many chunks: how long it takes to fill it, to open it, and to search it.

Texts are drawn words and vectors are drawn numbers, since embedding so many would take hours: what is measured is the
index. An encoder's own rate is measured apart, over documents.
"""

import random
import statistics
import time
from dataclasses import dataclass

import numpy as np

from scripts.retrieval.place import Place
from serving.orchestrator.retrieval.chunks import Chunk
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.fusion import fused
from serving.orchestrator.retrieval.passages import EmbeddedPassage, Passage

STORE = "vs_scale"
DIMENSIONS = 384
CHUNKS_OF_A_FILE = 500
WORDS_OF_A_CHUNK, WINDOWS = 400, 3
VOCABULARY = 30_000
SEARCHES, NEAREST = 30, 100


@dataclass(frozen=True, slots=True)
class Scale:
    chunks: int
    fill_seconds: float
    bytes_on_disk: int
    first_seconds: float  # the first search after a restart
    vector_ms: float  # of later searches, the median
    words_ms: float
    fused_ms: float
    found: float  # of the passages that an exact search by vector ranks first, share


async def fill(place: Place, chunks: int) -> float:
    """Seconds."""
    draw, numbers = random.Random(1), np.random.default_rng(1)
    vocabulary = [f"w{n}" for n in range(VOCABULARY)]
    weights = [1 / (rank + 10) for rank in range(VOCABULARY)]  # Zipf's law
    index, spent = place.open(DIMENSIONS), 0.0
    for file in range(chunks // CHUNKS_OF_A_FILE):
        words = draw.choices(vocabulary, weights, k=CHUNKS_OF_A_FILE * WORDS_OF_A_CHUNK)
        texts = [" ".join(words[at : at + WORDS_OF_A_CHUNK]) for at in range(0, len(words), WORDS_OF_A_CHUNK)]
        vectors = numbers.standard_normal((CHUNKS_OF_A_FILE, WINDOWS, DIMENSIONS), np.float32)
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        made = [_passage(text, each) for text, each in zip(texts, vectors, strict=True)]
        begin = time.perf_counter()
        await index.put_document(STORE, f"file-{file}", Document(" ".join(words)))
        for at in range(0, len(made), 8):  # as an ingest adds them
            await index.add(STORE, f"file-{file}", at, made[at : at + 8])
        spent += time.perf_counter() - begin
    await index.close()
    return spent


async def measure(place: Place, chunks: int) -> Scale:
    seconds = await fill(place, chunks)
    files = [f"file-{n}" for n in range(chunks // CHUNKS_OF_A_FILE)]
    index = place.open(DIMENSIONS)  # as after a restart: nothing is in this process's memory
    numbers, draw = np.random.default_rng(2), random.Random(2)
    queries = numbers.standard_normal((SEARCHES, DIMENSIONS), np.float32)
    queries /= np.linalg.norm(queries, axis=-1, keepdims=True)
    begin = time.perf_counter()
    await index.by_vector(STORE, queries[0], files, NEAREST)
    first = time.perf_counter() - begin
    exact = place.open_exact(DIMENSIONS)
    times: list[tuple[float, float, float]] = []
    hits = 0
    for query in queries:
        text = " ".join(f"w{draw.randrange(50, 3000)}" for _ in range(6))
        start = time.perf_counter()
        near = await index.by_vector(STORE, query, files, NEAREST)
        middle = time.perf_counter()
        words = await index.by_words(STORE, text, files, NEAREST)
        end = time.perf_counter()
        assert len(await index.passages(STORE, fused([(1.0, near), (1.0, words)])[:10])) == 10
        times.append((middle - start, end - middle, time.perf_counter() - start))
        hits += len(set(near) & set(await exact.by_vector(STORE, query, files, NEAREST)))
    vector, word, both = (statistics.median(each) * 1e3 for each in zip(*times, strict=True))
    for each in (index, exact):
        await each.close()
    return Scale(chunks, seconds, await place.size(), first, vector, word, both, hits / (SEARCHES * NEAREST))


def _passage(text: str, vectors: np.ndarray) -> EmbeddedPassage:
    step = len(text) // len(vectors)
    windows = tuple((at * step, (at + 1) * step) for at in range(len(vectors)))
    return EmbeddedPassage(Passage(Chunk(0, len(text), text), windows), vectors)


def table(found: Scale) -> str:
    rows = {
        "chunks, each with three vectors": f"{found.chunks:,}",
        "filled, chunks a second": f"{found.chunks / found.fill_seconds:.0f}",
        "on disk": f"{found.bytes_on_disk / 1e9:.2f} GB",
        "first search after a restart": f"{found.first_seconds:.1f} s",
        "a search by vector": f"{found.vector_ms:.0f} ms",
        f"of the {NEAREST} nearest it finds": f"{found.found:.0%}",
        "a search by words": f"{found.words_ms:.0f} ms",
        "both, fused, ten passages read": f"{found.fused_ms:.0f} ms",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])

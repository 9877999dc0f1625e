"""Retrieval: recall@5 of vectors, full text and both; what a model is told of it; how fast files are embedded; searches
in a large store.

scripts/fetch_encoder
python -m scripts.bench_retrieval [--chunks 100000] [--encoder .build/encoder] [--only recall|told|ingest|scale]
                                  [--postgres URL]

With `--postgres`, the URL of a database that has pgvector and nothing of value, the index is there.
"""

import argparse
import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.moderation.local_encoder import local_encoder
from scripts.retrieval import recall, scale, told
from scripts.retrieval.place import place_of
from scripts.retrieval.recall_set import read_recall_set

SIZES = ((128, 24), (256, 48), (1024, 128))
COPIES = 4  # of the documents, for the rate
PARTS = ("recall", "told", "ingest", "scale")


def main() -> None:
    parser = argparse.ArgumentParser(description="Recall, ingest and search times of vector stores")
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--encoder", type=Path, default=Path(".build/encoder"))
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--postgres", metavar="URL", help="of a database with pgvector; left out, files of SQLite")
    options = parser.parse_args()
    parts = (options.only,) if options.only else PARTS
    if "scale" in parts:
        asyncio.run(_scale(options.postgres, options.chunks))
    if parts != ("scale",):
        asyncio.run(_with_encoder(options.encoder, parts, options.postgres))


async def _scale(url: str | None, chunks: int) -> None:
    async with place_of(url, scale.STORE) as place:
        print(scale.table(await scale.measure(place, chunks)), flush=True)


async def _with_encoder(folder: Path, parts: tuple[str, ...], url: str | None) -> None:
    encoder, given = local_encoder(folder), read_recall_set()
    dimensions = encoder.facts.dimensions
    if "recall" in parts:
        rows = []
        for sizes in SIZES:
            with TemporaryDirectory() as files:
                async with place_of(url, recall.STORE) as place:
                    index = place.open(dimensions)
                    rows.append(await recall.measure(Path(files), index, encoder, given, sizes))
                    await index.close()
        print(recall.table(rows), flush=True)
    if "told" in parts:
        encoding = recall.encoding_of(encoder)
        with TemporaryDirectory() as files:
            async with place_of(url, recall.STORE) as place:
                index = place.open(dimensions)
                search, _ = await recall.ingest(Path(files), index, encoding, given.documents, SIZES[-1])
                print(told.table(await told.measure(search, encoding, given)), flush=True)
                await index.close()
    if "ingest" in parts:
        text = "\n\n".join(given.documents.values())
        with TemporaryDirectory() as files:
            async with place_of(url, recall.STORE) as place:
                index = place.open(dimensions)
                begin = time.perf_counter()
                copies = {f"copy-{n}.md": text for n in range(COPIES)}
                encoding = recall.encoding_of(encoder)
                _, passages = await recall.ingest(Path(files), index, encoding, copies, (1024, 128))
                seconds = time.perf_counter() - begin
                await index.close()
        size = COPIES * len(text.encode())
        print(f"{size} bytes of text, {passages} chunks, in {seconds:.1f} s: {size / seconds / 1e3:.1f} kB a second")


if __name__ == "__main__":
    main()

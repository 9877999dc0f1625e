"""Retrieval: recall@5 of vectors, full text and both; how fast files are embedded; searches in a large store.

scripts/fetch_encoder
python -m scripts.bench_retrieval [--chunks 100000] [--encoder .build/encoder] [--only recall|ingest|scale]
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from scripts.moderation.local_encoder import local_encoder
from scripts.retrieval import recall, scale
from scripts.retrieval.recall_set import read_recall_set

SIZES = ((128, 24), (256, 48), (1024, 128))
COPIES = 4  # of the documents, for the rate


def main() -> None:
    parser = argparse.ArgumentParser(description="Recall, ingest and search times of vector stores")
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--encoder", type=Path, default=Path(".build/encoder"))
    parser.add_argument("--only", choices=("recall", "ingest", "scale"))
    options = parser.parse_args()
    parts = (options.only,) if options.only else ("recall", "ingest", "scale")
    if "scale" in parts:
        with tempfile.TemporaryDirectory() as folder:
            print(scale.table(scale.measure(Path(folder), options.chunks)), flush=True)
    if parts != ("scale",):
        asyncio.run(_with_encoder(options.encoder, parts))


async def _with_encoder(folder: Path, parts: tuple[str, ...]) -> None:
    encoder, given = local_encoder(folder), read_recall_set()
    if "recall" in parts:
        rows = []
        for sizes in SIZES:
            with tempfile.TemporaryDirectory() as place:
                rows.append(await recall.measure(Path(place), encoder, given, sizes))
        print(recall.table(rows), flush=True)
    if "ingest" in parts:
        text = "\n\n".join(given.documents.values())
        with tempfile.TemporaryDirectory() as place:
            begin = time.perf_counter()
            copies = {f"copy-{n}.md": text for n in range(COPIES)}
            _, passages = await recall.ingest(Path(place), recall.encoding_of(encoder), copies, (1024, 128))
            seconds = time.perf_counter() - begin
        size = COPIES * len(text.encode())
        print(f"{size} bytes of text, {passages} chunks, in {seconds:.1f} s: {size / seconds / 1e3:.1f} kB a second")


if __name__ == "__main__":
    main()

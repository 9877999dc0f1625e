"""A vector store of a PDF and a Markdown file, over an API process that is killed in the middle of their ingest: the
next one goes on, and a search finds the right passage and says where it stands. The encoder is real, and small."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from serving.child_process import ChildProcess
from serving.config import Deployment, EmbeddingsConfig, EngineConfig, ModelConfig
from serving.engine.embedding import EmbedRequest
from serving.engine.embedding_queue import EmbeddingQueue
from serving.engine.encoder import load_encoder
from serving.engine.server import EngineServer
from tests.fakes.byte_checkpoint import write_byte_checkpoint
from tests.fakes.mortal_engine import MortalEngine
from tests.fakes.pdf import pdf_of
from tests.fakes.tiny_encoder import save_tiny_encoder
from tests.serving.commands.api_process import PATIENCE, start_api

TOML = """
name = "bytes"
[model]
checkpoint = "tiny"
[server]
port = 0
[embeddings]
checkpoint = "encoder"
name = "tiny-encoder"
max_tokens = 32
[files]
folder = "kept"
[retrieval]
folder = "stores"
concurrent_files = 1
"""
SMALL = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20}}
BY_WORDS: Any = {"hybrid_search": {"embedding_weight": 0.01, "text_weight": 1}}  # a random encoder knows no meaning
MARKDOWN = "\n\n".join(f"## Part {n}\n\nThe cat sat on mat {n}. A dog sat on the cat {n} times." for n in range(120))
FACT = "Lanolin is what remains of the washing of wool."
PAGES = ["The cat sat on a mat.\nA dog sat.", f"Sheep are shorn in spring.\n{FACT}", "The end."]


class PausingEmbedder:
    """Implements `Embedder`: after so many requests the others wait."""

    def __init__(self, inner: EmbeddingQueue, requests: int) -> None:
        self._inner = inner
        self._left = requests
        self.requests = 0
        self.waits = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        self.requests += 1
        if self._left == 0:
            self.waits.set()
            await self.goes_on.wait()
        else:
            self._left -= 1
        return await self._inner.embed(request)


@pytest.fixture
async def embedder(tmp_path: Path) -> AsyncIterator[PausingEmbedder]:
    """Behind the socket that API processes of `tmp_path` connect to."""
    write_byte_checkpoint(tmp_path / "tiny")
    config = EmbeddingsConfig(checkpoint=save_tiny_encoder(tmp_path / "encoder"), name="tiny-encoder", max_tokens=32)
    encoder = load_encoder(
        Deployment(
            name="bytes",
            model=ModelConfig(checkpoint=tmp_path / "tiny"),
            engine=EngineConfig(compilation_cache=tmp_path / "programs"),
            embeddings=config,
        )
    )
    assert encoder is not None
    made = PausingEmbedder(EmbeddingQueue(encoder, asyncio.to_thread, lambda: False), requests=2)
    server = EngineServer(MortalEngine(), tmp_path / "private" / "engine.sock", embedder=made)
    await server.start()
    yield made
    await server.stop()


async def _start(folder: Path) -> tuple[ChildProcess, openai.AsyncOpenAI]:
    child, url = await start_api(folder, TOML)
    return child, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=8, timeout=PATIENCE)


async def test_a_kill_in_the_middle_of_an_ingest_costs_nothing(tmp_path: Path, embedder: PausingEmbedder) -> None:
    child, client = await _start(tmp_path)
    async with client:
        store = await client.vector_stores.create(name="notes")
        for name, data in (("cats.md", MARKDOWN.encode()), ("wool.pdf", pdf_of(PAGES))):
            file = await client.files.create(file=(name, data), purpose="assistants")
            await client.vector_stores.files.create(store.id, file_id=file.id, chunking_strategy=SMALL)
        await asyncio.wait_for(embedder.waits.wait(), PATIENCE)
        (_, half) = (await client.vector_stores.files.list(store.id)).data
        progress = (half.model_extra or {})["progress"]
        assert (half.status, progress["chunks"]) == ("in_progress", 16)
        child.kill()
        await child.wait()
    embedder.goes_on.set()
    embedder.requests = 0
    child, client = await _start(tmp_path)
    async with client:
        files = (await client.vector_stores.files.list(store.id, order="asc")).data
        ended = [await client.vector_stores.files.poll(file.id, vector_store_id=store.id) for file in files]
        assert [file.status for file in ended] == ["completed", "completed"], ended
        cats, wool = [(file.model_extra or {})["progress"] for file in ended]
        assert cats["chunks"] == cats["of"] == progress["of"]
        found = await client.vector_stores.search(store.id, query="What remains of wool?", ranking_options=BY_WORDS)
        citation = (found.data[0].model_extra or {})["citation"]
        pages = await client.vector_stores.files.content(ended[1].id, vector_store_id=store.id)
        assert (found.data[0].filename, citation["file_id"], citation["page"]) == ("wool.pdf", ended[1].id, 2)
        assert FACT in citation["quote"]
        assert (pages.data[0].text or "")[citation["start"] : citation["end"]] == citation["quote"]
        (shown,) = (
            await client.vector_stores.search(store.id, query="Part 77", max_num_results=1, ranking_options=BY_WORDS)
        ).data
        content, place = shown.content[0].text, shown.content[0].model_extra or {}
        assert "## Part 77" in content
        assert MARKDOWN[place["start"] : place["end"]] == content
        child.kill()
        await child.wait()
    # What was kept before the kill was not embedded again: eight chunks a request, and the two queries.
    assert wool["chunks"] == 1
    assert embedder.requests == math.ceil(cats["of"] / 8) - 2 + 1 + 2

"""POST /v1/embeddings: what it takes, what comes back, and who may ask."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from serving.api.embedding_body import MAX_TEXTS
from serving.app import build_encoder
from serving.config import Deployment, EmbeddingsConfig, EngineConfig, ModelConfig
from serving.engine.embedding_queue import EmbeddingQueue
from serving.engine.encoder import load_encoder
from serving.engine.remote import RemoteEngine
from serving.engine.server import EngineServer
from serving.errors import ContextLengthError, EngineUnavailableError, OverloadedError, WeftError
from serving.gateway.gateway import Gateway
from serving.generation.text_embedder import TextEmbedder
from tests.fakes.embedder import ENCODER, CountingEmbedder, tiny_text_embedder
from tests.fakes.mortal_engine import MortalEngine
from tests.fakes.tiny_encoder import WORDS, save_tiny_encoder
from tests.serving.api.conftest import MODEL, ApiMaker
from tests.serving.api.listening import listening

LONG = "the cat sat on a mat . the dogs sat on a mat ."
CLS, SEP = WORDS.index("[CLS]"), WORDS.index("[SEP]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder")


@pytest.fixture
def embedder() -> CountingEmbedder:
    return CountingEmbedder()


@pytest.fixture
def encoder(folder: Path, embedder: CountingEmbedder) -> TextEmbedder:
    return tiny_text_embedder(folder, embedder)


async def test_texts_reach_the_encoder_whole_and_between_its_marks(
    make_api: ApiMaker, encoder: TextEmbedder, embedder: CountingEmbedder
) -> None:
    reply = await make_api(encoder=encoder).post("/v1/embeddings", {"model": ENCODER, "input": ["Cats", LONG]})
    assert reply.status_code == 200, reply.text
    (asked,) = embedder.asked
    assert asked.texts[0] == (CLS, WORDS.index("cat"), WORDS.index("##s"), SEP)
    assert len(asked.texts[1]) == len(LONG.split()) + 1 + 2
    body = reply.json()
    assert body["usage"] == {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}
    assert (body["object"], body["model"]) == ("list", ENCODER)
    assert [(item["object"], item["index"]) for item in body["data"]] == [("embedding", 0), ("embedding", 1)]
    assert body["data"][0]["embedding"] != body["data"][1]["embedding"]


async def test_one_input_has_one_vector_in_every_form(make_api: ApiMaker, encoder: TextEmbedder) -> None:
    api = make_api(encoder=encoder)
    ids = [CLS, WORDS.index("cat"), SEP]
    replies = [
        (await api.post("/v1/embeddings", {"input": form, "dimensions": 4, "user": "u"})).json()["data"]
        for form in ("cat", ["cat"], ids, [ids])
    ]
    assert replies == [replies[0]] * 4
    coded = (await api.post("/v1/embeddings", {"input": "cat", "encoding_format": "base64"})).json()["data"]
    decoded = np.frombuffer(base64.b64decode(coded[0]["embedding"]), "<f4")
    assert decoded.tolist() == replies[0][0]["embedding"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "required"),
        ({"input": []}, "input", "length >= 1"),
        ({"input": ["a", 3]}, "input[1]", "where input[0]"),
        ({"input": [[1], "a"]}, "input[1]", "where input[0]"),
        ({"input": ""}, "input[0]", "empty"),
        ({"input": [[1], []]}, "input[1]", "empty"),
        ({"input": ["a"] * (MAX_TEXTS + 1)}, "input", "at most 2048 texts"),
        ({"input": [[1] * 300_001]}, "input", "300000"),
        ({"input": "a", "dimensions": 3}, "dimensions", "have 4"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", '"float" or "base64"'),
        ({"input": "a", "input_type": "query"}, "input_type", "alike"),
        ({"input": "a", "wrong": 1}, "wrong", "not a parameter"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    make_api: ApiMaker, encoder: TextEmbedder, embedder: CountingEmbedder, body: dict[str, Any], param: str, words: str
) -> None:
    reply = await make_api(encoder=encoder).post("/v1/embeddings", body)
    assert reply.status_code == 400, reply.text
    assert (reply.json()["error"]["param"], words in reply.json()["error"]["message"]) == (param, True), reply.text
    assert embedder.asked == []


async def test_each_model_has_its_own_work(make_api: ApiMaker, encoder: TextEmbedder) -> None:
    api = make_api(encoder=encoder)
    reply = await api.post("/v1/embeddings", {"model": MODEL, "input": "a"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    reply = await api.post("/v1/completions", {"model": ENCODER, "prompt": "a"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    listed = (await api.get("/v1/models")).json()["data"]
    assert [(card["id"], card["max_model_len"]) for card in listed] == [(MODEL, 4096), (ENCODER, 40)]
    assert (await api.get(f"/v1/models/{ENCODER}")).json() == listed[1]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ContextLengthError("input[0] has 41 tokens", param="input[0]"), 400),
        (OverloadedError("too many texts wait", retry_after=7.0, code="embedding_queue_full"), 503),
        (EngineUnavailableError("starting", code="engine_unavailable"), 503),
    ],
)
async def test_the_engines_refusals_reach_the_client(
    make_api: ApiMaker, encoder: TextEmbedder, embedder: CountingEmbedder, error: WeftError, status: int
) -> None:
    embedder.error = error
    reply = await make_api(encoder=encoder).post("/v1/embeddings", {"input": "a"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, error.code)
    assert ("retry-after" in reply.headers) == (status == 503)


async def test_texts_and_tokens_are_counted(make_api: ApiMaker, encoder: TextEmbedder) -> None:
    api = make_api(encoder=encoder)
    await api.post("/v1/embeddings", {"input": ["cat", "dog sat"]})
    metrics = (await api.get("/metrics")).text
    assert f'weft_embedded_texts_total{{model_name="{ENCODER}"}} 2.0' in metrics
    assert f'weft_embedded_tokens_total{{model_name="{ENCODER}"}} 7.0' in metrics


async def test_a_draining_server_takes_no_texts(make_api: ApiMaker, encoder: TextEmbedder) -> None:
    gateway = Gateway()
    api = make_api(encoder=encoder, gateway=gateway)
    gateway.drain()
    reply = await api.post("/v1/embeddings", {"input": "cat"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "server_draining")


async def test_the_openai_sdk_embeds(make_api: ApiMaker, encoder: TextEmbedder) -> None:
    async with (
        listening(make_api(encoder=encoder).app) as port,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120
        ) as client,
    ):
        coded = await client.embeddings.create(model=ENCODER, input=["cat", "dog"])  # the SDK asks for base64
        floats = await client.embeddings.create(model=ENCODER, input=["cat", "dog"], encoding_format="float")
    assert [item.embedding for item in coded.data] == [item.embedding for item in floats.data]
    assert coded.usage.prompt_tokens == 6


async def test_vectors_are_the_encoders_whatever_lies_between(make_api: ApiMaker, tmp_path: Path) -> None:
    """A deployment's encoder, its queue, the socket, and the API."""
    config = EmbeddingsConfig(checkpoint=save_tiny_encoder(tmp_path / "tiny"), name=ENCODER, max_tokens=32)
    deployment = Deployment(
        name=MODEL,
        model=ModelConfig(checkpoint=tmp_path),
        engine=EngineConfig(compilation_cache=tmp_path / "programs"),
        embeddings=config,
    )
    device = load_encoder(deployment)
    assert device is not None
    queue = EmbeddingQueue(device, asyncio.to_thread, lambda: False)
    socket = tmp_path / "private" / "engine.sock"
    server, remote = EngineServer(MortalEngine(), socket, embedder=queue), RemoteEngine(socket)
    await server.start()
    encoder = build_encoder(deployment, remote)
    api, texts = make_api(encoder=encoder), ["Cats", "the dog sat on a mat .", "dogs"]
    reply = await api.post("/v1/embeddings", {"model": ENCODER, "input": texts})
    too_long = await api.post("/v1/embeddings", {"model": ENCODER, "input": ["a", "cat " * 31]})
    await remote.close()
    await server.stop()
    assert reply.status_code == 200, reply.text
    vectors = np.array([item["embedding"] for item in reply.json()["data"]])
    assert encoder is not None
    wanted = np.concatenate([device.encode([text]) for text in encoder.tokenizer.encode(texts)])
    np.testing.assert_allclose(vectors, wanted, atol=1e-5)
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert too_long.json()["error"]["param"] == "input[1]"

"""Embeddings of the served model, beside an encoder's: over HTTP, over gRPC, and who is meant by which name."""

from pathlib import Path

import numpy as np
import pytest

from serving.client import Client, InvalidRequest
from serving.engine.embedding import TextFacts
from serving.errors import ConfigError
from serving.gateway.lease import salt_of
from serving.generation.text_embedder import MarkingTokenizer, TextEmbedder
from tests.fakes.embedder import ENCODER, CountingEmbedder, tiny_text_embedder
from tests.serving.api.conftest import MODEL, WINDOW, ApiMaker
from tests.serving.api.grpc.serving_grpc import serving_grpc

END = "<|im_end|>"


@pytest.fixture
def asked() -> CountingEmbedder:
    return CountingEmbedder()


@pytest.fixture
def served(make_api: ApiMaker, asked: CountingEmbedder) -> TextEmbedder:
    facts = TextFacts(
        dimensions=4, vocab_size=make_api.tokenizer.vocab_size, max_tokens=WINDOW, reader="the model", min_dimensions=2
    )
    marks = MarkingTokenizer(make_api.tokenizer, END)
    return TextEmbedder(name=MODEL, facts=facts, tokenizer=marks, embedder=asked, model=MODEL)


async def test_texts_go_to_the_model_that_is_named_and_to_the_encoder_where_none_is(
    make_api: ApiMaker, served: TextEmbedder, asked: CountingEmbedder, tmp_path: Path
) -> None:
    of_encoder = CountingEmbedder()
    api = make_api(encoder=tiny_text_embedder(tmp_path, of_encoder), model_embedder=served)
    for name, answers in ((MODEL, MODEL), (ENCODER, ENCODER), (None, ENCODER)):
        body = {"input": "cat"} if name is None else {"input": "cat", "model": name}
        assert (await api.post("/v1/embeddings", body)).json()["model"] == answers
    assert ([one.model for one in asked.asked], [one.model for one in of_encoder.asked]) == ([MODEL], ["", ""])
    listed = (await api.get("/v1/models")).json()["data"]
    assert [(card["id"], card["max_model_len"]) for card in listed] == [(MODEL, WINDOW), (ENCODER, 40)]
    refused = (await api.post("/v1/embeddings", {"input": "cat", "model": "other"})).json()["error"]
    assert (refused["code"], MODEL in refused["message"], ENCODER in refused["message"]) == (
        "model_not_found",
        True,
        True,
    )


async def test_a_text_ends_with_its_mark_once_and_belongs_to_its_tenant(
    make_api: ApiMaker, served: TextEmbedder, asked: CountingEmbedder
) -> None:
    api, (end,) = make_api(model_embedder=served), make_api.ids(END)
    reply = (await api.post("/v1/embeddings", {"input": ["ab", f"ab{END}"]})).json()
    (request,) = asked.asked
    assert request.texts == ((*make_api.ids("ab"), end),) * 2
    assert reply["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert request.cache_salt == salt_of(request.tenant, "")


async def test_vectors_are_cut_where_the_deployment_lets_them(make_api: ApiMaker, served: TextEmbedder) -> None:
    api = make_api(model_embedder=served)
    whole, cut = [
        np.array((await api.post("/v1/embeddings", {"input": "ab", **more})).json()["data"][0]["embedding"])
        for more in ({}, {"dimensions": 2})
    ]
    np.testing.assert_allclose(cut, whole[:2] / np.linalg.norm(whole[:2]), rtol=1e-6)
    for wrong in (1, 5):
        error = (await api.post("/v1/embeddings", {"input": "ab", "dimensions": wrong})).json()["error"]
        assert (error["param"], error["message"]) == ("dimensions", f"dimensions must lie in 2 .. 4, not {wrong}")


async def test_the_grpc_client_has_the_vectors_of_http(make_api: ApiMaker, served: TextEmbedder) -> None:
    api = make_api(model_embedder=served)
    http = (await api.post("/v1/embeddings", {"input": ["ab", "c"]})).json()
    async with serving_grpc(api) as address, Client(address) as client:
        made = await client.embed(["ab", "c"])
        ids = await client.embed([[*make_api.ids(f"ab{END}")]], model=MODEL, dimensions=2)
        with pytest.raises(InvalidRequest) as refusal:
            await client.embed([[1], []])
        with pytest.raises(InvalidRequest) as missing:
            await client.embed([])
    assert (made.model, made.prompt_tokens) == (MODEL, http["usage"]["prompt_tokens"])
    np.testing.assert_allclose(made.vectors, [item["embedding"] for item in http["data"]])
    assert len(ids.vectors[0]) == 2
    assert (refusal.value.param, missing.value.param) == ("token_ids[1]", "texts")


async def test_a_server_that_embeds_nothing_says_so(make_api: ApiMaker) -> None:
    async with serving_grpc(make_api()) as address, Client(address) as client:
        with pytest.raises(InvalidRequest, match="embeds nothing"):
            await client.embed("ab")


def test_an_end_that_is_no_token_is_refused(make_api: ApiMaker) -> None:
    with pytest.raises(ConfigError, match="no token"):
        MarkingTokenizer(make_api.tokenizer, "ab")

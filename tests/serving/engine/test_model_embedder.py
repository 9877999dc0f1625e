"""Texts for the served model: whose turn it is, what is refused, and what a failure leaves."""

import asyncio

import numpy as np
import pytest

from serving.engine.embedding import EmbedRequest, TextFacts
from serving.engine.model_embedder import ModelEmbedder
from serving.engine.request import GenerateRequest, Pooling, Priority
from serving.engine.text_model import TextModel
from serving.errors import ContextLengthError, EngineError, OverloadedError, RequestError

LONGEST = 400_000
FACTS = TextFacts(dimensions=2, vocab_size=50, max_tokens=LONGEST, reader="the model")


class Reader:
    """Gives a text's vector when it is told to."""

    def __init__(self, *, waits: bool = False) -> None:
        self.asked: list[GenerateRequest] = []
        self.error: Exception | None = None
        self.may_answer = asyncio.Event()
        if not waits:
            self.may_answer.set()

    async def vector_of(self, request: GenerateRequest, pooling: Pooling) -> np.ndarray:
        self.asked.append(request)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return np.array([len(request.prompt_token_ids), pooling is Pooling.MEAN], np.float32)


def embedder(reader: Reader, most: int = 2) -> ModelEmbedder:
    return ModelEmbedder(reader.vector_of, TextModel(pooling=Pooling.MEAN, unit=True, facts=FACTS), most)


def texts(name: str, *lengths: int) -> EmbedRequest:
    ids = tuple((1,) * length for length in lengths)
    return EmbedRequest(request_id=name, texts=ids, tenant=name, tenant_weight=2.0, cache_salt="s")


async def turns_of(tasks: int = 20) -> None:
    for _ in range(tasks):
        await asyncio.sleep(0)


async def test_each_text_is_a_prompt_of_the_batch_class_and_of_its_tenant() -> None:
    reader = Reader()
    vectors = await embedder(reader).embed(texts("a", 3, 1, 2))
    assert vectors.tolist() == [[3, 1], [1, 1], [2, 1]]
    asked = {(one.priority, one.tenant, one.tenant_weight, one.cache_salt) for one in reader.asked}
    assert asked == {(Priority.BATCH, "a", 2.0, "s")}
    assert all(one.sampling.max_tokens == 0 for one in reader.asked)
    assert len({one.request_id for one in reader.asked}) == 3


async def test_requests_take_turns_text_by_text() -> None:
    reader = Reader(waits=True)
    shared = embedder(reader, most=1)
    both = asyncio.gather(shared.embed(texts("many", *[1] * 6)), shared.embed(texts("few", 1, 1)))
    await turns_of()
    assert len(reader.asked) == 1
    reader.may_answer.set()
    await both
    assert [one.tenant for one in reader.asked][:5] == ["many", "many", "few", "many", "few"]


async def test_a_failure_fails_its_request_alone_and_leaves_no_turn_taken() -> None:
    reader = Reader(waits=True)
    shared = embedder(reader)
    failing = asyncio.create_task(shared.embed(texts("a", 1, 1, 1, 1)))
    await turns_of()
    reader.error = EngineError("lost", code="no_vector")
    reader.may_answer.set()
    with pytest.raises(EngineError, match="lost"):
        await failing
    reader.error = None
    assert shared.waiting_tokens == 0
    assert (await shared.embed(texts("b", 1, 1, 1))).shape == (3, 2)


async def test_who_leaves_gives_the_turns_back() -> None:
    reader = Reader(waits=True)
    shared = embedder(reader)
    leaving = asyncio.create_task(shared.embed(texts("a", 1, 1, 1)))
    await turns_of()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    reader.may_answer.set()
    assert (await shared.embed(texts("b", 2))).tolist() == [[2, 1]]
    assert shared.waiting_tokens == 0


async def test_more_texts_than_may_wait_are_refused_until_some_have_gone() -> None:
    reader = Reader(waits=True)
    shared = embedder(reader)
    first = asyncio.create_task(shared.embed(texts("a", LONGEST)))
    await turns_of()
    with pytest.raises(OverloadedError) as refusal:
        await shared.embed(texts("b", LONGEST))
    assert refusal.value.code == "embedding_queue_full"
    reader.may_answer.set()
    await first
    await shared.embed(texts("b", LONGEST))


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ((), RequestError, "no tokens"),
        ((50,), RequestError, "0 .. 49"),
        ((1,) * (LONGEST + 1), ContextLengthError, "the model reads 400000 at most"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_its_place(
    ids: tuple[int, ...], error: type[RequestError], words: str
) -> None:
    reader = Reader()
    with pytest.raises(error, match=words) as refusal:
        await embedder(reader).embed(EmbedRequest(request_id="a", texts=((1,), ids)))
    assert (refusal.value.param, reader.asked) == ("input[1]", [])

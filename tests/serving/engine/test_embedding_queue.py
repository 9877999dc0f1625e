"""The queue before the encoder: fair, bounded, and behind generation."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from serving.engine import embedding_queue
from serving.engine.embedding import EmbedRequest, TextFacts
from serving.engine.embedding_queue import STEPS_TO_TEXTS, EmbeddingQueue, Work
from serving.errors import ContextLengthError, EngineError, OverloadedError, RequestError

BATCH_SECONDS = 3.0


class CountingEncoder:
    """A text's vector says how long it is and what it begins with. `clock` goes on with each batch."""

    facts = TextFacts(dimensions=2, vocab_size=50, max_tokens=9)

    def __init__(self) -> None:
        self.batch_sizes = {4: 2, 9: 1}
        self.batches: list[list[tuple[int, ...]]] = []
        self.clock = 0.0
        self.fails = False

    def encode(self, texts: Sequence[tuple[int, ...]]) -> np.ndarray:
        self.batches.append(list(texts))
        self.clock += BATCH_SECONDS
        if self.fails:
            raise ValueError("broken")
        return np.array([[len(text), text[0]] for text in texts], np.float32)


class Device:
    """Runs nothing until `free` is set."""

    def __init__(self, *, free: bool = True) -> None:
        self.encoder = CountingEncoder()
        self.free = asyncio.Event()
        if free:
            self.free.set()
        self.asked = asyncio.Event()
        self.generating = False
        self.slept: list[float] = []
        self.queue = EmbeddingQueue(
            self.encoder, self.between_steps, lambda: self.generating, self.sleep, lambda: self.encoder.clock
        )

    async def between_steps(self, work: Work) -> np.ndarray:
        self.asked.set()
        await self.free.wait()
        return work()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def of(*texts: tuple[int, ...], name: str = "r") -> EmbedRequest:
    return EmbedRequest(request_id=name, texts=texts)


async def test_vectors_come_in_the_order_of_the_texts() -> None:
    device = Device()
    texts = ((1, 2, 3, 4, 5), (2,), (3, 3), (4,) * 9, (5, 5, 5))
    vectors = await device.queue.embed(of(*texts))
    assert vectors.tolist() == [[len(text), text[0]] for text in texts]
    assert device.encoder.batches == [[texts[1], texts[2]], [texts[4]], [texts[0]], [texts[3]]]
    assert device.queue.waiting_tokens == 0


async def test_requests_take_turns_and_share_batches() -> None:
    device = Device(free=False)
    large = asyncio.create_task(device.queue.embed(of((1,), (1,), (1,), (1,), (1,))))
    await device.asked.wait()
    small = asyncio.create_task(device.queue.embed(of((2,))))
    await asyncio.sleep(0)
    device.free.set()
    await asyncio.gather(large, small)
    assert device.encoder.batches == [[(1,), (1,)], [(1,), (1,)], [(2,), (1,)]]


async def test_while_streams_are_open_the_loop_has_the_larger_share() -> None:
    device = Device()
    device.generating = True
    await device.queue.embed(of((1,) * 9, (2,) * 9))
    assert device.slept[:1] == [STEPS_TO_TEXTS * BATCH_SECONDS]
    device.generating = False
    device.slept.clear()
    await device.queue.embed(of((1,) * 9, (2,) * 9))
    assert device.slept == []


async def test_a_request_that_is_given_up_leaves_the_queue() -> None:
    device = Device(free=False)
    leaving = asyncio.create_task(device.queue.embed(of((1,), (1,), (1,))))
    await device.asked.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert device.queue.waiting_tokens == 0
    device.free.set()
    assert (await device.queue.embed(of((7, 7)))).tolist() == [[2, 7]]
    assert device.encoder.batches == [[(1,), (1,)], [(7, 7)]]


async def test_a_full_queue_refuses_and_says_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_queue, "MOST_WAITING_TOKENS", 20)
    device = Device()
    await device.queue.embed(of((1,) * 6))  # 2 tokens a second
    device.free.clear()
    device.asked.clear()
    first = asyncio.create_task(device.queue.embed(of((1,) * 9, (2,) * 9, (3,) * 9)))
    await device.asked.wait()
    with pytest.raises(OverloadedError) as refused:
        await device.queue.embed(of((4,) * 3))
    assert (refused.value.code, refused.value.retry_after) == ("embedding_queue_full", 9.0)
    device.free.set()
    assert len(await first) == 3


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ((), RequestError, "no tokens"),
        ((1,) * 10, ContextLengthError, "10 tokens; the encoder reads 9"),
        ((50,), RequestError, r"0 \.\. 49"),
        ((3, -1), RequestError, r"0 \.\. 49"),
    ],
)
async def test_what_the_encoder_cannot_read_is_refused(text: tuple[int, ...], kind: type, words: str) -> None:
    device = Device()
    with pytest.raises(kind, match=words) as refused:
        await device.queue.embed(of((1,), text))
    assert refused.value.param == "input[1]"
    assert device.encoder.batches == []


async def test_a_failure_ends_its_texts_alone() -> None:
    device = Device()
    device.encoder.fails = True
    with pytest.raises(EngineError, match="encoder failed"):
        await device.queue.embed(of((1,), (2,), (3,)))
    device.encoder.fails = False
    assert (await device.queue.embed(of((4,)))).tolist() == [[1, 4]]
    assert device.queue.waiting_tokens == 0

"""Texts as vectors, by the encoder that the engine holds beside the model."""

import secrets

import numpy as np

from serving.engine.embedding import EmbedRequest
from serving.generation.text_embedder import TextEmbedder

MOST_WINDOWS = 32  # of an answer


async def question_vector(encoder: TextEmbedder, text: str) -> np.ndarray | None:
    """[D], of length 1; None for a text that the encoder cannot read to its end. Raises what Embedder.embed raises."""
    (ids,) = await encoder.tokenize([text])
    if len(ids) > encoder.facts.max_tokens:
        return None
    return (await _embedded(encoder, (ids,)))[0]


async def answer_similarity(encoder: TextEmbedder, one: str, other: str) -> float:
    """Cosine of the texts' vectors, each the mean over its windows. Raises as `question_vector`."""
    if one == other:
        return 1.0
    if not (one.strip() and other.strip()):
        return 0.0
    first, second = [await _mean_vector(encoder, text) for text in (one, other)]
    return float(first @ second)


async def _mean_vector(encoder: TextEmbedder, text: str) -> np.ndarray:
    ((begin, *inner, end),) = await encoder.tokenize([text])
    room = encoder.facts.max_tokens - 2
    starts = range(0, max(len(inner), 1), room)[:MOST_WINDOWS]
    made = await _embedded(encoder, tuple((begin, *inner[at : at + room], end) for at in starts))
    mean = made.mean(axis=0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)


async def _embedded(encoder: TextEmbedder, texts: tuple[tuple[int, ...], ...]) -> np.ndarray:
    return await encoder.embedder.embed(EmbedRequest(request_id=f"text-{secrets.token_hex(8)}", texts=texts))

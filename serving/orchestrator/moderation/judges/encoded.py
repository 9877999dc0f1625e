"""Texts as vectors, by the encoder that the engine holds beside the model."""

import secrets
from collections.abc import Sequence

import numpy as np

from serving.engine.embedding import EmbedRequest
from serving.generation.text_embedder import TextEmbedder

_MOST_TEXTS = 256  # of one request, so that others have their turn


async def vectors_of(encoder: TextEmbedder, texts: Sequence[str]) -> np.ndarray:
    """[texts, D] float32, each of length 1; of a text that is too long, its beginning's. Raises what Embedder.embed
    raises."""
    ids = await encoder.tokenize(texts)
    most = encoder.facts.max_tokens
    fitted = tuple(text if len(text) <= most else (*text[: most - 1], text[-1]) for text in ids)
    parts = [
        await encoder.embedder.embed(
            EmbedRequest(request_id=f"moderation-{secrets.token_hex(8)}", texts=fitted[at : at + _MOST_TEXTS])
        )
        for at in range(0, len(fitted), _MOST_TEXTS)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, encoder.facts.dimensions), np.float32)

"""The encoder in this process, behind the same interface as in a server."""

from pathlib import Path

import numpy as np

from serving.config import Deployment, EmbeddingsConfig, ModelConfig
from serving.engine.embedding import EmbedRequest
from serving.engine.encoder import Encoder, load_encoder
from serving.engine.encoder_folder import read_encoder
from serving.generation.text_embedder import EncoderTokenizer, TextEmbedder


class LocalEmbedder:
    """Implements `Embedder`."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        texts = request.texts
        vectors = np.zeros((len(texts), self._encoder.facts.dimensions), np.float32)
        waiting = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        while waiting:
            longest = len(texts[waiting[-1]])
            length = next(size for size in self._encoder.batch_sizes if size >= longest)
            most = self._encoder.batch_sizes[length]
            batch, waiting = waiting[-most:], waiting[:-most]
            vectors[batch] = self._encoder.encode([texts[at] for at in batch])
        return vectors


def local_encoder(folder: Path) -> TextEmbedder:
    """Compiles for seconds. Raises CheckpointError."""
    config = EmbeddingsConfig(checkpoint=folder, name="encoder")
    deployment = Deployment(name="none", model=ModelConfig(checkpoint=folder), embeddings=config)
    encoder = load_encoder(deployment)
    assert encoder is not None
    tokenizer = EncoderTokenizer(folder / "tokenizer.json")
    return TextEmbedder(
        name=config.name, facts=read_encoder(config), tokenizer=tokenizer, embedder=LocalEmbedder(encoder)
    )

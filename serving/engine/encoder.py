"""The encoder on this process's first device: a compiled program for each of a few shapes of padded batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models import bert
from models import checkpoint as checkpoints
from models.errors import CheckpointError as ModelCheckpointError
from models.interface import LayerForm
from serving.config import Deployment
from serving.engine.device import keep_compilations, start_backend
from serving.engine.embedding import TextFacts
from serving.engine.encoder_folder import read_encoder
from serving.errors import CheckpointError

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much
LENGTHS = (32, 128)  # tokens that short texts are padded to; longer ones to the most that there may be
# Tokens of a batch, padding included: how long it holds up generation.
BATCH_TOKENS, BATCH_TOKENS_ON_CPU = 4096, 256


class Encoder:
    """Implements `embedding_queue.TextEncoder`. One call at a time."""

    def __init__(self, model: Any, facts: TextFacts, batch_tokens: int, progress: Progress | None = None) -> None:
        """Compiles every program."""
        self.facts = facts
        self.batch_sizes = batch_sizes(facts.max_tokens, batch_tokens)
        _, self._state = nnx.split(model)
        shapes = sorted({(b, n) for n, most in self.batch_sizes.items() for b in (1, most)})
        self._programs: dict[tuple[int, int], Callable[..., Array]] = {}
        for done, (texts, length) in enumerate(shapes, start=1):
            self._programs[texts, length] = lowered_vectors(model, texts, length).compile()
            if progress is not None:
                progress("compiling the encoder", done, len(shapes))

    def encode(self, texts: Sequence[tuple[int, ...]]) -> np.ndarray:
        """[texts, D] float32. The texts fit one batch: `batch_sizes` by the longest of them."""
        longest = max(map(len, texts))
        length = next(length for length in self.batch_sizes if length >= longest)
        rows = 1 if len(texts) == 1 else self.batch_sizes[length]
        token_ids = np.zeros((rows, length), np.int32)
        lengths = np.ones(rows, np.int32)  # a row without a text has one token, and nobody reads its vector
        for row, text in enumerate(texts):
            token_ids[row, : len(text)] = text
            lengths[row] = len(text)
        return np.asarray(self._programs[rows, length](self._state, token_ids, lengths))[: len(texts)]


def batch_sizes(max_tokens: int, batch_tokens: int) -> Mapping[int, int]:
    """Texts of a batch, by the length that they are padded to."""
    lengths = (length for length in sorted({*LENGTHS, max_tokens}) if length <= max_tokens)
    return {length: max(1, batch_tokens // length) for length in lengths}


def lowered_vectors(model: Any, texts: int, length: int) -> jax.stages.Lowered:
    """Of a batch of so many texts. The leaves may be jax.ShapeDtypeStructs."""
    graph, state = nnx.split(model)

    def vectors(state: Any, token_ids: Array, lengths: Array) -> Array:
        return bert.mean_vectors(nnx.merge(graph, state)(token_ids, lengths), lengths)

    token_ids, lengths = (jax.ShapeDtypeStruct(dims, jnp.int32) for dims in ((texts, length), (texts,)))
    return jax.jit(vectors).lower(state, token_ids, lengths)


def load_encoder(deployment: Deployment, progress: Progress | None = None) -> Encoder | None:
    """None where the deployment has no encoder. Before the model's pages are counted, which take what room is left.

    Raises CheckpointError or ConfigError.
    """
    config = deployment.embeddings
    if config is None:
        return None
    facts = read_encoder(config)
    start_backend(deployment.engine.cpu_threads)
    keep_compilations(deployment.engine.compilation_cache)
    on_cpu = jax.default_backend() == "cpu"
    layers: LayerForm = "list" if on_cpu else "stacked"
    families = cast(Any, (bert,))  # an encoder lacks what makes a `Family`'s model generate
    try:
        model, _, _ = checkpoints.load(config.checkpoint, jnp.float32, layers=layers, families=families)
    except ModelCheckpointError as error:
        raise CheckpointError(str(error)) from error
    return Encoder(model, facts, BATCH_TOKENS_ON_CPU if on_cpu else BATCH_TOKENS, progress)

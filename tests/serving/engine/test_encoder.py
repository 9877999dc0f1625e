"""The encoder's programs, over random weights."""

from pathlib import Path

import numpy as np
import pytest

from serving.config import Deployment, EmbeddingsConfig, EngineConfig, ModelConfig
from serving.engine.encoder import Encoder, load_encoder
from tests.fakes.tiny_encoder import LONGEST, WORDS, D, save_tiny_encoder


def deployment(folder: Path, embeddings: EmbeddingsConfig | None) -> Deployment:
    return Deployment(
        name="m",
        model=ModelConfig(checkpoint=folder / "nothing"),
        engine=EngineConfig(compilation_cache=folder / "programs"),
        embeddings=embeddings,
    )


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = tmp_path_factory.mktemp("encoder")
    config = EmbeddingsConfig(checkpoint=save_tiny_encoder(folder / "tiny"), name="tiny", max_tokens=LONGEST)
    made = load_encoder(deployment(folder, config))
    assert made is not None
    return made


def test_a_deployment_without_an_encoder_loads_none(tmp_path: Path) -> None:
    assert load_encoder(deployment(tmp_path, None)) is None


def test_batches_shrink_as_texts_grow(encoder: Encoder) -> None:
    assert encoder.batch_sizes == {32: 8, LONGEST: 6}


def test_a_vector_depends_on_its_text_alone(encoder: Encoder) -> None:
    rng = np.random.default_rng(1)
    texts = [tuple(map(int, rng.integers(0, len(WORDS), length))) for length in (3, 32, 1, LONGEST, 17)]
    together = encoder.encode(texts)
    assert together.shape == (5, D)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=-1), 1.0, atol=1e-5)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(encoder.encode([text])[0], vector, atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 1e-2

import jax.numpy as jnp
import numpy as np
import pytest

from models.dense import dense_attend
from pallas_kernels.ragged import AttentionOptions
from tests.pallas_kernels.attention_oracle import attend_one

BATCH, LENGTH, HEADS, KV_HEADS, HEAD_DIM = 2, 9, 6, 3, 4


@pytest.mark.parametrize(
    ("options", "window"),
    [
        (AttentionOptions(scale=0.5), None),
        (AttentionOptions(scale=0.5), 3),
        (AttentionOptions(scale=0.5, chunked=True), 4),
        (AttentionOptions(scale=2.0, soft_cap=1.5), None),
    ],
)
@pytest.mark.parametrize("sunk", [False, True])
def test_each_token_sees_its_own_sequence_up_to_itself(
    options: AttentionOptions, window: int | None, sunk: bool
) -> None:
    random = np.random.default_rng(0)
    q = random.normal(size=(BATCH, LENGTH, HEADS, HEAD_DIM)).astype(np.float32)
    k, v = (random.normal(size=(BATCH, LENGTH, KV_HEADS, HEAD_DIM)).astype(np.float32) for _ in range(2))
    sinks = random.normal(size=HEADS).astype(np.float32) if sunk else None
    flat_q, flat_k, flat_v = (jnp.asarray(x.reshape(BATCH * LENGTH, *x.shape[2:])) for x in (q, k, v))
    attend = dense_attend(BATCH, LENGTH)
    cache, out = attend(
        "passed through",
        0,
        flat_q,
        flat_k,
        flat_v,
        options,
        sinks=None if sinks is None else jnp.asarray(sinks),
        window=window,
    )
    assert cache == "passed through"
    for b in range(BATCH):
        for t in range(LENGTH):
            right = attend_one(q[b, t], k[b, : t + 1], v[b, : t + 1], options, sinks, window)
            np.testing.assert_allclose(out[b * LENGTH + t], right, atol=1e-5)


def test_latent_rows_are_key_and_value() -> None:
    random = np.random.default_rng(1)
    options = AttentionOptions(scale=0.5, value_dim=3)
    q = random.normal(size=(LENGTH, HEADS, HEAD_DIM)).astype(np.float32)
    k = random.normal(size=(LENGTH, 1, HEAD_DIM)).astype(np.float32)
    _, out = dense_attend(1, LENGTH)(None, 0, jnp.asarray(q), jnp.asarray(k), None, options)
    assert out.shape == (LENGTH, HEADS, 3)
    for t in range(LENGTH):
        np.testing.assert_allclose(out[t], attend_one(q[t], k[: t + 1], None, options), atol=1e-5)

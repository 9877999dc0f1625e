import numpy as np
import pytest

from models.dense import dense_attend
from pallas_kernels.ragged import AttentionOptions
from tests.pallas_kernels.attention_oracle import attend_one

BATCH, LENGTH, HEADS, KV_HEADS, HEAD_DIM = 2, 9, 6, 3, 4


@pytest.mark.parametrize(
    "options",
    [AttentionOptions(scale=0.5), AttentionOptions(scale=0.5, window=3), AttentionOptions(scale=2.0, soft_cap=1.5)],
)
def test_each_token_sees_its_own_sequence_up_to_itself(options: AttentionOptions) -> None:
    random = np.random.default_rng(0)
    q = random.normal(size=(BATCH, LENGTH, HEADS, HEAD_DIM)).astype(np.float32)
    k, v = (random.normal(size=(BATCH, LENGTH, KV_HEADS, HEAD_DIM)).astype(np.float32) for _ in range(2))
    flat = [x.reshape(BATCH * LENGTH, *x.shape[2:]) for x in (q, k, v)]
    cache, out = dense_attend(BATCH, LENGTH)("passed through", 0, *flat, options)
    assert cache == "passed through"
    for b in range(BATCH):
        for t in range(LENGTH):
            right = attend_one(q[b, t], k[b, : t + 1], v[b, : t + 1], options)
            np.testing.assert_allclose(out[b * LENGTH + t], right, atol=1e-5)

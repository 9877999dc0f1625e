"""Which kernels run is decided at load, and what they cannot do is refused there."""

import jax.numpy as jnp
import pytest

from pallas_kernels.dispatch import attention_body, grouped_matmul_body
from pallas_kernels.ragged import AttentionOptions, PoolSpec, RaggedBatch
from serving.engine.kernels import body_for, checked_attention, checked_matmul
from serving.errors import ConfigError


@pytest.mark.parametrize(
    ("kernels", "platform", "body"),
    [
        ("auto", "cpu", "cpu"),
        ("reference", "cpu", "reference"),
        ("auto", "tpu", "tpu"),
        ("auto", "gpu", "gpu"),
        ("reference", "tpu", "reference"),
        ("tpu", "tpu", "tpu"),
    ],
)
def test_a_platform_has_its_own_kernels_unless_the_reference_is_asked_for(kernels, platform, body) -> None:
    assert body_for(kernels, platform) == body


@pytest.mark.parametrize(("kernels", "platform"), [("gpu", "cpu"), ("cpu", "gpu"), ("tpu", "gpu"), ("auto", "rocm")])
def test_kernels_of_another_platform_are_refused(kernels, platform) -> None:
    with pytest.raises(ConfigError, match="kernels"):
        body_for(kernels, platform)


def test_a_model_that_a_body_cannot_serve_is_refused_with_the_reason_and_the_way_out() -> None:
    spec = PoolSpec(8, 1, 16, 1, 72, jnp.dtype("bfloat16"))
    attend = checked_attention(attention_body("gpu"), spec)
    q = jnp.zeros((4, 2, 72), jnp.bfloat16)
    batch = RaggedBatch(*[jnp.zeros((), jnp.int32)] * 7)
    with pytest.raises(ConfigError, match=r"72.*engine\.kernels = \"reference\""):
        attend(q, q[:, :1], q[:, :1], jnp.zeros(()), 0, batch, AttentionOptions(scale=0.1))


def test_weights_that_a_body_cannot_multiply_are_refused() -> None:
    matmul = checked_matmul(grouped_matmul_body("gpu"))
    with pytest.raises(ConfigError, match="multiples of 64, not 64 and 96"):
        matmul(jnp.zeros((8, 64), jnp.bfloat16), jnp.zeros((2, 64, 96), jnp.bfloat16), jnp.array([4, 4]))

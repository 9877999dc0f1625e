"""Which kernel bodies a deployment runs: chosen by name once, at load, and refused there with the reason."""

from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.dispatch import AttentionBody, Body, GroupedMatmulBody, PagedAttention
from pallas_kernels.grouped import ExpertWeights, GroupedMatmul
from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, RaggedBatch
from serving.errors import ConfigError
from serving.settings.model import Kernels

OWN_BODY: dict[str, Body] = {"cpu": "cpu", "tpu": "tpu", "gpu": "gpu"}  # by JAX's name of the platform


def body_for(kernels: Kernels, platform: str) -> Body:
    """The body of the platform, unless the deployment asks for another. Raises ConfigError where it cannot run."""
    own = OWN_BODY.get(platform)
    if kernels == "auto":
        if own is None:
            raise ConfigError(f'weft has no kernels for the platform {platform!r}: set engine.kernels = "reference"')
        return own
    if kernels not in ("reference", own):
        raise ConfigError(f"engine.kernels is {kernels!r}, which does not run on {platform!r}", param="kernels")
    return kernels


def checked_attention(body: AttentionBody, spec: PoolSpec) -> PagedAttention:
    """`body`, which refuses a model that it cannot serve while its program is traced: before anything is served.

    `spec` is one device's pool. Raises ConfigError from the trace.
    """

    def attend(
        q: Array,
        k: Array,
        v: Array | None,
        pool: Pool,
        layer: Array | int,
        batch: RaggedBatch,
        options: AttentionOptions,
        sinks: Array | None = None,
        window: Array | int | None = None,
    ) -> tuple[Array, Pool]:
        _raise_for(body.refusal(options, q.shape[1], spec))
        return body.attend(q, k, v, pool, layer, batch, options, sinks, window)

    return attend


def checked_matmul(body: GroupedMatmulBody) -> GroupedMatmul:
    """`body`, which refuses weights that it cannot multiply, as `checked_attention` does."""

    def matmul(
        x: Array,
        weights: ExpertWeights,
        group_sizes: Array,
        *,
        first_expert: Array | int = 0,
        preferred_element_type: DTypeLike | None = None,
    ) -> Array:
        _raise_for(body.refusal(weights, x.dtype))
        return body.matmul(
            x, weights, group_sizes, first_expert=first_expert, preferred_element_type=preferred_element_type
        )

    return matmul


def _raise_for(reason: str | None) -> None:
    if reason is not None:
        raise ConfigError(f'{reason}; engine.kernels = "reference" serves it without kernels, slowly', param="kernels")

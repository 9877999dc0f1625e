"""The attention and expert shapes of the models that weft is made for, as one device of a usual mesh sees them."""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar


class HeadShape(NamedTuple):
    model: str
    heads: int  # H of one device
    kv_heads: int  # K of one device
    head_dim: int
    latent: bool = False
    value_dim: int | None = None


class ExpertShape(NamedTuple):
    model: str
    experts: int  # of one device
    d: int
    f: int


Shape = TypeVar("Shape", bound=HeadShape | ExpertShape)

HEADS = (
    HeadShape("Llama 3.1 8B on 1", 32, 8, 128),
    HeadShape("Llama 3.1 8B on 8", 4, 1, 128),
    HeadShape("Llama 3.3 70B on 8", 8, 1, 128),
    HeadShape("Qwen3 32B on 2", 32, 4, 128),
    HeadShape("Qwen3 30B-A3B on 8", 4, 1, 128),
    HeadShape("gpt-oss 120B on 8", 8, 1, 64),
    HeadShape("Phi-2 like, on 1", 32, 32, 80),
    HeadShape("Phi-3 mini on 1", 32, 32, 96),
    HeadShape("heads of 192 on 1", 16, 16, 192),
    HeadShape("Gemma 2 9B on 1", 16, 8, 256),
    HeadShape("Gemma 3 27B on 8", 4, 2, 128),
)
LATENT = HeadShape("DeepSeek-V3 on 8", 16, 1, 576, latent=True, value_dim=512)
PAGE_SIZES = (16, 64, 256)
PAGE_TYPES = ("bfloat16", "int8", "float8_e4m3fn")

EXPERTS = (
    ExpertShape("Mixtral 8x7B on 8", 8, 4096, 1792),
    ExpertShape("Qwen3 30B-A3B on 8", 16, 2048, 768),
    ExpertShape("gpt-oss 120B on 8", 16, 2880, 2880),
    ExpertShape("DeepSeek-V3 on 16", 16, 7168, 2048),
)
EXPERT_ROWS = (64, 4096)  # decode, prefill


def of_models(shapes: Iterable[Shape], of: str) -> list[Shape]:
    """Those of the models whose names hold `of`."""
    return [shape for shape in shapes if of in shape.model]

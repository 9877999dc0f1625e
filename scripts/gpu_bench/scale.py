"""How large everything is: as on a Hopper GPU, or as a CPU can do in seconds."""

from dataclasses import dataclass
from pathlib import Path

from pallas_kernels.dispatch import Body


@dataclass(frozen=True, kw_only=True)
class Scale:
    body: Body
    dtype: str
    page_size: int
    memory: int  # bytes that pages may take
    copied: int  # bytes of the copy
    multiplied: int  # the side of the square matmul
    runs: int  # medians are of so many
    queued: int  # programs behind one another in a run
    head_dim: int
    heads: tuple[tuple[int, int], ...]  # (H, K)
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prefills: tuple[int, ...]
    chunk: int  # tokens of the mixed batch's chunk
    check_context: int
    experts: tuple[tuple[int, int, int], ...]  # (E, D, F)
    expert_rows: tuple[int, ...]
    model: dict[str, int]  # fields of config.json that are other than the file's
    step_batches: tuple[int, ...]
    step_context: int
    prompts: int
    prompt_len: int
    output_len: int


ARCHITECTURE = Path(__file__).parents[2] / "configs" / "models" / "llama-3.1-8b.toml"

FULL = Scale(
    body="gpu",
    dtype="bfloat16",
    page_size=64,
    memory=24 << 30,
    copied=4 << 30,
    multiplied=8192,
    runs=5,
    queued=10,
    head_dim=128,
    heads=((32, 8), (8, 1), (32, 32)),  # G = 4, 8, 1
    batches=(64, 1, 256, 8),
    contexts=(1024, 4096, 16384, 131072),
    prefills=(512, 2048, 8192, 32768),
    chunk=2048,
    check_context=700,
    experts=((8, 4096, 1792), (128, 2048, 768)),
    expert_rows=(64, 512, 8192),
    model={},
    step_batches=(1, 64, 256),
    step_context=1024,
    prompts=256,
    prompt_len=256,
    output_len=128,
)

SMOKE = Scale(
    body="reference",
    dtype="float32",
    page_size=16,
    memory=1 << 20,
    copied=1 << 16,
    multiplied=64,
    runs=1,
    queued=1,
    head_dim=16,
    heads=((4, 2),),
    batches=(2,),
    contexts=(32,),
    prefills=(32,),
    chunk=16,
    check_context=40,
    experts=((2, 64, 64),),
    expert_rows=(16,),
    model={
        "vocab_size": 256,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    },
    step_batches=(2,),
    step_context=16,
    prompts=2,
    prompt_len=8,
    output_len=4,
)

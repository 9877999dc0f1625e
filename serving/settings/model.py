"""One model, its engine, and the devices that it is split over."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.settings.reasoning_switch import ReasoningSwitchConfig

Dtype = Literal["float32", "bfloat16"]
Kernels = Literal["auto", "reference", "cpu", "tpu", "gpu"]
ExpertExchange = Literal["auto", "sum", "all-to-all"]
Quantization = Literal["int8", "int4", "fp8"]
Activations = Literal["int8", "fp8"]
CacheDtype = Literal["int8", "fp8"]
ReasoningForm = Literal["auto", "none", "think", "mistral", "harmony"]
CallForm = Literal[
    "auto",
    "none",
    "hermes",
    "qwen_xml",
    "glm_xml",
    "glm4",
    "llama3",
    "llama4",
    "mistral",
    "mistral_args",
    "deepseek",
    "deepseek_v31",
    "phi4",
    "olmo3",
    "harmony",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    checkpoint: Path  # a directory in the hub's layout
    dtype: Dtype | None = None  # None: float32 on a CPU, bfloat16 elsewhere
    quantization: Quantization | None = None  # of weights, while they are loaded; None: as the checkpoint has them
    group_size: int | None = None  # rows that share a scale in int4; None: 128
    activations: Activations | None = None  # that products take in 8 bits too, where the chip can; None: as `dtype`
    chat_template: Path | None = None  # instead of the checkpoint's own
    reasoning: ReasoningForm = "auto"  # how answers set it off; auto: as the chat template's own marks say
    tool_calls: CallForm = "auto"  # how the model writes them; auto: likewise
    reasoning_switch: ReasoningSwitchConfig | None = None  # None: what the chat template is seen to read
    architecture: Path | None = None  # config.json's fields as TOML, for a plan without weights; see configs/models


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    max_model_len: int | None = None  # tokens; None: what the checkpoint was made for
    max_num_seqs: int = 32  # streams that run at once
    max_num_batched_tokens: int = 512  # the token budget of a step
    max_waiting: int = 1024  # queued streams before new ones are refused
    page_size: int = 32  # tokens
    num_pages: int | None = None  # None: as many as cache_bytes holds
    cache_bytes: int | None = None  # of each device; None: 1 GiB on a CPU, elsewhere what the largest step leaves
    cache_dtype: CacheDtype | None = None  # of pages; None: as the model's dtype, and float32 on a CPU
    prefix_caching: bool = True
    token_buckets: tuple[int, ...] = ()  # step sizes compiled; empty: derived from the budget
    kernels: Kernels = "auto"  # the bodies of attention and of experts; auto: those of the platform
    expert_exchange: ExpertExchange = "auto"  # how devices join their routed experts; auto: with the fewest bytes sent
    sequence_parallel_tokens: int | None = None  # of steps whose hidden states are split; 0: none; None: 1024 on a GPU
    cpu_threads: int | None = None  # XLA's, where the device is a CPU; None: one fewer than there are cores
    compilation_cache: Path | None = None  # None: ~/.cache/weft/compilation
    target_inter_token_ms: float | None = None  # prefill is cut so that steps with running streams stay under it
    decode_rounds: int | None = None  # tokens drawn per dispatch while nobody waits; None: 4 on a CPU, 1 elsewhere
    aging_seconds: float = 30.0  # a class that stands still for so long gets one stream through
    crash_reports: Path | None = None  # a folder; None: ~/.cache/weft/crashes
    step_timeout_seconds: float = 120.0  # a step that takes longer hangs, and its engine process is restarted


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshConfig:
    """Over how many devices one model is split, axis by axis (see sharding/mesh.py)."""

    data: int = 1
    pipeline: int = 1
    expert: int = 1
    tensor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What `weft plan` alone reads."""

    topology: str | None = None  # that it compiles for, as v5p:2x2x2 or h100:8

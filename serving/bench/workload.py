"""What a benchmark sends, and when."""

import random
from dataclasses import dataclass

_WORDS = [
    "river",
    "stone",
    "lantern",
    "orchard",
    "copper",
    "window",
    "harbor",
    "winter",
    "meadow",
    "signal",
    "carpet",
    "engine",
    "mirror",
    "planet",
    "velvet",
    "thunder",
    "garden",
    "needle",
    "bridge",
    "marble",
    "candle",
    "forest",
    "ribbon",
    "silver",
    "anchor",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Lengths in tokens. A range r spreads a length evenly over (1 - r) .. (1 + r) times itself."""

    num_prompts: int
    input_len: int  # beside the shared prefix
    output_len: int
    input_range: float = 0.0
    output_range: float = 0.0
    shared_prefix_len: int = 0
    rate: float | None = None  # arrivals per second, Poisson; None: as `concurrency` lets them
    concurrency: int | None = None  # streams open at once; None: no bound
    first_token_id: int = 100
    last_token_id: int = 999
    text_prompts: bool = False  # words instead of token ids, about one token each


@dataclass(frozen=True, slots=True)
class Item:
    at: float  # seconds after the start
    token_ids: tuple[int, ...]
    text: str
    output_len: int


def items(workload: Workload, shape: random.Random, content: random.Random) -> list[Item]:
    """The requests in order. `shape` draws lengths and arrivals, `content` the prompts: a run is repeated with the same
    shape and fresh content, since a prompt that the server has seen is served from its prefix cache."""
    prefix = _tokens(workload, content, workload.shared_prefix_len)
    prefix_words = _words(content, workload.shared_prefix_len)
    at = 0.0
    made: list[Item] = []
    for _ in range(workload.num_prompts):
        if workload.rate is not None:
            at += shape.expovariate(workload.rate)
        length = _length(workload.input_len, workload.input_range, shape)
        text = workload.text_prompts
        made.append(
            Item(
                at=at,
                token_ids=() if text else prefix + _tokens(workload, content, length),
                text=" ".join(prefix_words + _words(content, length)) if text else "",
                output_len=_length(workload.output_len, workload.output_range, shape),
            )
        )
    return made


def _length(mean: int, spread: float, rng: random.Random) -> int:
    return max(1, rng.randint(round(mean * (1 - spread)), round(mean * (1 + spread))))


def _tokens(workload: Workload, rng: random.Random, count: int) -> tuple[int, ...]:
    low, high = workload.first_token_id, workload.last_token_id
    return tuple(rng.randint(low, high) for _ in range(count))


def _words(rng: random.Random, count: int) -> list[str]:
    return [rng.choice(_WORDS) for _ in range(count)]

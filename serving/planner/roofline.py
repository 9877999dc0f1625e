"""How fast a step can be at best: the time that its bytes, its operations and its messages take on a chip.

Williams et al., "Roofline" (CACM 2009): memory and arithmetic overlap, so the slower one counts. Collectives are added,
since a dense layer cannot go on before its sum is there. Launches and the host are left out: a bound, not a promise.
"""

from dataclasses import dataclass
from typing import Literal

from sharding.chips import Chip

Bound = Literal["memory", "arithmetic", "links"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one device holds and does."""

    weight_bytes: float  # read at every step: all but the routed experts and an input embedding of its own
    expert_bytes: float = 0.0  # of the routed experts, all of them
    experts: int = 1  # of a layer, over all devices
    experts_per_token: int = 0
    page_bytes: float  # keys and values of one position, all layers
    flops: float  # of one token, without attention
    attention_flops: float  # of one token and one position that it sees
    link_bytes: float  # that one token makes it send
    stages: int = 1  # of a pipeline, which as many lanes of sequences pass one after another

    def expert_share(self, tokens: int) -> float:
        """The share of the experts that so many tokens are expected to touch, if a router is even-handed."""
        return 1 - (1 - self.experts_per_token / self.experts) ** tokens


@dataclass(frozen=True, slots=True)
class Step:
    """The least time of a step, what it is made of, and what bounds it."""

    tokens: int
    memory_seconds: float
    arithmetic_seconds: float
    link_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.memory_seconds, self.arithmetic_seconds) + self.link_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def bound(self) -> Bound:
        if self.link_seconds > max(self.memory_seconds, self.arithmetic_seconds):
            return "links"
        return "memory" if self.memory_seconds >= self.arithmetic_seconds else "arithmetic"


def decode(footprint: Footprint, chip: Chip, sequences: int, context: int) -> Step:
    """One token for each of `sequences` that see `context` positions; all figures are of one device.

    In a pipeline each device reads its weights once for each lane, of which all have gone through when a step is done.
    """
    lanes = min(footprint.stages, sequences)
    return _step(footprint, chip, sequences, read=sequences * context, pairs=sequences * context, lanes=lanes)


def prefill(footprint: Footprint, chip: Chip, tokens: int) -> Step:
    """One prompt of `tokens` in one go: each token sees those before it."""
    return _step(footprint, chip, tokens, read=tokens, pairs=tokens * (tokens + 1) // 2)


def _step(footprint: Footprint, chip: Chip, tokens: int, read: int, pairs: int, lanes: int = 1) -> Step:
    share = footprint.expert_share(-(-tokens // lanes))
    weights = lanes * (footprint.weight_bytes + footprint.expert_bytes * share)
    return Step(
        tokens=tokens,
        memory_seconds=(weights + read * footprint.page_bytes) / chip.bandwidth,
        arithmetic_seconds=(tokens * footprint.flops + pairs * footprint.attention_flops) / chip.bfloat16,
        link_seconds=tokens * footprint.link_bytes / chip.link,
    )

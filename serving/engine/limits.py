"""What an executor is built for. Fixed before anything is compiled; the scheduler plans within it."""

import dataclasses
from dataclasses import dataclass

from serving.config import EngineConfig
from serving.engine.batch import BatchLayout
from serving.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLayers:
    """Of the model, whose entering hidden states are kept with the pages, for a head that guesses from them."""

    layers: tuple[int, ...]  # ascending
    width: int  # of the states of all of them, of one position
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLimits:
    """Of one data shard, where the mesh has several: each has its own rows, pages and token budget."""

    max_num_seqs: int
    max_model_len: int  # tokens
    page_size: int  # tokens
    num_pages: int
    token_buckets: tuple[int, ...]  # ascending; the last one is the token budget
    shards: int = 1
    sequence_parallel_tokens: int = 0  # of a shard's step, from which hidden states are split; 0: never
    decode_rounds: int = 1  # tokens that the device may draw of each sequence by itself
    guesses: int = 0  # at the next tokens of a sequence, that one step may verify; 0: none
    watched: WatchedLayers | None = None  # None: no hidden states are kept

    @property
    def table_width(self) -> int:
        return -(-self.max_model_len // self.page_size)

    @property
    def guessed_buckets(self) -> tuple[int, ...]:
        """The buckets of steps with guesses: those that hold a guess, up to the one for a guess of every sequence. With
        more to compute, decoding has load enough."""
        if not self.guesses:
            return ()
        wanted = min(max(2 * self.max_num_seqs, 1 + self.guesses), self.token_buckets[-1])
        largest = self.layout_for(wanted).tokens
        return tuple(bucket for bucket in self.token_buckets if 1 < bucket <= largest)

    def layout_for(self, num_tokens: int) -> BatchLayout:
        for bucket in self.token_buckets:
            if num_tokens <= bucket:
                return BatchLayout(bucket, min(bucket, self.max_num_seqs), self.table_width, self.shards)
        raise ValueError(f"a step of {num_tokens} tokens is over the largest bucket, {self.token_buckets[-1]}")


def of_a_lane(engine: EngineConfig, lanes: int) -> EngineConfig:
    """What one of so many lanes of a pipeline has: a share of the rows, and any step whole."""
    return dataclasses.replace(engine, max_num_seqs=-(-engine.max_num_seqs // lanes))


def of_a_shard(engine: EngineConfig, shards: int) -> EngineConfig:
    """What one of so many data shards has of a deployment's limits. Raises ConfigError where they cannot share them."""
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        size = getattr(engine, name)
        if size % shards:
            below = size // shards * shards
            near = f"{below} or {below + shards}" if below else f"{shards}"
            raise ConfigError(
                f"engine.{name} is {size}, which {shards} data shards (mesh.data) cannot share evenly: "
                f"it can be {near}",
                param=name,
            )
    return dataclasses.replace(
        engine,
        max_num_seqs=engine.max_num_seqs // shards,
        max_num_batched_tokens=engine.max_num_batched_tokens // shards,
        token_buckets=tuple(sorted({-(-size // shards) for size in engine.token_buckets})),
        num_pages=None if engine.num_pages is None else engine.num_pages // shards,
    )

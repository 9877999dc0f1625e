"""StepPlan -> one packed int32 vector, so that a step costs one upload.

The vector has a fixed layout for each token bucket (see `BatchLayout`); what is not an integer travels as its bits.
What does not change from step to step (a row's sampling parameters, the pages it had before) is kept here in numpy
arrays by row and gathered, so that packing costs a few operations a step, not a few per number.

numpy only: `steps.unpack` is the other half.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from serving.engine.plan import Admission, Range, StepPlan
from serving.engine.request import SamplingParams

# Flags of a sequence in a step.
SAMPLES = 1
STATEFUL = 2  # its row was set up: it has penalties, a bias, masks or bad words
BANS_STOPS = 4  # min_tokens is not reached
FEEDS_BACK = 8  # its token is the row's last one, still on the device
SCORED = 16  # the log-probabilities of what it draws are wanted

# The rows of the [fields, S] block that describes each sequence.
# last: index in the flat batch of the sequence's last token. guesses: how many of its last tokens are guesses.
# stop_bans: at how many of the draws, from the first one, min_tokens is not reached. adapter: its slot from 1; 0: none.
NUMBERS = ("row", "flags", "kv_len", "last", "guesses", "stop_bans", "adapter")
FLOATS = ("temperature", "top_p", "min_p", "presence", "frequency", "repetition")
INTEGERS = ("top_k", "seed_hi", "seed_lo")
SEQUENCE_FIELDS = (*NUMBERS, *FLOATS, *INTEGERS)
_FLOAT_ROWS = slice(len(NUMBERS), len(NUMBERS) + len(FLOATS))
_INTEGER_ROWS = slice(len(NUMBERS) + len(FLOATS), None)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where each array lies in the vector, for a bucket of T tokens, S sequences and page tables P wide.

    On a mesh with a data axis each of its shards has so many tokens and sequences, and a part of the vector that is
    laid out like this; page numbers, `last`, `cu_q_lens` and `sequence_ids` count within the shard.
    """

    tokens: int
    sequences: int
    table_width: int
    shards: int = 1

    @property
    def all_tokens(self) -> int:
        return self.shards * self.tokens

    @property
    def all_sequences(self) -> int:
        return self.shards * self.sequences

    def shapes(self) -> dict[str, tuple[int, ...]]:
        t, s, p = self.tokens, self.sequences, self.table_width
        return {
            "counts": (2,),  # num_decode, num_seqs
            "token_ids": (t,),
            "positions": (t,),
            "sequence_ids": (t,),
            "cu_q_lens": (s + 1,),
            "sequences": (len(SEQUENCE_FIELDS), s),
            "page_table": (s, p),
        }

    @property
    def shard_size(self) -> int:
        return max(end for _, end, _ in slices_of(self).values())

    @property
    def size(self) -> int:
        return self.shards * self.shard_size


@functools.cache
def slices_of(layout: BatchLayout) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    """name -> (begin, end, shape). A handful of layouts exist, and each is asked for at every step."""
    found, begin = {}, 0
    for name, shape in layout.shapes().items():
        end = begin + math.prod(shape)
        found[name] = (begin, end, shape)
        begin = end
    return found


@dataclass(frozen=True, slots=True)
class PackedBatch:
    vector: np.ndarray  # [layout.size] int32
    layout: BatchLayout
    slots: np.ndarray  # of each range of the plan, among the sequences of all shards
    begins: np.ndarray  # of each range, its first token among those of all shards
    plain: bool  # every sequence that samples is plain greedy
    logprobs: bool  # some sequence wants its token scored
    prompt_logprobs: bool
    adapted: bool  # some sequence has an adapter


class BatchPacker:
    """Packs the plans of one executor, in order.

    `layout_for(num_tokens)` gives the layout of the bucket for that many in each shard. Raises ValueError where a plan
    fits no bucket. Rows belong to shards in equal runs: the first num_rows / shards to the first one.
    """

    def __init__(
        self, num_rows: int, table_width: int, layout_for: Callable[[int], BatchLayout], shards: int = 1
    ) -> None:
        self._layout_for = layout_for
        self._shards = shards
        self._rows_of_a_shard = num_rows // shards
        self._table = np.zeros((num_rows, table_width), np.int32)
        self._filled = [0] * num_rows
        self._floats = np.zeros((len(FLOATS), num_rows), np.float32)
        self._integers = np.zeros((len(INTEGERS), num_rows), np.uint32)
        self._sampling: list[SamplingParams] = [SamplingParams()] * num_rows
        self._stateful = [False] * num_rows
        self._adapters = np.zeros(num_rows, np.int32)

    def pack(self, plan: StepPlan, layout_for: Callable[[int], BatchLayout] | None = None) -> PackedBatch:
        """`layout_for` None: the executor's own."""
        for admission in plan.admissions:
            self._admit(admission)
        members = self._members(plan.ranges)
        ranges = [[plan.ranges[i] for i in indices] for indices in members]
        layout = (layout_for or self._layout_for)(max(sum(r.length for r in of_shard) for of_shard in ranges))
        vector = np.zeros(layout.size, np.int32)
        slots, begins = np.zeros((2, len(plan.ranges)), np.int32)
        flags: list[int] = []
        for shard, (indices, of_shard) in enumerate(zip(members, ranges, strict=True)):
            part = vector[shard * layout.shard_size : (shard + 1) * layout.shard_size]
            view = {name: part[begin:end].reshape(shape) for name, (begin, end, shape) in slices_of(layout).items()}
            view["sequence_ids"][:] = layout.sequences
            if indices:
                flags += self._fill_sequences(of_shard, view)
                self._fill_tokens(of_shard, view)
                slots[indices] = np.arange(len(indices)) + shard * layout.sequences
                begins[indices] = view["cu_q_lens"][: len(indices)] + shard * layout.tokens
        sampled = [self._sampling[r.row] for r in plan.ranges if r.samples]
        return PackedBatch(
            vector=vector,
            layout=layout,
            slots=slots,
            begins=begins,
            plain=not any(flag & SAMPLES and (flag & STATEFUL) for flag in flags)
            and all(sampling.temperature == 0.0 for sampling in sampled),
            logprobs=any(sampling.logprobs is not None for sampling in sampled),
            prompt_logprobs=any(r.prompt_logprobs_from is not None for r in plan.ranges),
            adapted=bool(self._adapters[[r.row for r in plan.ranges]].any()),
        )

    def _members(self, ranges: Sequence[Range]) -> list[list[int]]:
        """The indices of each shard's ranges."""
        if self._shards == 1:
            return [list(range(len(ranges)))]
        members: list[list[int]] = [[] for _ in range(self._shards)]
        for i, r in enumerate(ranges):
            members[r.row // self._rows_of_a_shard].append(i)
        return members

    def _admit(self, admission: Admission) -> None:
        row, sampling = admission.row, admission.sampling
        self._filled[row] = 0
        self._sampling[row] = sampling
        self._stateful[row] = sampling.needs_row
        self._adapters[row] = admission.adapter
        self._floats[:, row] = (
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
        )
        self._integers[:, row] = (sampling.top_k, sampling.seed >> 32, sampling.seed & 0xFFFFFFFF)

    def _fill_sequences(self, ranges: Sequence[Range], view: dict[str, np.ndarray]) -> list[int]:
        """One entry a range. Returns the flags."""
        flags = []
        for r in ranges:
            row = r.row
            known = self._filled[row]
            if known < len(r.pages):
                self._table[row, known : len(r.pages)] = r.pages[known:]
                self._filled[row] = len(r.pages)
            flag = SAMPLES if r.samples else 0
            if self._stateful[row]:
                flag |= STATEFUL
                if r.num_output < self._sampling[row].min_tokens:
                    flag |= BANS_STOPS
            if r.samples and self._sampling[row].logprobs is not None:
                flag |= SCORED
            flags.append(flag if r.token_ids else flag | FEEDS_BACK)
        count = len(ranges)
        rows = np.array([r.row for r in ranges], np.int32)
        lengths = np.array([r.length for r in ranges], np.int32)
        ends = np.cumsum(lengths, dtype=np.int32)
        kv_lens = lengths + np.array([r.start for r in ranges], np.int32)
        view["counts"][:] = (_leading_ones(lengths), count)
        view["cu_q_lens"][1 : count + 1] = ends
        view["cu_q_lens"][count + 1 :] = ends[-1]
        view["page_table"][:count] = self._table[rows]
        block = view["sequences"][:, :count]
        guesses = np.array([r.guesses for r in ranges], np.int32)
        numbers = (rows, flags, kv_lens, ends - 1, guesses, self._stop_bans(ranges, flags), self._adapters[rows])
        block[: len(NUMBERS)] = numbers
        block[_FLOAT_ROWS] = self._floats[:, rows].view(np.int32)
        block[_INTEGER_ROWS] = self._integers[:, rows].view(np.int32)
        return flags

    def _stop_bans(self, ranges: Sequence[Range], flags: list[int]) -> list[int]:
        return [
            self._sampling[r.row].min_tokens - r.num_output if flag & BANS_STOPS else 0
            for r, flag in zip(ranges, flags, strict=True)
        ]

    def _fill_tokens(self, ranges: Sequence[Range], view: dict[str, np.ndarray]) -> None:
        """One entry a token; padding belongs to sequence S, which does not exist."""
        count = len(ranges)
        token_ids: list[int] = []
        for r in ranges:
            token_ids.extend(r.token_ids)
            token_ids.extend((0,) * (r.length - len(r.token_ids)))  # those that the device has
        used = len(token_ids)
        lengths = np.diff(view["cu_q_lens"][: count + 1])
        first_position = view["sequences"][NUMBERS.index("kv_len"), :count] - view["cu_q_lens"][1 : count + 1]
        view["token_ids"][:used] = token_ids
        view["positions"][:used] = np.repeat(first_position, lengths) + np.arange(used, dtype=np.int32)
        view["sequence_ids"][:used] = np.repeat(np.arange(count, dtype=np.int32), lengths)


def _leading_ones(lengths: np.ndarray) -> int:
    """How many sequences at the front have one token: those attend together."""
    longer = np.flatnonzero(lengths != 1)
    return int(longer[0]) if longer.size else len(lengths)

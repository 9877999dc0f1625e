"""Sequences over a shuffled page pool, and the ragged batch that takes some of them a few tokens further."""

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from pallas_kernels.ragged import RaggedBatch


@dataclass
class PagedSequence:
    """`pages` are its own, in order; `length` tokens of it are in the pool."""

    pages: list[int]
    length: int = 0


@dataclass
class PagedSequences:
    """Hands out pages of a pool in random order."""

    random: np.random.Generator
    num_pages: int
    page_size: int
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._free = self.random.permutation(self.num_pages).tolist()

    def begin(self, capacity: int) -> PagedSequence:
        count = -(-capacity // self.page_size)
        return PagedSequence([self._free.pop() for _ in range(count)])

    def slot(self, sequence: PagedSequence, position: int) -> tuple[int, int]:
        """The page and the row in it that hold a position."""
        return sequence.pages[position // self.page_size], position % self.page_size

    def batch(
        self, steps: list[tuple[PagedSequence, int]], *, num_decode: int, tokens: int, rows: int, width: int
    ) -> RaggedBatch:
        """Each sequence with its number of new tokens, those that decode first, in a bucket of `tokens` and `rows`.

        What the contract leaves open is filled with other sequences' pages: a body that looks there is found out.
        """
        table = self.random.integers(0, self.num_pages, (rows, width), dtype=np.int32)
        kv_lens, cu_q_lens = np.zeros(rows, np.int32), np.zeros(rows + 1, np.int32)
        positions, owners = np.zeros(tokens, np.int32), np.full(tokens, rows, np.int32)
        begin = 0
        for row, (sequence, count) in enumerate(steps):
            table[row, : len(sequence.pages)] = sequence.pages
            kv_lens[row] = sequence.length + count
            positions[begin : begin + count] = np.arange(sequence.length, sequence.length + count)
            owners[begin : begin + count] = row
            begin += count
            cu_q_lens[row + 1] = begin
        cu_q_lens[len(steps) + 1 :] = begin
        return RaggedBatch(
            page_table=jnp.asarray(table),
            kv_lens=jnp.asarray(kv_lens),
            cu_q_lens=jnp.asarray(cu_q_lens),
            num_decode=jnp.asarray(num_decode, jnp.int32),
            num_seqs=jnp.asarray(len(steps), jnp.int32),
            positions=jnp.asarray(positions),
            sequence_ids=jnp.asarray(owners),
        )

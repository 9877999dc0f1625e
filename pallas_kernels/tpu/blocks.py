"""Sizes of the blocks that the kernels work in, and what they are where nobody has measured."""

from dataclasses import dataclass

from pallas_kernels.tpu.pool_layout import LANES, RowLayout, round_up

MIB = 1 << 20
VMEM_LIMIT = 32 * MIB  # of 64 MiB (v5p) or 128 MiB (v5e, v6e) that a core has; v6e's default, twice the others'
DECODE_BLOCK_BYTES = MIB  # a block's copy should take longer than the latency of one softmax step
BUFFERED_BYTES = 8 * MIB
PREFILL_KEYS = 512
PREFILL_STATE_BYTES = 12 * MIB  # queries, outputs and softmax state of a tile
MOST_ROWS = 1024  # query rows of one product: more only spill
WRITE_BYTES = 8 * MIB


@dataclass(frozen=True)
class Blocks:
    """What a tuner may set. `cores` is 2 where two cores act as one device (v4, v5p), else 1."""

    decode_sequences: int  # sequences a grid step of decode
    decode_pages: int  # pages a block of decode
    decode_buffers: int
    prefill_queries: int  # tokens a tile of prefill, a multiple of 16
    prefill_pages: int
    prefill_buffers: int
    write_buffers: int  # pages under way while prefill chunks are written
    cores: int = 1
    vmem_limit: int = VMEM_LIMIT

    def __post_init__(self) -> None:
        for name, least in (("decode_buffers", 2), ("prefill_buffers", 2), ("write_buffers", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: copies need at least {least} to overlap with work")
        for name, rows in (("decode_sequences", 8), ("prefill_queries", 16)):
            if getattr(self, name) % rows:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be a multiple of {rows}")


def longest_page(width: int, itemsize: int) -> int:
    """The most positions that a page may have for its rows of `width` numbers to be written within VMEM_LIMIT.

    By what compiles, a number of two pages under way takes 4 bytes as it comes, and its own size as it was and as it
    goes; the one at work is turned round in 8. Pages of 8 bits take as much as those of 16.
    """
    return VMEM_LIMIT // (width * (2 * (4 + 2 * max(itemsize, 2)) + 8))


def default_blocks(
    layout: RowLayout,
    query_heads: int,
    page_size: int,
    itemsize: int,
    table_width: int,
    tokens: int,
    sequences: int,
) -> Blocks:
    """Blocks from the shapes alone: of pages of `itemsize` bytes a number, tables of `table_width` pages."""
    row_bytes = layout.width * itemsize
    decode_keys = min(max(DECODE_BLOCK_BYTES // row_bytes, LANES), 2048)
    decode_pages = _pages(decode_keys, page_size, table_width)
    decode_bytes = decode_pages * page_size * row_bytes
    group = query_heads // layout.kv_heads
    prefill_keys = min(PREFILL_KEYS, max(BUFFERED_BYTES // 2 // row_bytes, LANES))
    prefill_pages = _pages(prefill_keys, page_size, table_width)
    prefill_bytes = prefill_pages * page_size * row_bytes
    # A row of queries: in and out twice (they are double-buffered), the float32 output, its maximum and its sum.
    per_token = query_heads * (4 * (layout.key_width + layout.value_width) + 4 * layout.value_width + 8 * LANES)
    queries = min(PREFILL_STATE_BYTES // per_token, MOST_ROWS // group, 256, tokens)
    staged = page_size * layout.width * (4 + 2 * itemsize)
    return Blocks(
        decode_sequences=min(32, round_up(min(sequences, tokens), 8)),
        decode_pages=decode_pages,
        decode_buffers=min(max(BUFFERED_BYTES // decode_bytes, 2), 4),
        prefill_queries=max(1 << (queries.bit_length() - 1), 16),  # a power of two, as buckets are
        prefill_pages=prefill_pages,
        prefill_buffers=min(max(BUFFERED_BYTES // prefill_bytes, 2), 3),
        write_buffers=min(max(WRITE_BYTES // staged, 2), 8),
    )


def _pages(keys: int, page_size: int, table_width: int) -> int:
    return max(1, min(keys // page_size, table_width))

"""Tables of measured blocks: what is read, what is refused, and that kernels take what is found."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import dispatch
from pallas_kernels.gpu import grouped_matmul as gpu_grouped_matmul
from pallas_kernels.gpu import paged_decode, paged_prefill
from pallas_kernels.gpu.decode_cut import DecodeBlocks
from pallas_kernels.gpu.grouped_matmul import GroupedSizes
from pallas_kernels.gpu.prefill_schedule import BlockSizes
from pallas_kernels.ragged import AttentionOptions
from pallas_kernels.tpu.blocks import Blocks
from pallas_kernels.tpu.grouped_matmul import GroupedTiles
from pallas_kernels.tuned_bodies import TunedTpuGroupedMatmul, _within
from pallas_kernels.tuning import (
    GPU_DECODE,
    GPU_GROUPED,
    GPU_PREFILL,
    KERNELS,
    TABLES,
    TPU_ATTENTION,
    TPU_GROUPED,
    AttentionShape,
    ExpertsShape,
    TuningError,
    TuningTable,
    bucket,
    load_table,
    read_table,
)
from tests.pallas_kernels.grouped_rows import assert_agrees, draw
from tests.pallas_kernels.ragged_sequences import PagedSequences

LLAMA = AttentionShape(
    group=4, kv_heads=8, head_dim=128, page_size=64, page_dtype="bfloat16", dtype="bfloat16", tokens=64
)
MIXTRAL = ExpertsShape(experts=8, products=2, d=4096, f=1792, dtype="bfloat16", rows=64)
ROW = """
[[gpu_paged_decode]]
shape = {group = 4, kv_heads = 8, head_dim=128, page_size = 64, tokens = 64, page_dtype = "bfloat16", dtype="bfloat16"}
blocks = { keys = 64, stages = 4, ctas = 264 }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "h200.toml"
    path.write_text(text, encoding="utf-8")
    return path


def full_table() -> TuningTable:
    table = TuningTable("h200")
    table = table.with_row(GPU_DECODE, LLAMA, DecodeBlocks(64, 4, 264))
    table = table.with_row(GPU_PREFILL, LLAMA, BlockSizes(heads=1, keys=128, units=5))
    table = table.with_row(GPU_GROUPED, MIXTRAL, GroupedSizes(16, 2, 128, 4))
    latent = dataclasses.replace(LLAMA, value_dim=512)
    table = table.with_row(TPU_ATTENTION, latent, Blocks(8, 4, 2, 128, 4, 2, 2))
    return table.with_row(TPU_GROUPED, MIXTRAL, GroupedTiles(16, 2048, 512))


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = full_table()
    assert read_table(written(tmp_path, table.text())) == table
    assert {name for name, _ in table.rows} == set(KERNELS)


def test_a_kernel_finds_the_blocks_of_its_shape_and_of_no_other(tmp_path: Path) -> None:
    written(tmp_path, ROW)
    table = load_table("h200", tmp_path)
    assert table.find(GPU_DECODE, LLAMA) == DecodeBlocks(keys=64, stages=4, ctas=264)
    assert table.find(GPU_DECODE, dataclasses.replace(LLAMA, page_size=16)) is None
    assert table.find(GPU_PREFILL, LLAMA) is None


def test_a_chip_that_nobody_measured_has_an_empty_table(tmp_path: Path) -> None:
    table = load_table("v6e", tmp_path)
    assert table == TuningTable("v6e")
    assert dispatch.tuned_attention_body("tpu", table) is dispatch.attention_body("tpu")
    assert dispatch.tuned_grouped_matmul_body("gpu", table) is dispatch.grouped_matmul_body("gpu")


def test_every_table_that_comes_with_the_kernels_can_be_read() -> None:
    for path in TABLES.glob("*.toml"):
        assert read_table(path).rows


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("gpu_paged_decode", "gpu_decode", "unknown kernel gpu_decode"),
        ("stages", "stage", r"gpu_paged_decode\[0\]\.blocks\.stage"),
        ("group = 4, ", "", r"missing key gpu_paged_decode\[0\]\.shape\.group"),
        ("keys = 64", "keys = 64.0", r"blocks\.keys must be int"),
        ("keys = 64", "keys = true", r"blocks\.keys must be int"),
        ("ctas = 264", "ctas = -1", r"blocks\.ctas must not be negative"),
        ("tokens = 64", "tokens = 48", r"shape\.tokens must be a power of two"),
        ('page_dtype = "bfloat16"', 'page_dtype = "bf16"', r"shape\.page_dtype must be the name of a type"),
        ("blocks = {", "block = {", r"unknown key gpu_paged_decode\[0\]\.block"),
        ("[[gpu_paged_decode]]", "[gpu_paged_decode]", "must be a list of tables"),
        ("[[gpu_paged_decode]]", "[[gpu_paged_decode]", "h200.toml"),
    ],
)
def test_what_cannot_be_is_refused_by_file_and_key(tmp_path: Path, before: str, after: str, named: str) -> None:
    path = written(tmp_path, ROW.replace(before, after, 1))
    with pytest.raises(TuningError, match=named) as caught:
        read_table(path)
    assert str(path) in str(caught.value)


def test_two_rows_of_one_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="has a row already"):
        read_table(written(tmp_path, ROW + ROW))


def test_what_the_blocks_themselves_refuse_is_refused_with_the_file(tmp_path: Path) -> None:
    blocks = full_table().text().replace("decode_buffers = 2", "decode_buffers = 1")
    with pytest.raises(TuningError, match=r"tpu_paged_attention\[0\]\.blocks: decode_buffers is 1"):
        read_table(written(tmp_path, blocks))


def test_buckets_are_powers_of_two() -> None:
    assert [bucket(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


def test_the_gpu_attention_takes_the_measured_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, Any] = {}

    def record(name: str) -> Any:
        def attend(q: Any, *operands: Any, blocks: Any) -> Any:
            taken[name] = blocks
            return jnp.zeros(q.shape, q.dtype)

        return attend

    monkeypatch.setattr(paged_decode, "decode", record("decode"))
    monkeypatch.setattr(paged_prefill, "prefill", record("prefill"))
    sequences = PagedSequences(np.random.default_rng(0), num_pages=4, page_size=64)
    batch = sequences.batch([(sequences.begin(64), 50)], num_decode=0, tokens=50, rows=2, width=1)
    q, k = jnp.zeros((50, 32, 128), jnp.bfloat16), jnp.zeros((50, 8, 128), jnp.bfloat16)
    pool = jnp.zeros((4, 1, 64, 16, 128), jnp.bfloat16)
    body = dispatch.tuned_attention_body("gpu", full_table())
    body.attend(q, k, k, pool, 0, batch, AttentionOptions(1.0))
    assert taken == {"decode": DecodeBlocks(64, 4, 264), "prefill": BlockSizes(heads=1, keys=128, units=5)}
    body.attend(q[:1], k[:1], k[:1], pool, 0, batch, AttentionOptions(1.0))
    assert taken["decode"] is None


def test_the_gpu_grouped_matmul_takes_the_measured_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(gpu_grouped_matmul, "grouped_matmul", lambda *_, sizes, **__: taken.append(sizes))
    weights = jnp.zeros((8, 2, 4096, 1792), jnp.bfloat16)
    matmul = dispatch.tuned_grouped_matmul_body("gpu", full_table()).matmul
    for rows in (64, 65):
        matmul(jnp.zeros((rows, 4096), jnp.bfloat16), weights, jnp.zeros(8, jnp.int32))
    assert taken == [GroupedSizes(16, 2, 128, 4), None]


def test_the_tpu_grouped_matmul_computes_with_the_measured_tiles() -> None:
    shape = ExpertsShape(experts=2, products=1, d=256, f=128, dtype="float32", row_dtype="float32", rows=32)
    table = TuningTable("v5e").with_row(TPU_GROUPED, shape, GroupedTiles(rows=16, depth=128, columns=128))
    x, weights = draw((32, 256), jnp.float32, 0), draw((2, 256, 128), jnp.float32, 1)
    assert_agrees(TunedTpuGroupedMatmul(table, interpret=True), x, weights, [5, 27], 1e-5)


def test_tpu_blocks_shrink_to_the_table() -> None:
    shrunk = _within(Blocks(8, 16, 2, 128, 8, 2, 2), 4)
    assert (shrunk.decode_pages, shrunk.prefill_pages, shrunk.prefill_queries) == (4, 4, 128)

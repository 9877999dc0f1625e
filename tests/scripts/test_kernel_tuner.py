"""The tuner without a GPU: what it lists, what it refuses, how it chooses and what it writes."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gpu.decode_cut import DecodeBlocks
from pallas_kernels.tuning import GPU_DECODE, TuningTable, load_table
from scripts import kernel_tuner
from sharding.chips import CHIPS


def test_it_lists_candidates_and_bytes_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_tuner.main(["--list", "--kernel", "gpu_paged_decode", "--model", "8B on 1"]) == 0
    shown = capsys.readouterr().out
    assert f"Llama 3.1 8B on 1: {64 * 4096 * 2 * 8 * 128 * 2:,} bytes" in shown
    assert "DecodeBlocks(keys=64, stages=2, ctas=132)" in shown


def test_without_a_gpu_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_tuner.main([], tmp_path) == 2
    assert "H100 or H200" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_fastest_of_those_that_are_right_is_taken() -> None:
    target = next(iter(kernel_tuner.targets()))
    wrong, slow, fast, broken = target.candidates[:4]

    def numbers(blocks: object) -> jnp.ndarray:
        if blocks == broken:
            raise ValueError("too much shared memory")
        return jnp.full(3, jnp.nan if blocks == wrong else 1.0)

    times = {wrong: 1e-6, slow: 2e-3, fast: 1e-3}
    prepared = kernel_tuner.Trial(np.ones(3, np.float32), numbers, lambda blocks: times.get(blocks, 1.0))
    assert kernel_tuner.tune(target, CHIPS["h200"], prepared) == fast


def test_a_new_row_leaves_the_others(tmp_path: Path) -> None:
    first, second = [t for t in kernel_tuner.targets() if t.kernel is GPU_DECODE][:2]
    for target, stages in ((first, 2), (second, 3), (first, 4)):
        table = load_table("h200", tmp_path)
        blocks = DecodeBlocks(64, stages, 264)
        kernel_tuner.write_table(table.with_row(GPU_DECODE, target.shape, blocks), tmp_path)
    table: TuningTable = load_table("h200", tmp_path)
    assert table.find(GPU_DECODE, first.shape) == DecodeBlocks(64, 4, 264)
    assert table.find(GPU_DECODE, second.shape) == DecodeBlocks(64, 3, 264)
    assert [path.name for path in tmp_path.iterdir()] == ["h200.toml"]

"""Two processes with one device each hold a model together: they draw what one draws, and each loads its share."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import checkpoint
from tests.models import tiny_checkpoint
from tests.sharding.eight_devices import tiny_engine
from tests.sharding.eight_devices.tiny_engine import Stream

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "hub").mkdir()
    tiny_checkpoint.write(folder / "hub")
    checkpoint.convert(folder / "hub", folder / "converted")
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each of the two says, and then one that is alone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0", "JAX_PLATFORMS": "cpu"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sharding.two_processes.one_host", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arguments in ([address, "0", str(folder)], [address, "1", str(folder)], [])
    ]
    ends = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], "\n".join(err for _, err in ends)
    return [json.loads(next(line for line in out.splitlines() if line.startswith("{"))) for out, _ in ends]


def test_both_draw_what_one_process_draws(found: list[dict[str, Any]]) -> None:
    first, second, alone = ([Stream(*stream) for stream in one["streams"]] for one in found)
    assert first == second
    assert tiny_engine.ties(alone, first) <= 1


def test_the_least_of_what_they_give_is_agreed_on_beyond_32_bits(found: list[dict[str, Any]]) -> None:
    assert [one["least"] for one in found[:2]] == [(5 << 33) - 1] * 2


def test_a_mesh_that_leaves_a_process_out_is_refused(found: list[dict[str, Any]]) -> None:
    for one in found[:2]:
        assert "must be 2, so that each has its part" in one["smaller mesh"]


@pytest.mark.parametrize("layout", ["hub", "converted"])
def test_each_process_holds_its_share_of_a_checkpoint(layout: str, found: list[dict[str, Any]], folder: Path) -> None:
    model = checkpoint.load(folder / "hub", jnp.float32, layers="list")[0]
    total = sum(float(np.abs(np.asarray(leaf.get_value())).sum()) for _, leaf in nnx.to_flat_state(nnx.state(model)))
    for one in found[:2]:
        loaded = one["loaded"][layout]
        assert loaded["here"] < 0.7 * loaded["in all"]
        assert loaded["sum"] == pytest.approx(total, rel=1e-5)

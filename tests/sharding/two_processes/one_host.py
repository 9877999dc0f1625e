"""One of two processes with a CPU device each: `one_host ADDRESS PROCESS FOLDER`. Serves requests on a model that both
hold, loads a checkpoint onto both, and prints what came of it as JSON. `one_host` serves the requests alone."""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import checkpoint
from serving.engine.hosts import join_runtime
from sharding.host_data import least
from sharding.mesh import MeshError, make_mesh
from sharding.params import placement_of
from tests.sharding.eight_devices import tiny_engine

TENSOR_2 = {"tensor": 2}


def main(address: str, process: str, folder: str) -> None:
    join_runtime(address, 2, int(process))
    found = {
        "streams": served(TENSOR_2),
        "least": least((5 << 33) - int(process)),
        "smaller mesh": refusal({"tensor": 1}),
        "loaded": {layout: loaded(Path(folder) / layout) for layout in ("hub", "converted")},
    }
    print(json.dumps(found), flush=True)


def served(sizes: dict[str, int]) -> list[list[Any]]:
    streams = tiny_engine.serve(tiny_engine.executor("LlamaForCausalLM", sizes))
    return [[stream.tokens, stream.gaps, stream.prompt_scores] for stream in streams]


def refusal(sizes: dict[str, int]) -> str:
    try:
        make_mesh(sizes)
    except MeshError as error:
        return str(error)
    return "none"


def loaded(folder: Path) -> dict[str, Any]:
    """Bytes here and in all, and the sum of all numbers, which takes every shard of both processes."""
    placement = placement_of(make_mesh(TENSOR_2), 4, 2)
    model = checkpoint.load(folder, jnp.float32, placement=placement, layers="list")[0]
    leaves = jax.tree.leaves(nnx.state(model))
    total = jax.jit(lambda leaves: sum(jnp.abs(leaf).sum() for leaf in leaves))(leaves)
    return {
        "here": sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards),
        "in all": sum(leaf.nbytes for leaf in leaves),
        "sum": float(np.asarray(total)),
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(*sys.argv[1:])
    else:
        print(json.dumps({"streams": served({})}), flush=True)

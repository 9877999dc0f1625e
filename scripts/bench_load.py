"""Host memory while a checkpoint is loaded, on this machine: `python -m scripts.bench_load [--layers N] [--folder F]`.

A Llama of random bfloat16 weights is written to the folder in the hub's layout, in files of one layer, and converted to
weft's own. Each is then loaded onto meshes of eight CPU devices, each in a process of its own that watches its
anonymous memory (what it allocated; pages of the files are the system's cache). The weights lie there too, as a CPU's
devices have no other memory: what the peak has above them is what loading itself took.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file

from models import checkpoint, llama
from scripts.flags import flags_of
from serving.commands.argument_types import count
from sharding.mesh import make_mesh
from sharding.params import placement_of

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
MESHES = ({"tensor": 8}, {"data": 2, "tensor": 4}, {"data": 8}, {"pipeline": 2, "tensor": 4})
MEGABYTE = 1 << 20
LOOK_SECONDS = 0.002


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags_of(__doc__)
    parser.add_argument("--layers", type=count, default=16)
    parser.add_argument("--folder", type=Path, help="for the two checkpoints; by default a temporary one")
    parser.add_argument("--load", nargs=2, metavar=("CHECKPOINT", "MESH"), help=argparse.SUPPRESS)  # the child's
    args = parser.parse_args(argv)
    if args.load is not None:
        print(json.dumps(loaded(Path(args.load[0]), json.loads(args.load[1]))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        hub = write(folder / "hub", args.layers)
        if not (folder / "converted").exists():
            checkpoint.convert(hub, folder / "converted")
        table = Table("layout", "mesh", "weights, MB", "largest leaf, MB", "peak above the weights, MB")
        for layout in ("hub", "converted"):
            for mesh in MESHES:
                row = measured(folder / layout, mesh)
                named = " x ".join(f"{axis} {size}" for axis, size in mesh.items())
                table.add_row(layout, named, *(f"{row[name] / MEGABYTE:,.0f}" for name in ("weights", "leaf", "above")))
        Console(highlight=False).print(table)
    return 0


def write(folder: Path, layers: int) -> Path:
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    config = SHAPE | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    random, places = np.random.default_rng(0), {}
    tensors = {name: tensor for name, tensor in llama.tensors(llama.parse(config)).items() if tensor is not None}
    files = {name: _file_of(name) for name in tensors}
    for file in sorted(set(files.values())):
        part = {
            name: (random.standard_normal(tensor.shape, np.float32) * 0.02).astype(ml_dtypes.bfloat16)
            for name, tensor in tensors.items()
            if files[name] == file
        }
        save_file(part, folder / file)
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def _file_of(name: str) -> str:
    parts = name.split(".")
    return f"layer-{parts[2]}.safetensors" if "layers" in parts else "rest.safetensors"


def measured(folder: Path, mesh: dict[str, int]) -> dict[str, int]:
    command = [sys.executable, "-m", "scripts.bench_load", "--load", str(folder), json.dumps(mesh)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def loaded(folder: Path, sizes: dict[str, int]) -> dict[str, int]:
    """Bytes of the weights on all devices, of their largest leaf, and of the peak above the weights and what was there
    before."""
    mesh = make_mesh(sizes)
    jax.block_until_ready(jax.device_put(jnp.zeros(8), mesh.devices.flat[-1]))  # the backend, all of it
    placement = placement_of(mesh, SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"])
    before = anonymous_bytes()
    with watched() as peak:
        model, *_ = checkpoint.load(folder, jnp.bfloat16, placement=placement, layers="list")
        leaves = jax.block_until_ready(jax.tree.leaves(nnx.state(model)))
    parts = [shard.data for leaf in leaves for shard in leaf.addressable_shards]
    buffers = {part.unsafe_buffer_pointer(): part.nbytes for part in parts}  # a CPU's devices may share one
    weights = sum(buffers.values())
    return {"weights": weights, "leaf": max(leaf.nbytes for leaf in leaves), "above": peak[0] - before - weights}


@contextmanager
def watched() -> Iterator[list[int]]:
    """The most that this process had at once, in a list of one."""
    peak, ended = [anonymous_bytes()], threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            peak[0] = max(peak[0], anonymous_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        peak[0] = max(peak[0], anonymous_bytes())


def anonymous_bytes() -> int:
    """Linux's own count of what this process allocated."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


if __name__ == "__main__":
    sys.exit(main())

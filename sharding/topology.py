"""Devices that are not there: what a compiler needs to know of a machine in order to compile for it.

A topology is written CHIP:SIZE. A TPU slice has the sides of its torus (`v5p:2x2x2`), GPUs their number (`h100:8`; more
than a node holds are so many nodes). TPU slices need libtpu, GPUs need jax's CUDA plugin; neither needs the hardware.
"""

import math
import os
import re
from dataclasses import dataclass

import jax
from jax.experimental import topologies

from sharding.chips import CHIPS, Chip

_FORM = re.compile(r"(?P<chip>[a-z0-9]+):(?P<sides>\d+(x\d+)*)")

# The SM of a Hopper GPU, for XLA; the memory and its rate differ from chip to chip.
_HOPPER = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: {memory}
  shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: 9 minor: 0 }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{title}"
"""


@dataclass(frozen=True, slots=True)
class Topology:
    """So many chips of a kind; `sides` as it was written."""

    chip: Chip
    sides: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.sides)

    def __str__(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.sides))}"


def parse_topology(text: str) -> Topology:
    """Raises ValueError for a chip that is not known, or a size that it cannot have."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"a topology is written CHIP:SIZE, as in v5p:2x2x2 or h100:8, not {text!r}")
    if match["chip"] not in CHIPS:
        raise ValueError(f"there is no chip {match['chip']!r}; there are {', '.join(CHIPS)}")
    chip, sides = CHIPS[match["chip"]], tuple(int(side) for side in match["sides"].split("x"))
    if chip.kind == "gpu" and (len(sides) != 1 or sides[0] < 1 or (sides[0] > chip.node and sides[0] % chip.node)):
        raise ValueError(f"{text}: GPUs are counted, as in {chip.name}:{chip.node}, beyond {chip.node} in whole nodes")
    if chip.kind == "tpu" and (len(sides) != (3 if chip.name == "v5p" else 2) or min(sides) < 1):
        right = "three sides, as in v5p:2x2x2" if chip.name == "v5p" else f"two sides, as in {chip.name}:2x4"
        raise ValueError(f"{text}: a slice of {chip.name} has {right}")
    return Topology(chip, sides)


def devices_of(topology: Topology) -> list[jax.Device]:  # pyright: ignore[reportInvalidTypeForm] (an alias)
    """Compile-only devices. Raises RuntimeError where the compiler is not installed or knows no such slice."""
    try:
        if topology.chip.kind == "tpu":
            # Asking a metadata service which TPU this is takes minutes where there is none.
            os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
            return list(topologies.get_topology_desc(platform="tpu", topology_name=str(topology)).devices)
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # which looks for a driver
        nodes = -(-topology.count // topology.chip.node)
        config = _HOPPER.format(
            bandwidth=int(topology.chip.bandwidth), memory=topology.chip.memory, title=topology.chip.title
        )
        shape = f"1x{nodes}x{topology.count // nodes}"
        return list(topologies.get_topology_desc(platform="cuda", topology=shape, target_config=config).devices)
    except Exception as error:
        needed = "libtpu" if topology.chip.kind == "tpu" else "jax-cuda13-plugin"
        raise RuntimeError(f"cannot compile for {topology}: {error} (needs {needed})") from error

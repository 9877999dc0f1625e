"""Compile for a TPU on a machine that has none, and read from the result what it would need there.

The compiler is libtpu's own. It wants JAX_PLATFORMS=cpu in the environment, so that JAX itself takes the CPU.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from sharding.topology import devices_of, parse_topology

SMALLEST = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}  # topologies with the fewest devices


def topology_mesh(topology: str, shape: Sequence[int], axes: Sequence[str]) -> Mesh:
    """A mesh over the first prod(shape) devices of a topology such as "v5e:2x4"."""
    devices = devices_of(parse_topology(topology))
    if prod(shape) > len(devices):
        raise ValueError(f"a mesh of {list(shape)} needs {prod(shape)} devices; {topology} has {len(devices)}")
    return Mesh(np.array(devices[: prod(shape)]).reshape(shape), axes)


def one_device(topology: str) -> SingleDeviceSharding:
    """The sharding of an array that lies whole on the topology's first device."""
    return SingleDeviceSharding(devices_of(parse_topology(topology))[0])


@dataclass(frozen=True)
class TpuProgram:
    """What the compiler said of one program, per device; sizes in bytes."""

    hlo: str
    argument_size: int
    output_size: int
    alias_size: int
    temporary_size: int

    @property
    def peak_size(self) -> int:
        return self.argument_size + self.output_size - self.alias_size + self.temporary_size

    def vmem(self) -> dict[str, int]:
        """Bytes of VMEM that each Pallas kernel takes, by the kernel's name."""
        used: dict[str, int] = {}
        for line in self.hlo.splitlines():
            configs = re.search(r'"used_scoped_memory_configs":(\[[^]]*\])', line)
            if configs is None or 'custom_call_target="tpu_custom_call"' not in line:
                continue
            name = re.search(r'op_name="[^"]*?([\w.]+)/pallas_call"', line)
            size = sum(int(config["size"]) for config in json.loads(configs.group(1)))
            key = name.group(1) if name else line.split("=")[0].strip()
            used[key] = max(size, used.get(key, 0))
        return used

    def copies_of(self, shape: Sequence[int]) -> list[str]:
        """The HLO lines that copy, transpose or convert an array of that shape: none should touch the pool."""
        text = re.escape("[" + ",".join(map(str, shape)) + "]")
        moving = re.compile(rf"= \(?\w+{text}\S* (copy|copy-start|transpose|convert|fusion|bitcast-convert)\(")
        return [line.strip()[:200] for line in self.hlo.splitlines() if moving.search(line)]


def compile_for(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    donate: Sequence[int] = (),
) -> TpuProgram:
    """Compiles function(*arguments) of ShapeDtypeStructs whose shardings name the topology's devices."""
    compiled = jax.jit(function, donate_argnums=tuple(donate)).lower(*arguments).compile()
    memory, hlo = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert hlo is not None
    return TpuProgram(
        hlo=hlo,
        argument_size=memory.argument_size_in_bytes,
        output_size=memory.output_size_in_bytes,
        alias_size=memory.alias_size_in_bytes,
        temporary_size=memory.temp_size_in_bytes,
    )

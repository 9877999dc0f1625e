"""What each chip can do, from its maker's published figures: the ceilings that plans and benchmarks divide by."""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "tpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Bytes, bytes a second and operations a second of one device; matrix rates are dense."""

    name: str
    title: str
    kind: Kind
    memory: int  # bytes that a program may use, as drivers and compilers report them
    bandwidth: float  # of that memory, bytes/s
    bfloat16: float  # operations/s
    eight_bit: float  # operations/s of the faster of int8 and fp8; where a chip has neither, bfloat16's
    eight_bit_types: tuple[str, ...]  # int8, fp8: those that it multiplies as they are
    link: float  # bytes/s that one device sends to its neighbours in a collective over one mesh axis
    node: int  # devices that share such links; beyond it a collective crosses the network

    @property
    def ridge(self) -> float:
        """Operations per byte of memory above which a bfloat16 program is bound by arithmetic."""
        return self.bfloat16 / self.bandwidth


_CHIPS = (
    # NVLink 4: 450 GB/s each way. Memory as the driver reports it.
    Chip(
        name="h100",
        title="NVIDIA H100 SXM",
        kind="gpu",
        memory=84_942_979_072,
        bandwidth=3.35e12,
        bfloat16=989e12,
        eight_bit=1979e12,
        eight_bit_types=("int8", "fp8"),
        link=450e9,
        node=8,
    ),
    Chip(
        name="h200",
        title="NVIDIA H200 SXM",
        kind="gpu",
        memory=150_754_820_096,
        bandwidth=4.8e12,
        bfloat16=989e12,
        eight_bit=1979e12,
        eight_bit_types=("int8", "fp8"),
        link=450e9,
        node=8,
    ),
    # TPU links: a ring along one axis of the torus sends both ways, 2 x 45 GB/s on v5e, 2 x 90 GB/s on v5p and v6e.
    Chip(
        name="v5e",
        title="TPU v5e",
        kind="tpu",
        memory=int(15.75 * 2**30),
        bandwidth=0.819e12,
        bfloat16=197e12,
        eight_bit=394e12,
        eight_bit_types=("int8",),
        link=90e9,
        node=256,
    ),
    Chip(
        name="v5p",
        title="TPU v5p",
        kind="tpu",
        memory=int(95.74 * 2**30),
        bandwidth=2.765e12,
        bfloat16=459e12,
        eight_bit=918e12,
        eight_bit_types=("int8",),
        link=180e9,
        node=8960,
    ),
    Chip(
        name="v6e",
        title="TPU v6e",
        kind="tpu",
        memory=int(31.25 * 2**30),
        bandwidth=1.64e12,
        bfloat16=918e12,
        eight_bit=1836e12,
        eight_bit_types=("int8",),
        link=180e9,
        node=256,
    ),
)
CHIPS: dict[str, Chip] = {chip.name: chip for chip in _CHIPS}
_KINDS = {  # what JAX calls a device of each
    "h100": r"NVIDIA H100\b.*",
    "h200": r"NVIDIA H200\b.*",
    "v5e": r"TPU v5 ?(lite|e)",
    "v5p": r"TPU v5p?",
    "v6e": r"TPU v6 ?(lite|e)",
}


def chip_of(device_kind: str) -> Chip | None:
    """The chip that JAX calls by that `device_kind`; None for one that weft knows nothing of."""
    found = [name for name, kind in _KINDS.items() if re.fullmatch(kind, device_kind)]
    return CHIPS[found[0]] if found else None

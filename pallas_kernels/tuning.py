"""Measured block sizes, as data: tables/CHIP.toml, a list of rows a kernel, each a shape and the blocks to take for it.

    [[gpu_paged_decode]]
    shape = { group = 4, kv_heads = 8, head_dim = 128, page_size = 64, page_dtype = "int8", dtype = "bfloat16", ... }
    blocks = { keys = 64, stages = 4, ctas = 264 }

A chip that nobody measured has no file, a shape that nobody measured no row: then a kernel derives its blocks. Shapes
are those of one device. A number of tokens or rows stands for all up to it, down to the power of two below.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_args, get_type_hints

import jax.numpy as jnp

from pallas_kernels.gpu.decode_cut import DecodeBlocks
from pallas_kernels.gpu.grouped_matmul import GroupedSizes
from pallas_kernels.gpu.prefill_schedule import BlockSizes
from pallas_kernels.tpu.blocks import Blocks
from pallas_kernels.tpu.grouped_matmul import GroupedTiles

TABLES = Path(__file__).parent / "tables"


class TuningError(ValueError):
    """A table that cannot be read: the message names the file and the key."""


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    group: int  # G
    kv_heads: int  # K
    head_dim: int  # C
    page_size: int
    page_dtype: str
    dtype: str  # of the queries
    tokens: int  # T of a step, a power of two
    value_dim: int = 0  # of latent attention; 0 for any other


@dataclass(frozen=True, kw_only=True)
class ExpertsShape:
    experts: int  # that have groups
    products: int  # N
    d: int
    f: int
    dtype: str  # of the weights
    rows_per_scale: int = 0  # 0: no scales
    row_dtype: str = "bfloat16"
    rows: int  # M, a power of two


ShapeT = TypeVar("ShapeT")
BlocksT = TypeVar("BlocksT")


@dataclass(frozen=True)
class TunedKernel(Generic[ShapeT, BlocksT]):
    """A kernel that a table may speak of."""

    name: str
    shape: type[ShapeT]
    blocks: type[BlocksT]


GPU_DECODE = TunedKernel("gpu_paged_decode", AttentionShape, DecodeBlocks)
GPU_PREFILL = TunedKernel("gpu_paged_prefill", AttentionShape, BlockSizes)
GPU_GROUPED = TunedKernel("gpu_grouped_matmul", ExpertsShape, GroupedSizes)
TPU_ATTENTION = TunedKernel("tpu_paged_attention", AttentionShape, Blocks)
TPU_GROUPED = TunedKernel("tpu_grouped_matmul", ExpertsShape, GroupedTiles)
KERNELS: dict[str, TunedKernel[Any, Any]] = {
    kernel.name: kernel for kernel in (GPU_DECODE, GPU_PREFILL, GPU_GROUPED, TPU_ATTENTION, TPU_GROUPED)
}


@dataclass(frozen=True)
class TuningTable:
    """What was measured on one chip."""

    chip: str
    rows: Mapping[tuple[str, Any], Any] = field(default_factory=dict)  # (kernel's name, shape) -> its blocks

    def find(self, kernel: TunedKernel[ShapeT, BlocksT], shape: ShapeT) -> BlocksT | None:
        """The kernel's own blocks for that shape; None where nobody measured it."""
        return cast(BlocksT | None, self.rows.get((kernel.name, shape)))

    def has(self, *kernels: TunedKernel[Any, Any]) -> bool:
        """Whether there is a row for any of these."""
        names = {kernel.name for kernel in kernels}
        return any(name in names for name, _ in self.rows)

    def with_row(self, kernel: TunedKernel[ShapeT, BlocksT], shape: ShapeT, blocks: BlocksT) -> "TuningTable":
        return TuningTable(self.chip, {**self.rows, (kernel.name, shape): blocks})

    def text(self) -> str:
        """As TOML, which `read_table` reads back; rows in the order of their kernels and shapes."""
        rows = sorted(self.rows.items(), key=lambda row: (row[0][0], dataclasses.astuple(row[0][1])))
        return "\n".join(
            f"[[{name}]]\nshape = {_inline(shape)}\nblocks = {_inline(blocks)}\n" for (name, shape), blocks in rows
        )


def load_table(chip: str, folder: Path = TABLES) -> TuningTable:
    """What was measured on that chip; empty for a chip that has no table. Raises TuningError."""
    path = folder / f"{chip}.toml"
    return read_table(path) if path.exists() else TuningTable(chip)


def read_table(path: Path) -> TuningTable:
    """Raises TuningError for a kernel, key, type or number that cannot be, and for a shape that has two rows."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TuningError(f"{path}: {error}") from error
    rows: dict[tuple[str, Any], Any] = {}
    for name, entries in content.items():
        if name not in KERNELS:
            raise TuningError(f"{path}: unknown kernel {name}; there is {', '.join(KERNELS)}")
        if not isinstance(entries, list):
            raise TuningError(f"{path}: {name} must be a list of tables, [[{name}]]")
        kernel = KERNELS[name]
        for index, entry in enumerate(entries):
            where = f"{name}[{index}]"
            _check_keys(entry, ("shape", "blocks"), path, where)
            shape = _build(kernel.shape, entry["shape"], path, f"{where}.shape")
            if (name, shape) in rows:
                raise TuningError(f"{path}: {where}.shape has a row already")
            rows[name, shape] = _build(kernel.blocks, entry["blocks"], path, f"{where}.blocks")
    return TuningTable(path.stem, rows)


def bucket(number: int) -> int:
    """The power of two that a number of tokens or rows stands under."""
    return 1 << max(number - 1, 0).bit_length()


def _check_keys(entry: Any, keys: tuple[str, ...], path: Path, where: str) -> None:
    if not isinstance(entry, dict):
        raise TuningError(f"{path}: {where} must be a table")
    for key in entry:
        if key not in keys:
            raise TuningError(f"{path}: unknown key {where}.{key}; known here: {', '.join(keys)}")
    for key in keys:
        if key not in entry:
            raise TuningError(f"{path}: missing key {where}.{key}")


def _build(kind: type, table: Any, path: Path, where: str) -> Any:
    """One dataclass of whole numbers and names of types. Keys with a default may be left out."""
    if not isinstance(table, dict):
        raise TuningError(f"{path}: {where} must be a table")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    needed = tuple(name for name, f in fields.items() if f.default is dataclasses.MISSING or name in table)
    _check_keys(table, needed, path, where)
    hints = get_type_hints(kind)
    for name, value in table.items():
        _check_value(get_args(hints[name]) or (hints[name],), name, value, path, f"{where}.{name}")
    try:
        return kind(**table)
    except ValueError as error:
        raise TuningError(f"{path}: {where}: {error}") from error


def _check_value(types: tuple[type, ...], name: str, value: Any, path: Path, where: str) -> None:
    if type(value) not in types:
        raise TuningError(f"{path}: {where} must be {types[0].__name__}, not {value!r}")
    if isinstance(value, int) and value < 0:
        raise TuningError(f"{path}: {where} must not be negative, as {value} is")
    if name in ("tokens", "rows") and where.split(".")[-2] == "shape" and value != bucket(value):
        raise TuningError(f"{path}: {where} must be a power of two, not {value}")
    if isinstance(value, str):
        try:
            jnp.dtype(value)
        except TypeError as error:
            raise TuningError(f"{path}: {where} must be the name of a type, as bfloat16, not {value!r}") from error


def _inline(record: Any) -> str:
    """A dataclass of whole numbers and short names, as an inline table. TOML has no None: such a key is left out."""
    values = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    shown = (f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in values.items() if v is not None)
    return "{ " + ", ".join(shown) + " }"

"""What a processor's registers hold of a product, by the vectors that it has."""

from functools import cache
from typing import NamedTuple

from llvmlite import binding

NUMBER = 4  # bytes of a float32
DEPTH = 256  # numbers of a row gone through at once: those of 16 rows, and a line of the weight for each, are 32 KiB


class Tile(NamedTuple):
    """Rows and vectors of an output that are summed in registers, each vector of so many float32 numbers."""

    rows: int
    vectors: int
    lanes: int
    gathers: bool = False  # the weight's columns first: worth it where they are read for many tiles of rows

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.vectors}x{self.lanes}" + ("_gathered" if self.gathers else "")


class Registers(NamedTuple):
    """The tiles of one kind of processor, each up to how many rows of x it was the fastest, in their order."""

    tiles: dict[int, Tile]
    transposed_tiles: dict[int, Tile]  # whose rows are those of the weight, and whose lanes are rows of x
    fewest_rows: dict[str, int]  # by the type of the weight
    most_rows: dict[str, int]  # by the type of the weight; with more of them XLA is as fast, or faster


def tile_for(tiles: dict[int, Tile], rows: int) -> Tile:
    return next(tile for most, tile in tiles.items() if rows <= most)


# 32 registers of 16 numbers: 24 sums, the vectors of the weight, and a number of x. Lines of the weight side by side
# come from memory sooner than one by one, and a few rows wait for the weight anyway. Of a transposed weight eight rows
# are read side by side: of more, a cache of eight ways may not hold a line each.
AVX512 = Registers(
    tiles={1: Tile(1, 8, 16), 4: Tile(2, 4, 16), 128: Tile(6, 4, 16)},
    transposed_tiles={16: Tile(8, 1, 16), 128: Tile(8, 2, 16)},
    fewest_rows={"float32": 2, "bfloat16": 1},
    most_rows={"float32": 128, "bfloat16": 16},
)
# XLA multiplies bfloat16 as it is where the processor does, but not a row or two.
AVX512_BF16 = AVX512._replace(most_rows={"float32": 128, "bfloat16": 4})
# 16 registers of 8 numbers: eight to twelve sums, the vectors of the weight, and a number of x.
AVX2 = Registers(
    tiles={2: Tile(2, 4, 8), 8: Tile(4, 3, 8), 16: Tile(6, 2, 8), 4096: Tile(4, 3, 8, gathers=True)},
    transposed_tiles={8: Tile(6, 1, 8), 256: Tile(6, 2, 8)},
    fewest_rows={"float32": 2, "bfloat16": 2},
    most_rows={"float32": 64, "bfloat16": 4096},
)


@cache
def registers() -> Registers | None:
    """Those of this machine's processor; None where nothing was measured."""
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return AVX512_BF16 if features.get("avx512bf16") else AVX512
    return AVX2 if features.get("avx2") and features.get("fma") else None

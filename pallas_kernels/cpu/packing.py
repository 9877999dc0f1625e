"""How rows lie beside each other for a tile of a product, and where a tile goes beyond an output."""

from typing import Any

import numba
import numpy as np


@numba.njit(error_model="numpy")
def pack(x: Any, depth: int, begin: int, count: int, rows: int, tile_rows: int, packed: np.ndarray) -> None:
    """Numbers begin .. begin + count of each row of x, those of tile_rows rows side by side; zeros for rows beyond."""
    for panel in range(0, rows, tile_rows):
        at = panel * count
        for row in range(panel, panel + tile_rows):
            for k in range(count):
                packed[at + k * tile_rows + row - panel] = x[row * depth + begin + k] if row < rows else 0


@numba.njit(error_model="numpy")
def add_part(tile: np.ndarray, width: int, skipped: int, out: Any, out_at: int, columns: int, rows: int) -> None:
    """Adds a tile's first rows without its `skipped` first columns to an output, where the tile begins at out_at."""
    for i in range(rows):
        for j in range(skipped, width):
            out[out_at + i * columns + j] += tile[i * width + j]

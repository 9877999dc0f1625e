"""Products in registers on a CPU, against sums in float64. Tiles run on any processor; where they are used is decided
by its vectors, which these tests put aside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pallas_kernels.cpu import matmul as module
from pallas_kernels.cpu.matmul import DEPTH, MOST_ROWS, matmul
from pallas_kernels.dispatch import dense_matmul


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_wide_vectors", lambda: True)


def is_compiled(x: Array, weight: Array) -> bool:
    return "weft_matmul" in jax.jit(matmul).lower(x, weight).as_text()


def drawn(rows: int, depth: int, columns: int, dtype: str = "float32") -> tuple[Array, Array]:
    random = np.random.default_rng(rows * depth + columns)
    return (
        jnp.asarray(random.standard_normal((rows, depth)), dtype),
        jnp.asarray(random.standard_normal((depth, columns)), dtype),
    )


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 100])
@pytest.mark.parametrize(("depth", "columns"), [(1, 32), (7, 33), (DEPTH, 64), (DEPTH + 1, 47), (3 * DEPTH - 1, 100)])
def test_any_shape_is_multiplied(rows: int, depth: int, columns: int) -> None:
    x, weight = drawn(rows, depth, columns)
    assert is_compiled(x, weight)
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    np.testing.assert_allclose(jax.jit(matmul)(x, weight), right, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("threads", [2, 3, 7, 100])
def test_columns_are_dealt_out_to_threads(threads: int) -> None:
    x, weight = drawn(9, 40, 1_500)
    alone = jax.jit(matmul)(x, weight)
    np.testing.assert_array_equal(jax.jit(matmul, static_argnums=2)(x, weight, threads), alone)


@pytest.mark.parametrize("rows", [2, 8, 16])
def test_weights_in_bfloat16_are_multiplied_as_they_are(rows: int) -> None:
    x, weight = drawn(rows, 300, 100, "bfloat16")
    assert is_compiled(x, weight)
    out = jax.jit(matmul)(x, weight)
    assert out.dtype == jnp.float32
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    np.testing.assert_allclose(out, right, rtol=1e-5, atol=2e-4)


def test_a_row_has_the_same_numbers_however_many_there_are() -> None:
    x, weight = drawn(40, 600, 90)
    whole = np.asarray(jax.jit(matmul)(x, weight))
    for rows in (2, 3, 7, 16, 21):
        np.testing.assert_array_equal(jax.jit(matmul)(x[:rows], weight), whole[:rows])


def test_what_is_not_finite_stays_in_its_row_or_column() -> None:
    x, weight = drawn(5, 20, 40)
    out = np.array(jax.jit(matmul)(x.at[3, 2].set(jnp.nan), weight.at[4, 39].set(jnp.inf)))
    assert np.isnan(out[3]).all()
    assert np.isinf(np.delete(out[:, 39], 3)).all()
    assert np.isfinite(np.delete(out[:, :39], 3, axis=0)).all()


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "dtype"),
    [
        (1, 8, 64, "float32"),
        (MOST_ROWS["float32"] + 1, 8, 64, "float32"),
        (MOST_ROWS["bfloat16"] + 1, 8, 64, "bfloat16"),
        (0, 8, 64, "float32"),
        (4, 0, 64, "float32"),
        (4, 8, 31, "float32"),
        (4, 8, 64, "float16"),
    ],
)
def test_the_rest_is_left_to_xla(rows: int, depth: int, columns: int, dtype: str) -> None:
    x, weight = drawn(rows, depth, columns, dtype)
    assert not is_compiled(x, weight)
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    np.testing.assert_allclose(jax.jit(matmul)(x, weight), right, rtol=1e-2, atol=1e-2)


def test_a_processor_without_wide_vectors_leaves_all_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_wide_vectors", lambda: False)
    assert not is_compiled(*drawn(8, 64, 64))


def test_only_the_cpu_body_has_products_of_its_own() -> None:
    assert dense_matmul("cpu", 1) is not None
    assert dense_matmul("reference", 1) is dense_matmul("gpu", 1) is dense_matmul("tpu", 1) is None

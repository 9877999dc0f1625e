"""Products in registers on a CPU, against sums in float64. Tiles run on any processor; where they are used is decided
by its vectors, which these tests put aside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pallas_kernels.cpu import matmul as plain_module
from pallas_kernels.cpu import transposed_matmul as transposed_module
from pallas_kernels.cpu.matmul import matmul
from pallas_kernels.cpu.registers import AVX2, AVX512, DEPTH, Registers
from pallas_kernels.cpu.transposed_matmul import transposed_matmul
from pallas_kernels.dispatch import dense_matmul


@pytest.fixture(autouse=True, params=[AVX2, AVX512], ids=["avx2", "avx512"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Registers:
    use_registers(monkeypatch, request.param)
    return request.param


def use_registers(monkeypatch: pytest.MonkeyPatch, held: Registers | None) -> None:
    for module in (plain_module, transposed_module):
        monkeypatch.setattr(module, "registers", lambda: held)
    jax.clear_caches()  # which know a product by its shapes alone


def is_compiled(x: Array, weight: Array) -> bool:
    return "weft_matmul" in jax.jit(matmul).lower(x, weight).as_text()


def is_compiled_transposed(x: Array, weight: Array) -> bool:
    return "weft_transposed" in jax.jit(transposed_matmul).lower(x, weight).as_text()


def drawn(rows: int, depth: int, columns: int, dtype: str = "float32") -> tuple[Array, Array]:
    random = np.random.default_rng(rows * depth + columns)
    return (
        jnp.asarray(random.standard_normal((rows, depth)), dtype),
        jnp.asarray(random.standard_normal((depth, columns)), dtype),
    )


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 63])
@pytest.mark.parametrize(("depth", "columns"), [(1, 64), (7, 65), (DEPTH, 128), (DEPTH + 1, 79), (3 * DEPTH - 1, 100)])
def test_any_shape_is_multiplied(rows: int, depth: int, columns: int) -> None:
    x, weight = drawn(rows, depth, columns)
    assert is_compiled(x, weight)
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    np.testing.assert_allclose(jax.jit(matmul)(x, weight), right, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("rows", [2, 8, 9, 16, 17, 33, 100])
@pytest.mark.parametrize(("depth", "columns"), [(1, 64), (7, 65), (DEPTH + 1, 79), (2 * DEPTH, 100)])
def test_a_weight_that_lies_the_other_way_is_multiplied(rows: int, depth: int, columns: int) -> None:
    x, weight = drawn(rows, depth, columns)
    table = weight.T
    assert is_compiled_transposed(x, table)
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    found = jax.jit(transposed_matmul)(x, table)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("rows", [2, 4, 9])
@pytest.mark.parametrize("columns", [15, 23, 24, 31, 32, 33, 47, 63])
def test_narrow_weights_are_multiplied_whoever_does_it(rows: int, columns: int) -> None:
    x, weight = drawn(rows, DEPTH + 1, columns)
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    np.testing.assert_allclose(jax.jit(matmul)(x, weight), right, rtol=1e-5, atol=2e-4)
    np.testing.assert_allclose(jax.jit(transposed_matmul)(x, weight.T), right, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("columns", [127, 128, 129, 1_500])
def test_columns_are_taken_in_turns(columns: int) -> None:
    x, weight = drawn(9, 2 * DEPTH + 40, columns)
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    np.testing.assert_allclose(jax.jit(matmul)(x, weight), right, rtol=1e-5, atol=2e-4)
    np.testing.assert_allclose(jax.jit(transposed_matmul)(x, weight.T), right, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("rows", [1, 2, 8, 16, 40])
def test_weights_in_bfloat16_are_multiplied_as_they_are(rows: int, held: Registers) -> None:
    x, weight = drawn(rows, 300, 150, "bfloat16")
    assert is_compiled(x, weight) == (held.fewest_rows["bfloat16"] <= rows <= held.most_rows["bfloat16"])
    out = jax.jit(matmul)(x, weight)
    assert out.dtype == jnp.float32
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    np.testing.assert_allclose(out, right, rtol=1e-5, atol=2e-4)


def test_a_row_has_the_same_numbers_however_many_there_are() -> None:
    x, weight = drawn(40, 600, 90)
    for product, lying in ((matmul, weight), (transposed_matmul, weight.T)):
        whole = np.asarray(jax.jit(product)(x, lying))
        for rows in (2, 3, 7, 16, 21):
            np.testing.assert_array_equal(jax.jit(product)(x[:rows], lying), whole[:rows])


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
        (4097, 8, 64, "float32"),
        (4097, 8, 64, "bfloat16"),
        (0, 8, 64, "float32"),
        (4, 0, 64, "float32"),
        (4, 8, 15, "float32"),
        (4, 8, 64, "float16"),
    ],
)
def test_the_rest_is_left_to_xla(rows: int, depth: int, columns: int, dtype: str) -> None:
    x, weight = drawn(rows, depth, columns, dtype)
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    assert not is_compiled(x, weight)
    np.testing.assert_allclose(jax.jit(matmul)(x, weight), right, rtol=1e-2, atol=1e-2)
    if columns > 15:
        weight = weight[:, :15]  # fewer than a vector
    assert not is_compiled_transposed(x, weight.T)
    np.testing.assert_allclose(jax.jit(transposed_matmul)(x, weight.T), right[:, :15], rtol=1e-2, atol=1e-2)


def test_another_processor_leaves_all_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    use_registers(monkeypatch, None)
    assert not is_compiled(*drawn(8, 64, 64))
    assert not is_compiled_transposed(*drawn(8, 64, 64))


def test_only_the_cpu_body_has_products_of_its_own() -> None:
    own = dense_matmul("cpu")
    assert own is not None
    x, weight = drawn(4, 30, 800)
    np.testing.assert_array_equal(jax.jit(own.plain)(x, weight), jax.jit(matmul)(x, weight))
    np.testing.assert_array_equal(jax.jit(own.transposed)(x, weight.T), jax.jit(transposed_matmul)(x, weight.T))
    assert dense_matmul("reference") is dense_matmul("gpu") is dense_matmul("tpu") is None

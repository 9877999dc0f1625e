import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.quantization import PAGE_DTYPES, dequantize, largest, quantize


@pytest.mark.parametrize(("dtype", "step"), [("int8", 0.5 / 127), ("float8_e4m3fn", 2.0**-4)])
def test_a_number_comes_back_within_half_a_step(dtype: str, step: float) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 3, 64)).astype(np.float32) * np.float32([[1e-6], [1.0], [1e6]])
    values, scales = quantize(jnp.asarray(rows), dtype)
    assert values.dtype == dtype
    assert scales.shape == (5, 3)
    reach = np.abs(rows).max(axis=-1, keepdims=True)
    # A step of int8 is a part of the row's largest magnitude, one of float8 mostly of the number itself.
    bound = step * reach if dtype == "int8" else step * np.abs(rows) + 2.0**-10 / 448 * reach
    assert (np.abs(np.asarray(dequantize(values, scales)) - rows) <= bound * 1.001).all()


@pytest.mark.parametrize("dtype", PAGE_DTYPES)
def test_the_largest_number_of_a_row_takes_the_largest_of_the_type(dtype: str) -> None:
    values, _ = quantize(jnp.asarray([[0.5, -3.0, 1.0]]), dtype)
    assert float(jnp.abs(values.astype(jnp.float32)).max()) == largest(dtype)


@pytest.mark.parametrize("dtype", PAGE_DTYPES)
def test_a_row_of_zeros_comes_back_as_zeros(dtype: str) -> None:
    values, scales = quantize(jnp.zeros((2, 8)), dtype)
    assert (np.asarray(dequantize(values, scales)) == 0).all()

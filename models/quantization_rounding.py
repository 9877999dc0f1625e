"""Float weights on the host into the form that a model keeps them in (see quantized_array.py).

int8 and fp8 put the largest number that shares a scale at the end of the type's range. int4 has one number more below
zero than above: the largest magnitude of a group, whatever its sign, is -8, and its scale is negative where that was
above zero.
"""

import numpy as np
from ml_dtypes import float8_e4m3fn

from models.quantized_array import WeightForm

Arrays = dict[str, np.ndarray]  # by the name of the leaf: values, scales ...
LARGEST = {"int8": 127.0, "fp8": 448.0}
LEAST_SCALE = 1e-30  # of numbers that are all zero


def rounded(weight: np.ndarray, form: WeightForm) -> Arrays:
    """weight [..., form.shape], of any float dtype: `values` and `scales`. Leading dimensions are a stack."""
    axis = form.summed[-1] + weight.ndim - len(form.shape)
    summed = [dim + weight.ndim - len(form.shape) for dim in form.summed]
    wide = np.asarray(weight, np.float32)
    if form.group is None:
        reach = _largest(wide, tuple(summed), form)
        return {"values": _values(wide / reach, form, axis), "scales": reach}
    apart = wide.reshape(*wide.shape[:axis], -1, form.group, *wide.shape[axis + 1 :])
    scales = _largest(apart, (axis + 1,), form)
    return {"values": _values((apart / scales).reshape(wide.shape), form, axis), "scales": scales.squeeze(axis + 1)}


def _largest(wide: np.ndarray, axes: tuple[int, ...], form: WeightForm) -> np.ndarray:
    """The scales that these dimensions share, which stay as 1."""
    if form.kind == "int4":
        low, high = wide.min(axis=axes, keepdims=True), wide.max(axis=axes, keepdims=True)
        largest = np.where(-low >= high, low, high) / -8
        return np.where(largest == 0, np.float32(LEAST_SCALE), largest)
    reach = np.abs(wide).max(axis=axes, keepdims=True)
    return np.maximum(reach / LARGEST[form.kind], np.float32(LEAST_SCALE)).astype(np.float32)


def _values(ratio: np.ndarray, form: WeightForm, axis: int) -> np.ndarray:
    if form.kind == "fp8":
        return np.clip(ratio, -LARGEST["fp8"], LARGEST["fp8"]).astype(float8_e4m3fn)
    if form.kind == "int8":
        return np.clip(np.rint(ratio, out=ratio), -127, 127).astype(np.int8)
    return packed(np.clip(np.rint(ratio, out=ratio), -8, 7).astype(np.int8), axis)


def packed(codes: np.ndarray, axis: int) -> np.ndarray:
    """Codes of 4 bits, a byte each -> two in a byte: 2i of `axis` in the low half, 2i + 1 in the high one."""
    even, odd = (codes[(slice(None),) * axis + (slice(first, None, 2),)].astype(np.uint8) for first in range(2))
    return (even & 15) | (odd << 4)

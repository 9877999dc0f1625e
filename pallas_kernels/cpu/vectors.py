"""Sums over the numbers of a head, as whole vectors: Numba's own loops over so few numbers are left scalar."""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from pallas_kernels.cpu.foreign_call import generated

REORDERED = ("reassoc", "contract", "nsz")  # what LLVM may do with sums; NaN and infinity stay what they are
LINE = 16  # float32 numbers that come from memory together
TO_READ, IN_SECOND_CACHE, DATA = 0, 2, 1  # arguments of llvm.prefetch
LOG2_E = np.float32(1.44269504)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # their sum is ln 2


@generated
def dot(typing_context: Any, x: Any, x_at: Any, y: Any, y_at: Any, size: Any) -> Any:
    """sum(x[x_at : x_at + size] * y[y_at : y_at + size]) of pointers to float32; `size` is a constant."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left = load(builder, arguments[0], arguments[1], size.literal_value)
        right = load(builder, arguments[2], arguments[3], size.literal_value)
        product = builder.fmul(left, right, flags=REORDERED)
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), product.type])
        name = f"llvm.vector.reduce.fadd.v{size.literal_value}f32"
        add = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(add, [ir.Constant(ir.FloatType(), -0.0), product], fastmath=REORDERED)

    return types.float32(x, types.int64, y, types.int64, size), generate


@generated
def add_scaled(
    typing_context: Any,
    x: Any,
    x_at: Any,
    factors: Any,
    factor_at: Any,
    y: Any,
    y_at: Any,
    stride: Any,
    size: Any,
    count: Any,
) -> Any:
    """Adds factors[factor_at + i] * y[y_at + i * stride : ... + size] to x[x_at : x_at + size], for i < count.

    All are pointers to float32; `size` and `count` are constants. x is read and written once.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_at, factors, factor_at, y, y_at, stride, *_ = arguments
        place = lanes_at(builder, x, x_at, size.literal_value)
        terms = [builder.load(place, align=4)]
        for i in range(count.literal_value):
            number = ir.Constant(ir.IntType(64), i)
            row = load(builder, y, builder.add(y_at, builder.mul(stride, number)), size.literal_value)
            factor = builder.load(builder.gep(factors, [builder.add(factor_at, number)]), align=4)
            terms.append(builder.fmul(repeated(builder, factor, row.type), row, flags=REORDERED))
        while len(terms) > 1:  # by pairs: a chain of additions would wait for each one
            pairs = zip(terms[0::2], terms[1::2], strict=False)
            terms = [builder.fadd(a, b, flags=REORDERED) for a, b in pairs] + terms[len(terms) // 2 * 2 :]
        builder.store(terms[0], place, align=4)
        return context.get_dummy_value()

    kinds = (x, types.int64, factors, types.int64, y, types.int64, types.int64, size, count)
    return types.none(*kinds), generate


@generated
def prefetch(typing_context: Any, x: Any, x_at: Any) -> Any:
    """Asks for the line of memory that holds x[x_at], as far as the second cache: it is read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ask_for(builder, *arguments)
        return context.get_dummy_value()

    return types.none(x, types.int64), generate


def ask_for(builder: Any, pointer: Any, at: Any) -> None:
    """What `prefetch` does, inside an intrinsic."""
    place = builder.bitcast(builder.gep(pointer, [at]), ir.IntType(8).as_pointer())
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
    ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(ask, [place, *(number(value) for value in (TO_READ, IN_SECOND_CACHE, DATA))])


def lanes_at(builder: Any, pointer: Any, at: Any, size: int) -> Any:
    """The place of `size` float32 numbers from pointer[at] on, inside an intrinsic."""
    return builder.bitcast(builder.gep(pointer, [at]), ir.VectorType(ir.FloatType(), size).as_pointer())


def repeated(builder: Any, number: Any, kind: Any) -> Any:
    """A vector of `kind` with the same number in each lane."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None))


def load(builder: Any, pointer: Any, at: Any, size: int) -> Any:
    return builder.load(lanes_at(builder, pointer, at, size), align=4)


@numba.njit(fastmath={"contract"}, error_model="numpy")
def exponentials(x, out, most, count) -> None:
    """out[:count] = exp(x[:count] - most) of float32 arrays, where no x is above `most`; below exp(-87) it is that.

    The polynomial is that of Cephes' expf (Moshier), good to two units in the last place.
    """
    bits = out.view(np.int32)
    for i in range(count):
        value = max(x[i] - most, np.float32(-87.0))
        power = np.floor(value * LOG2_E + np.float32(0.5))
        rest = (value - power * LN2_HIGH) - power * LN2_LOW
        series = np.float32(1.9875691500e-4)
        series = series * rest + np.float32(1.3981999507e-3)
        series = series * rest + np.float32(8.3334519073e-3)
        series = series * rest + np.float32(4.1665795894e-2)
        series = series * rest + np.float32(1.6666665459e-1)
        series = series * rest + np.float32(5.0000001201e-1)
        series = series * rest * rest + rest + np.float32(1.0)
        x[i] = series
        bits[i] = (np.int32(power) + np.int32(127)) << np.int32(23)
    for i in range(count):
        out[i] *= x[i]

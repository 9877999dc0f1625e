"""A tile of a matrix product, summed in registers: what Numba's own loops do not keep there."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pallas_kernels.cpu.foreign_call import generated
from pallas_kernels.cpu.vectors import ask_for, lanes_at, repeated

LANES = 16  # float32 numbers of a vector of AVX-512, and of a line of memory


@generated
def add_product(
    typing_context: Any,
    x: Any,
    x_step: Any,
    x_stride: Any,
    weight: Any,
    weight_stride: Any,
    out: Any,
    out_stride: Any,
    depth: Any,
    ahead: Any,
    rows: Any,
    vectors: Any,
) -> Any:
    """out[r, :columns] += sum over k < depth of x[r, k] * weight[k, :columns], for r < rows.

    x, weight and out are pointers to where the tile begins; x[r, k] stands at k * x_step + r * x_stride. `rows` and
    `vectors` are constants, and there are vectors * LANES columns. out is float32, x and the weight are that, or
    bfloat16 as uint16. Sums begin at zero and go in the order of k. Of each row of the weight, what stands `ahead`
    numbers further is asked for meanwhile.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_step, x_stride, weight, weight_stride, out, out_stride, depth, ahead, *_ = arguments
        number, kind = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)
        tile = [(row, vector) for row in range(rows.literal_value) for vector in range(vectors.literal_value)]
        before = builder.basic_block
        loop, after = builder.append_basic_block("product"), builder.append_basic_block("product.end")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(number)
        k.add_incoming(number(0), before)
        sums = {spot: builder.phi(kind) for spot in tile}
        for each in sums.values():
            each.add_incoming(ir.Constant(kind, None), before)
        row_at = builder.mul(k, weight_stride)
        ats = [builder.add(row_at, number(LANES * vector)) for vector in range(vectors.literal_value)]
        for at in ats:
            ask_for(builder, weight, builder.add(at, ahead))
        columns = [_vector(builder, weight, at) for at in ats]
        multiply = ir.FunctionType(kind, [kind] * 3)
        fused = cgutils.get_or_insert_function(builder.module, multiply, f"llvm.fma.v{LANES}f32")
        first = builder.mul(k, x_step)
        spots = [builder.add(first, builder.mul(x_stride, number(row))) for row in range(rows.literal_value)]
        factors = [repeated(builder, _number(builder, x, spot), kind) for spot in spots]
        added = {spot: builder.call(fused, [factors[spot[0]], columns[spot[1]], sums[spot]]) for spot in tile}
        following = builder.add(k, number(1))
        k.add_incoming(following, loop)
        for spot, each in sums.items():
            each.add_incoming(added[spot], loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        builder.position_at_end(after)
        for (row, vector), total in added.items():
            at = builder.add(builder.mul(out_stride, number(row)), number(LANES * vector))
            place = lanes_at(builder, out, at, LANES)
            builder.store(builder.fadd(builder.load(place, align=4), total), place, align=4)
        return context.get_dummy_value()

    number = types.int64
    return types.none(x, number, number, weight, number, out, number, number, number, rows, vectors), generate


def _number(builder: Any, x: Any, at: Any) -> Any:
    """x[at] as a float32; a bfloat16 is the upper half of one."""
    found = builder.load(builder.gep(x, [at]))
    if found.type == ir.FloatType():
        return found
    word = ir.IntType(32)
    return builder.bitcast(builder.shl(builder.zext(found, word), word(16)), ir.FloatType())


def _vector(builder: Any, weight: Any, at: Any) -> Any:
    """LANES numbers of a weight as float32."""
    if weight.type.pointee == ir.FloatType():
        return builder.load(lanes_at(builder, weight, at, LANES), align=4)
    halves = ir.VectorType(ir.IntType(16), LANES)
    words = ir.VectorType(ir.IntType(32), LANES)
    place = builder.bitcast(builder.gep(weight, [at]), halves.as_pointer())
    upper = builder.shl(builder.zext(builder.load(place, align=2), words), ir.Constant(words, [16] * LANES))
    return builder.bitcast(upper, ir.VectorType(ir.FloatType(), LANES))

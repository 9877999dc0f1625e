"""A tile of a matrix product, summed in registers: what Numba's own loops do not keep there."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pallas_kernels.cpu.foreign_call import generated
from pallas_kernels.cpu.vectors import LINE, ask_for, lanes_at, repeated

REGISTERS = {8: 16, 16: 32}  # that a processor has, by the float32 numbers that one holds


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
    lanes: Any,
) -> Any:
    """out[r, :columns] += sum over k < depth of x[r, k] * weight[k, :columns], for r < rows.

    x, weight and out are pointers to where the tile begins; x[r, k] stands at k * x_step + r * x_stride. `rows`,
    `vectors` and `lanes` are constants, and there are vectors * lanes columns. out is float32, x and the weight are
    that, or bfloat16 as uint16. Sums begin at zero and go in the order of k. Of each row of the weight, what stands
    `ahead` numbers further is asked for meanwhile, unless that is a constant.
    """
    asks = not isinstance(ahead, types.IntegerLiteral)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_step, x_stride, weight, weight_stride, out, out_stride, depth, ahead, *_ = arguments
        width = lanes.literal_value
        number, kind = ir.IntType(64), ir.VectorType(ir.FloatType(), width)
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
        ats = [builder.add(row_at, number(width * vector)) for vector in range(vectors.literal_value)]
        for at in ats[:: max(1, LINE // width)] if asks else ():
            ask_for(builder, weight, builder.add(at, ahead))
        columns = [_vector(builder, weight, at, width) for at in ats]
        multiply = ir.FunctionType(kind, [kind] * 3)
        fused = cgutils.get_or_insert_function(builder.module, multiply, f"llvm.fma.v{width}f32")
        first = builder.mul(k, x_step)
        spots = [builder.add(first, builder.mul(x_stride, number(row))) for row in range(rows.literal_value)]
        factors = [repeated(builder, _number(builder, x, spot), kind) for spot in spots]
        added = {spot: builder.call(fused, [factors[spot[0]], columns[spot[1]], sums[spot]]) for spot in tile}
        following = builder.add(k, number(1))
        k.add_incoming(following, loop)
        for spot, each in sums.items():
            each.add_incoming(added[spot], loop)
        again = builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        if 2 * len(tile) > REGISTERS[width]:
            _keep_rolled(builder, again)
        builder.position_at_end(after)
        for (row, vector), total in added.items():
            at = builder.add(builder.mul(out_stride, number(row)), number(width * vector))
            place = lanes_at(builder, out, at, width)
            builder.store(builder.fadd(builder.load(place, align=4), total), place, align=4)
        return context.get_dummy_value()

    number = types.int64
    return types.none(x, number, number, weight, number, out, number, number, number, rows, vectors, lanes), generate


@generated
def copy_vectors(
    typing_context: Any, weight: Any, weight_at: Any, out: Any, out_at: Any, vectors: Any, lanes: Any
) -> Any:
    """out[out_at + i] = weight[weight_at + i] as float32, for i < vectors * lanes. Pointers and constants as in
    `add_product`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weight, weight_at, out, out_at, *_ = arguments
        width = lanes.literal_value
        for begin in (ir.IntType(64)(width * vector) for vector in range(vectors.literal_value)):
            found = _vector(builder, weight, builder.add(weight_at, begin), width)
            builder.store(found, lanes_at(builder, out, builder.add(out_at, begin), width), align=4)
        return context.get_dummy_value()

    return types.none(weight, types.int64, out, types.int64, vectors, lanes), generate


def _keep_rolled(builder: Any, branch: Any) -> None:
    """Several turns of the loop at once are more than the registers hold, and sums would go to memory and back."""
    rule = builder.module.add_metadata([ir.MetaDataString(builder.module, "llvm.loop.unroll.disable")])
    loop = builder.module.add_metadata([rule, rule])
    loop.operands = (loop, rule)  # a loop is named by a node that begins with itself
    branch.set_metadata("llvm.loop", loop)


def _number(builder: Any, x: Any, at: Any) -> Any:
    """x[at] as a float32; a bfloat16 is the upper half of one."""
    found = builder.load(builder.gep(x, [at]))
    if found.type == ir.FloatType():
        return found
    word = ir.IntType(32)
    return builder.bitcast(builder.shl(builder.zext(found, word), word(16)), ir.FloatType())


def _vector(builder: Any, weight: Any, at: Any, lanes: int) -> Any:
    """So many numbers of a weight as float32."""
    if weight.type.pointee == ir.FloatType():
        return builder.load(lanes_at(builder, weight, at, lanes), align=4)
    halves = ir.VectorType(ir.IntType(16), lanes)
    words = ir.VectorType(ir.IntType(32), lanes)
    place = builder.bitcast(builder.gep(weight, [at]), halves.as_pointer())
    upper = builder.shl(builder.zext(builder.load(place, align=2), words), ir.Constant(words, [16] * lanes))
    return builder.bitcast(upper, ir.VectorType(ir.FloatType(), lanes))

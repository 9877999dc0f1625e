"""How a checkpoint's quantization_config says that its weights are kept. An unknown kind is refused by name."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from models.errors import CheckpointError
from models.fields import Fields
from models.hub import Tensor, Tensors
from models.hub_weights import sources_of
from models.interface import Family
from models.leaves import Leaf, LeafPath, parts_of
from models.packed_layouts import Awq, CompressedGroup, CompressedTensors, Gptq, Mxfp4
from models.packed_weights import PackedLayout
from models.quantization import Products, Recipe, Scheme
from models.quantized_array import Kind

_GROUP_ORDERS, _ROW_ORDERS = ("group", "dynamic"), ("weight", "static", "none")  # the latter leave rows in place
_STYLES = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")  # of compressed-tensors
_MIXED = "mixed-precision"  # each group names its own
METHODS = ("compressed-tensors", "awq", "gptq", "fp8")  # of every family but those that name their own


@dataclass(frozen=True, slots=True)
class DescribedWeights:
    recipe: Recipe | None  # None: all weights stay as they are
    layout: PackedLayout | None  # that the checkpoint has them in; None: they are there in full


def described_weights(
    family: Family,
    config: Any,
    fields: dict[str, Any],
    products: Products,
    quantization: Recipe | None,
    where: str,
) -> DescribedWeights:
    """How the weights of the checkpoint with this config.json are kept, where `quantization` is asked for or nothing.

    Raises CheckpointError for what is not offered, and for what is quantized already and to be once more.
    """
    if "quantization_config" not in Fields(fields):
        return DescribedWeights(quantization, None)
    if quantization is not None:
        raise CheckpointError(f"{where}: quantization_config is there: these weights cannot be quantized once more")
    table = family.tensors(config)
    own = getattr(family, "quant_methods", ())  # of the few families that have any
    layout = layout_of(Fields(fields, f"{where}: "), table, own, keeps_mxfp4=products.keeps_mxfp4)
    return DescribedWeights(None if layout is None else recipe_of(layout, table), layout)


def layout_of(config: Fields, table: Tensors, own: Collection[str], *, keeps_mxfp4: bool) -> PackedLayout | None:
    """None where weights are there in full, or are widened as they are read.

    own: methods that the family offers instead of METHODS. Raises CheckpointError for what is not offered.
    """
    if "quantization_config" not in config:
        return None
    fields = config.section("quantization_config")
    method = fields.string("quant_method", "unnamed")
    if method == "mxfp4" and method in own:
        packed = [name for name, entry in table.items() if isinstance(entry, Tensor) and entry.packed]
        return Mxfp4(packed) if keeps_mxfp4 else None
    if own:  # its experts lie as no other method's do
        raise fields.error("quant_method", f"{' or '.join(own)}, or absent with F32, F16 or BF16 weights")
    if method == "compressed-tensors":
        return _compressed_tensors(fields)
    if method == "awq":
        return _awq(fields)
    if method == "gptq":
        return _gptq(fields)
    if method == "fp8":
        return _fp8_blocks(fields)
    raise fields.error("quant_method", f"one of {', '.join(METHODS)}, or absent with F32, F16 or BF16 weights")


def recipe_of(layout: PackedLayout, table: Tensors) -> Recipe:
    """For the weights that `layout` has in fewer bits. The recipe raises CheckpointError for a weight only part of
    which is, or whose parts differ."""
    sources = sources_of(table)

    def recipe(path: LeafPath) -> Scheme | None:
        names = [name for name, _, _ in sources[path]]
        schemes = {layout.scheme(name) for name in names}
        if len(schemes) > 1:
            raise CheckpointError(
                f"tensors {', '.join(names)} are fused here, and quantization_config keeps them in different ways"
            )
        return schemes.pop()

    return recipe


def packed_names(listed: Any, table: Tensors) -> list[str]:
    """The tensors of the weights that `listed`, a model with its layers as a list, keeps in fewer bits."""
    sources = sources_of(table)
    weights: dict[LeafPath, Leaf] = {
        leaf.weight.path: leaf for _, leaves in parts_of(listed) for leaf in leaves if leaf.form is not None
    }
    return sorted({name for path in weights for name, _, _ in sources[path]})


def _compressed_tensors(fields: Fields) -> CompressedTensors:
    style = fields.string("format", "")
    if style not in (*_STYLES, _MIXED):
        raise fields.error("format", f"one of {', '.join((*_STYLES, _MIXED))}")
    for name in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        # Zeros of a sparse weight that are written like other numbers ("dense") change nothing.
        dense = name == "sparsity_config" and fields.section(name).string("format", "") == "dense"
        if name in fields and not fields.is_empty(name) and not dense:
            raise fields.error(name, "absent: engine.cache_dtype keeps pages in 8 bits, and the others are not offered")
    groups = fields.section("config_groups")
    found = [_compressed_group(groups.section(name), style) for name in groups.names()]
    if not found:
        raise fields.error("config_groups", "an object with a group")
    return CompressedTensors(found, _patterns(fields, "ignore"))


def _patterns(fields: Fields, name: str) -> list[str]:
    """Names of modules; behind "re:" an expression that they match."""
    patterns = fields.strings(name)
    for pattern in patterns:
        try:
            re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
        except re.error as error:
            raise fields.error(name, f"a list whose expressions can be read: {pattern!r} cannot ({error})") from None
    return patterns


def _compressed_group(fields: Fields, style: str) -> CompressedGroup:
    weights = fields.section("weights")
    bits, numbers = weights.integer("num_bits"), weights.string("type", "int")
    kinds: dict[tuple[int, str], Kind] = {(8, "int"): "int8", (8, "float"): "fp8", (4, "int"): "int4"}
    kind = kinds.get((bits, numbers))
    own = fields.string("format", style)
    if own not in _STYLES:
        raise fields.error("format", f"one of {', '.join(_STYLES)}")
    packed = own == "pack-quantized"
    if kind is None or (kind == "fp8" and packed) or (kind == "int4" and not packed):
        raise weights.error("num_bits", "8 as int or float, or 8 or 4 as int in the format pack-quantized")
    strategy = weights.string("strategy", "tensor" if "group_size" not in weights else "group")
    if strategy not in ("tensor", "channel", "group", "block"):
        raise weights.error("strategy", "tensor, channel, group or block")
    group, block = None, None
    if strategy == "group":
        group = weights.integer("group_size")
    if strategy == "block":
        rows, columns = weights.two_integers("block_structure")
        group, block = columns, (rows, columns)
    order = weights.string("actorder", "none")
    if order not in (*_GROUP_ORDERS, *_ROW_ORDERS):
        raise weights.error("actorder", f"absent, or one of {', '.join((*_GROUP_ORDERS, *_ROW_ORDERS))}")
    scheme = Scheme(
        kind=kind,
        group=group,
        zeros=not weights.boolean("symmetric", True),
        reordered=order in _GROUP_ORDERS and group is not None,
    )
    targets = tuple(_patterns(fields, "targets"))
    return CompressedGroup(targets, scheme, strategy, bits if packed else 0, block)


def _fp8_blocks(fields: Fields) -> CompressedTensors:
    """DeepSeek-V3's own layout: float8 with a scale for each block, under another name."""
    rows, columns = fields.two_integers("weight_block_size")
    fields.require("fmt", "e4m3")
    scheme = Scheme(kind="fp8", group=columns)
    group = CompressedGroup(("Linear",), scheme, "block", block=(rows, columns), scale="weight_scale_inv")
    return CompressedTensors([group], fields.strings("modules_to_not_convert"))


def _awq(fields: Fields) -> Awq:
    fields.require("bits", 4)
    if fields.string("version", "gemm").lower() != "gemm":
        raise fields.error("version", "gemm, the only one offered")
    fields.require("zero_point", True)
    return Awq(_group_size(fields), fields.strings("modules_to_not_convert"))


def _gptq(fields: Fields) -> Gptq:
    bits = fields.integer("bits")
    if bits not in (4, 8):
        raise fields.error("bits", "4 or 8")
    style = fields.string("checkpoint_format", "gptq")
    if style not in ("gptq", "gptq_v2"):
        raise fields.error("checkpoint_format", "gptq or gptq_v2")
    fields.require("lm_head", False)
    if "dynamic" in fields and not fields.is_empty("dynamic"):
        raise fields.error("dynamic", "absent: one way for all modules is offered")
    group = _group_size(fields)
    return Gptq(
        bits,
        group,
        fields.grouped_strings("modules_in_block_to_quantize"),
        reordered=fields.boolean("desc_act", False) and group is not None,
        symmetric=fields.boolean("sym", True),
        zero_offset=1 if style == "gptq" else 0,
    )


def _group_size(fields: Fields) -> int | None:
    """-1 is a scale for a whole column."""
    size = fields.integer("group_size", 128, least=-1)
    if size == 0:
        raise fields.error("group_size", "a number of rows, or -1 for all of them")
    return None if size == -1 else size

"""The layouts of quantized checkpoints, each written from its format's description.

compressed-tensors   int8, float8 and packed int4 (github.com/vllm-project/compressed-tensors, its compressors)
AWQ                  the "gemm" version (Lin et al., arXiv 2306.00978; AutoAWQ's WQLinear_GEMM)
GPTQ                 Frantar et al., arXiv 2210.17323; AutoGPTQ's QuantLinear, and GPTQModel's "gptq_v2"
fp8                  blocks of float8 with weight_scale_inv, as DeepSeek-V3 and Qwen3-FP8 are released
MXFP4                see mxfp4.py

Numbers of 4 bits come as -8 .. 7 here, and those of 8 as -128 .. 127; zeros likewise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.errors import CheckpointError
from models.mxfp4 import BLOCK, BLOCKS, EXPONENT_BIAS, SCALES, check_halves
from models.packed_weights import Codes, PartForm, Parts
from models.quantization import Scheme
from models.tensor_files import TensorFiles

WEIGHT = ".weight"
FLOATS, INTEGERS = ("F32", "F16", "BF16"), ("I32", "I64")
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where the columns 0, 1, 2 ... lie among the eight of an int32


def _all(files: TensorFiles, name: str) -> np.ndarray:
    """A whole tensor, of one dimension at least."""
    return files.rows(name, 0, files.shape(name)[0]) if files.shape(name) else files.scalar(name)


def _unpacked(words: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """int32 words -> the unsigned numbers in each, from the lowest bits on, along `axis`: int16."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    words = np.moveaxis(words, axis, -1).view(np.uint32)
    numbers = (words[..., None] >> shifts) & np.uint32(2**bits - 1)
    return np.moveaxis(numbers.reshape(*words.shape[:-1], -1), -1, axis).astype(np.int16)


def _parts(size: int, of: int | None) -> int:
    """Groups of `of` in `size`, the last of them perhaps cut; None: one of all."""
    return 1 if of is None else -(-size // of)


def _matrix(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise CheckpointError(f"tensor {name} has {len(shape)} dimensions; in fewer bits only matrices are read")
    return shape[0], shape[1]


def _checked_groups(index: np.ndarray, groups: int, name: str) -> np.ndarray:
    index = index.astype(np.int32)
    if index.min() < 0 or index.max() >= groups:
        raise CheckpointError(f"tensor {name} names a group that is not one of {groups}")
    return index


class _Modules:
    """Which modules of a checkpoint are quantized, by the names that its config leaves out."""

    def __init__(self, ignored: Sequence[str], contains: bool) -> None:
        self._ignored, self._contains = ignored, contains

    def has(self, module: str) -> bool:
        return not any(self._matches(pattern, module) for pattern in self._ignored)

    def _matches(self, pattern: str, module: str) -> bool:
        if pattern.startswith("re:"):
            return re.match(pattern[3:], module) is not None
        return pattern in module if self._contains else pattern == module


def module_of(name: str) -> str:
    return name.removesuffix(WEIGHT)


@dataclass(frozen=True, slots=True)
class CompressedGroup:
    """One of config_groups."""

    targets: tuple[str, ...]
    scheme: Scheme
    strategy: str  # tensor, channel, group or block
    bits: int = 0  # of the numbers of an int32; 0: they lie in a tensor of their own type
    block: tuple[int, int] | None = None  # rows and columns that share a scale
    scale: str = "weight_scale"

    def nearness(self, module: str) -> int:
        """How exactly a target names the module: by its name, an expression or its kind; 0: none does."""
        if module in self.targets:
            return 3
        if any(target[:3] == "re:" and re.match(target[3:], module) for target in self.targets):
            return 2
        return int("Linear" in self.targets)


class CompressedTensors:
    def __init__(self, groups: Sequence[CompressedGroup], ignored: Sequence[str]) -> None:
        self._groups, self._modules = groups, _Modules(ignored, contains=False)

    def scheme(self, name: str) -> Scheme | None:
        found = self._group(name)
        return None if found is None else found.scheme

    def parts(self, name: str) -> Parts:
        group, at = self._of(name), module_of(name)
        needed = [f"{at}.weight_packed", f"{at}.weight_shape"] if group.bits else [name]
        needed.append(f"{at}.{group.scale}")
        if group.scheme.zeros:
            needed.append(f"{at}.weight_zero_point")
        if group.scheme.reordered:
            needed.append(f"{at}.weight_g_idx")
        # Fixed scales of activations: weft quantizes none by them.
        return Parts(tuple(needed), (f"{at}.input_scale", f"{at}.input_zero_point", f"{at}.weight_zero_point"))

    def forms(self, name: str, shape: tuple[int, ...]) -> dict[str, PartForm]:
        group, at, (rows, columns) = self._of(name), module_of(name), _matrix(name, shape)
        groups = _parts(columns, group.scheme.group)
        tables: tuple[tuple[int, ...], ...] = ((rows, groups),)
        if group.strategy == "channel":
            tables = ((rows, 1), (rows,))
        elif group.strategy == "tensor":
            tables = ((1,), (), (1, 1))
        elif group.block is not None:
            tables = ((_parts(rows, group.block[0]), groups),)
        forms = {f"{at}.{group.scale}": PartForm(FLOATS, tables)}
        if group.bits:
            forms[f"{at}.weight_packed"] = PartForm(("I32",), ((rows, _parts(columns, 32 // group.bits)),))
            forms[f"{at}.weight_shape"] = PartForm(INTEGERS, ((2,),))
        else:
            forms[name] = PartForm(("F8_E4M3",) if group.scheme.kind == "fp8" else ("I8",), (shape,))
        if group.scheme.zeros:
            packed = group.bits and group.strategy != "tensor"
            words = PartForm(("I32",), ((_parts(rows, 32 // group.bits), groups),)) if packed else None
            forms[f"{at}.weight_zero_point"] = words or PartForm(("I8", "I32", "I64"), tables)
        if group.scheme.reordered:
            forms[f"{at}.weight_g_idx"] = PartForm(INTEGERS, ((columns,),))
        return forms

    def shape(self, files: TensorFiles, name: str) -> tuple[int, ...]:
        if not self._of(name).bits:
            return files.shape(name)
        rows, columns = _all(files, f"{module_of(name)}.weight_shape").tolist()
        return rows, columns

    def codes(self, files: TensorFiles, name: str) -> Codes:
        group, at = self._of(name), module_of(name)
        rows, columns = self.shape(files, name)
        scales = _all(files, f"{at}.{group.scale}").astype(np.float32)
        if group.block is not None:
            scales = np.repeat(scales, group.block[0], axis=0)[:rows]
        elif scales.size == 1:
            scales = np.full((rows, 1), scales.reshape(-1)[0])
        zeros = self._zeros(files, at, group, rows) if group.scheme.zeros else None
        groups = None
        if group.scheme.reordered:
            index = f"{at}.weight_g_idx"
            groups = _checked_groups(_all(files, index), _parts(columns, group.scheme.group), index)
        if group.bits:
            words = _all(files, f"{at}.weight_packed")
            values = (_unpacked(words, group.bits, 1)[:, :columns] - (1 << group.bits - 1)).astype(np.int8)
        else:
            values = _all(files, name)
        return Codes(values, scales.reshape(rows, -1), zeros, groups)

    def _zeros(self, files: TensorFiles, at: str, group: CompressedGroup, rows: int) -> np.ndarray:
        zeros = _all(files, f"{at}.weight_zero_point")
        if group.strategy == "tensor":
            return np.full((rows, 1), zeros.reshape(-1)[0], np.int16)
        if group.bits:
            return _unpacked(zeros, group.bits, 0)[:rows] - (1 << group.bits - 1)
        if group.block is not None:
            zeros = np.repeat(zeros, group.block[0], axis=0)[:rows]
        return zeros.reshape(rows, -1).astype(np.int16)

    def _of(self, name: str) -> CompressedGroup:
        group = self._group(name)
        assert group is not None
        return group

    def _group(self, name: str) -> CompressedGroup | None:
        module = module_of(name)
        if not self._modules.has(module):
            return None
        nearest = max(self._groups, key=lambda group: group.nearness(module))
        return nearest if nearest.nearness(module) else None


class Awq:
    """qweight [in, out / 8], qzeros [groups, out / 8], eight columns in an int32; scales [groups, out]."""

    def __init__(self, group: int | None, ignored: Sequence[str]) -> None:
        self._scheme = Scheme(kind="int4", group=group, zeros=True)
        self._modules = _Modules(ignored, contains=True)

    def scheme(self, name: str) -> Scheme | None:
        return self._scheme if self._modules.has(module_of(name)) else None

    def parts(self, name: str) -> Parts:
        at = module_of(name)
        return Parts((f"{at}.qweight", f"{at}.qzeros", f"{at}.scales"))

    def forms(self, name: str, shape: tuple[int, ...]) -> dict[str, PartForm]:
        at, (columns, rows) = module_of(name), _matrix(name, shape)
        groups, words = _parts(rows, self._scheme.group), _parts(columns, 8)
        return {
            f"{at}.qweight": PartForm(("I32",), ((rows, words),)),
            f"{at}.qzeros": PartForm(("I32",), ((groups, words),)),
            f"{at}.scales": PartForm(FLOATS, ((groups, columns),)),
        }

    def shape(self, files: TensorFiles, name: str) -> tuple[int, ...]:
        rows, words = files.shape(f"{module_of(name)}.qweight")
        return 8 * words, rows

    def codes(self, files: TensorFiles, name: str) -> Codes:
        at = module_of(name)
        values, zeros = (self._columns(_all(files, f"{at}.{part}")) - 8 for part in ("qweight", "qzeros"))
        scales = _all(files, f"{at}.scales").astype(np.float32)
        return Codes(values.T.astype(np.int8), scales.T, zeros.T)

    def _columns(self, words: np.ndarray) -> np.ndarray:
        numbers = _unpacked(words, 4, 1)
        return numbers.reshape(*words.shape, 8)[..., list(AWQ_ORDER)].reshape(numbers.shape)


class Gptq:
    """qweight [in * bits / 32, out], qzeros [groups, out * bits / 32], scales [groups, out], g_idx [in].

    `modules`: names within a layer; the others are kept in full. Empty: all modules are quantized.
    """

    def __init__(
        self,
        bits: int,
        group: int | None,
        modules: Sequence[str] = (),
        *,
        reordered: bool,
        symmetric: bool,
        zero_offset: int,
    ) -> None:
        self._bits, self._symmetric, self._zero_offset = bits, symmetric, zero_offset
        self._endings = tuple(f".{module}" for module in modules)
        kind = "int4" if bits == 4 else "int8"
        self._scheme = Scheme(kind=kind, group=group, zeros=not symmetric, reordered=reordered)

    def scheme(self, name: str) -> Scheme | None:
        return self._scheme if not self._endings or module_of(name).endswith(self._endings) else None

    def parts(self, name: str) -> Parts:
        at = module_of(name)
        needed = tuple(f"{at}.{part}" for part in ("qweight", "qzeros", "scales"))
        index, biases = (f"{at}.g_idx",), (f"{at}.bias",)  # AutoGPTQ gave every module a bias
        return Parts(needed + index, (), biases) if self._scheme.reordered else Parts(needed, index, biases)

    def forms(self, name: str, shape: tuple[int, ...]) -> dict[str, PartForm]:
        at, (columns, rows) = module_of(name), _matrix(name, shape)
        groups, numbers = _parts(rows, self._scheme.group), 32 // self._bits
        forms = {
            f"{at}.qweight": PartForm(("I32",), ((_parts(rows, numbers), columns),)),
            f"{at}.qzeros": PartForm(("I32",), ((groups, _parts(columns, numbers)),)),
            f"{at}.scales": PartForm(FLOATS, ((groups, columns),)),
        }
        if self._scheme.reordered:
            forms[f"{at}.g_idx"] = PartForm(INTEGERS, ((rows,),))
        return forms

    def shape(self, files: TensorFiles, name: str) -> tuple[int, ...]:
        words, columns = files.shape(f"{module_of(name)}.qweight")
        return columns, words * 32 // self._bits

    def codes(self, files: TensorFiles, name: str) -> Codes:
        at, half = module_of(name), 1 << (self._bits - 1)
        values = _unpacked(_all(files, f"{at}.qweight"), self._bits, 0) - half
        zeros = _unpacked(_all(files, f"{at}.qzeros"), self._bits, 1) + self._zero_offset - half
        scales = _all(files, f"{at}.scales").astype(np.float32)
        index, groups = f"{at}.g_idx", None
        if index in files:
            groups = _checked_groups(_all(files, index), len(scales), index)
        if groups is not None and not self._scheme.reordered:
            if (groups != np.arange(len(groups)) // (self._scheme.group or len(groups))).any():
                raise CheckpointError(f"tensor {at}.g_idx reorders rows, and quantization_config.desc_act says false")
            groups = None
        return Codes(values.T.astype(np.int8), scales.T, zeros.T, groups)


class Mxfp4:
    """The tensors that a family's table calls packed, kept in 4 bits."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def scheme(self, name: str) -> Scheme | None:
        return Scheme(kind="fp4", group=BLOCK) if name in self._names else None

    def parts(self, name: str) -> Parts:
        return Parts((name + BLOCKS, name + SCALES))

    def forms(self, name: str, shape: tuple[int, ...]) -> dict[str, PartForm]:
        *lead, last = shape
        groups = (*lead, _parts(last, BLOCK))
        return {
            name + BLOCKS: PartForm(("U8",), ((*groups, BLOCK // 2),)),
            name + SCALES: PartForm(("U8",), (groups,)),
        }

    def shape(self, files: TensorFiles, name: str) -> tuple[int, ...]:
        check_halves(files, name)
        *lead, groups = files.shape(name + SCALES)
        return (*lead, groups * BLOCK)

    def codes(self, files: TensorFiles, name: str) -> Codes:
        blocks, exponents = _all(files, name + BLOCKS), _all(files, name + SCALES)
        values = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*exponents.shape[:-1], -1)
        return Codes(values, np.ldexp(np.float32(1), exponents.astype(np.int32) - EXPONENT_BIAS))

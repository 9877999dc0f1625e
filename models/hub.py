"""How a hub checkpoint's tensors lie in a family's leaves, written as a table: tensor name -> leaf, layer, layout.

A linear weight of the hub is [out, in]; here it is [in, ..., out ...], so that x @ W reads rows of x, and what is read
together is fused. A layout says so in the letters of this package: "(KGC)D -> DKGC" takes a tensor of K*G*C rows and D
columns to the dimensions D, K, G, C of its leaf.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Where one of the checkpoint's tensors goes: leaf[layer][part] is it, reshaped to `split`, then transposed."""

    path: tuple[str, ...]  # of the leaf in the module; of a stacked leaf, and then it begins with the stack
    layer: int | None  # in its stack
    shape: tuple[int, ...]  # in the checkpoint
    split: tuple[int, ...]  # with merged dimensions taken apart
    order: tuple[int, ...]  # of `split`'s dimensions in the leaf
    part: tuple[Any, ...] = ()  # an index into the leaf, after its layer; () is all of it
    packed: bool = False  # lies in 4 bits, as two tensors (see mxfp4.py)

    @property
    def parts(self) -> tuple["Tensor", ...]:
        return (self,)


@dataclass(frozen=True, slots=True)
class FusedTensor:
    """One of the checkpoint's tensors whose rows are those of several, one after another."""

    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])


Tensors = dict[str, Tensor | FusedTensor | None]  # None: may be in the file and is not needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Makes `Tensor`s for one layer, or for what lies outside the layers, from the sizes that the letters stand for."""

    sizes: dict[str, int]
    layer: int | None = None
    stack: str = "layers"  # that the layer lies in

    def of_layer(self, layer: int, stack: str = "layers") -> "Places":
        return replace(self, layer=layer, stack=stack)

    def with_sizes(self, **sizes: int) -> "Places":
        """Where letters have other sizes, or new ones."""
        return replace(self, sizes={**self.sizes, **sizes})

    def put(self, leaf: str, layout: str, part: tuple[Any, ...] = (), *, packed: bool = False) -> Tensor:
        """`leaf` is a dotted path from the model, or from this layer's block; `layout` as at the top of this file."""
        source, _, target = layout.partition(" -> ")
        groups = [merged or single for merged, single in re.findall(r"\(([A-Z]+)\)|([A-Z])", source)]
        letters = "".join(groups)
        return Tensor(
            path=(*((self.stack,) if self.layer is not None else ()), *leaf.split(".")),
            layer=self.layer,
            shape=tuple(math.prod(self.sizes[letter] for letter in group) for group in groups),
            split=tuple(self.sizes[letter] for letter in letters),
            order=tuple(letters.index(letter) for letter in target or letters),
            part=part,
            packed=packed,
        )

    def grouped_qkv(self, prefix: str, leaf: str, *, bias: bool) -> Tensors:
        """q_proj, k_proj and v_proj in one layers.GroupedQKV [D, K, G + 2, C]."""
        g = self.sizes["G"]
        names = [f"{prefix}{name}_proj.weight" for name in "qkv"]
        table: Tensors = dict(zip(names, self._qkv_weights(leaf), strict=True))
        if bias:
            table[f"{prefix}q_proj.bias"] = self.put(f"{leaf}.bias", "(KGC) -> KGC", np.s_[:, :g])
            table[f"{prefix}k_proj.bias"] = self.put(f"{leaf}.bias", "(KC) -> KC", np.s_[:, g])
            table[f"{prefix}v_proj.bias"] = self.put(f"{leaf}.bias", "(KC) -> KC", np.s_[:, g + 1])
        return table

    def fused_qkv(self, prefix: str, leaf: str) -> Tensors:
        """The same from one qkv_proj."""
        return {f"{prefix}qkv_proj.weight": FusedTensor(self._qkv_weights(leaf))}

    def _qkv_weights(self, leaf: str) -> tuple[Tensor, Tensor, Tensor]:
        g = self.sizes["G"]
        return (
            self.put(f"{leaf}.weight", "(KGC)D -> DKGC", np.s_[:, :, :g]),
            self.put(f"{leaf}.weight", "(KC)D -> DKC", np.s_[:, :, g]),
            self.put(f"{leaf}.weight", "(KC)D -> DKC", np.s_[:, :, g + 1]),
        )

    def attention_output(self, prefix: str, leaf: str, *, bias: bool) -> Tensors:
        """o_proj in a layers.AttentionOutput [H, C, D]."""
        table: Tensors = {f"{prefix}o_proj.weight": self.put(f"{leaf}.weight", "D(HC) -> HCD")}
        if bias:
            table[f"{prefix}o_proj.bias"] = self.put(f"{leaf}.bias", "D")
        return table

    def gated_mlp(self, prefix: str, leaf: str, *, bias: bool) -> Tensors:
        """gate_proj, up_proj and down_proj in a layers.GatedMLP."""
        table: Tensors = {
            f"{prefix}gate_proj.weight": self.put(f"{leaf}.gate_up", "FD -> DF", np.s_[:, 0]),
            f"{prefix}up_proj.weight": self.put(f"{leaf}.gate_up", "FD -> DF", np.s_[:, 1]),
            f"{prefix}down_proj.weight": self.put(f"{leaf}.down", "DF -> FD"),
        }
        if bias:
            table[f"{prefix}gate_proj.bias"] = self.put(f"{leaf}.gate_up_bias", "F", (0,))
            table[f"{prefix}up_proj.bias"] = self.put(f"{leaf}.gate_up_bias", "F", (1,))
            table[f"{prefix}down_proj.bias"] = self.put(f"{leaf}.down_bias", "D")
        return table

    def fused_gated_mlp(self, prefix: str, leaf: str) -> Tensors:
        """The same from one gate_up_proj."""
        gate, up = (self.put(f"{leaf}.gate_up", "FD -> DF", np.s_[:, i]) for i in range(2))
        return {
            f"{prefix}gate_up_proj.weight": FusedTensor((gate, up)),
            f"{prefix}down_proj.weight": self.put(f"{leaf}.down", "DF -> FD"),
        }

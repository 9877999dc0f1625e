"""The head as its authors define it, in torch and without pages: one stream, all of its entries at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

EPS, THETA = 1e-6, 10000.0


@dataclass
class ReferenceHead:
    config: Mapping[str, Any]
    weights: Mapping[str, np.ndarray]
    normed_residual: bool = False

    def fused(self, states: np.ndarray) -> torch.Tensor:  # [T, 3 D] -> [T, D]
        return torch.from_numpy(states) @ self._of("fc.weight").T

    def chain(self, tokens: list[int], states: np.ndarray, depth: int) -> tuple[list[int], list[np.ndarray]]:
        """(greedy guesses after `tokens`, their logits), from the states of all but the last of them."""
        h, following = self.fused(states), list(tokens[1:])
        assert len(following) == len(h)
        guesses, scores = [], []
        for _ in range(depth):
            x = self.hidden(following, h)
            logits = self._norm(x[-1:], "norm.weight") @ self._of("lm_head.weight").T
            scores.append(logits[0].numpy())
            own = int(logits.argmax())
            guesses.append(own + int(self.weights["d2t"][own]))
            following.append(guesses[-1])
            h = torch.cat([h, x[-1:]])
        return guesses, scores

    def hidden(self, following: list[int], h: torch.Tensor) -> torch.Tensor:
        """x [T, D] of the entries that the tokens `following` and h [T, D] make."""
        vectors = self._norm(self._of("embed_tokens.weight")[following], "midlayer.input_layernorm.weight")
        normed = self._norm(h, "midlayer.hidden_norm.weight")
        x = (normed if self.normed_residual else h) + self._attention(torch.cat([vectors, normed], dim=-1))
        inner = self._norm(x, "midlayer.post_attention_layernorm.weight")
        gate, up = (inner @ self._of(f"midlayer.mlp.{name}_proj.weight").T for name in ("gate", "up"))
        return x + (torch.nn.functional.silu(gate) * up) @ self._of("midlayer.mlp.down_proj.weight").T

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        count, width = x.shape[0], self.config["hidden_size"] // heads
        q, k, v = (
            (x @ self._of(f"midlayer.self_attn.{name}_proj.weight").T).view(count, -1, width).transpose(0, 1)
            for name in "qkv"
        )
        q, k = self._turned(q), self._turned(k)
        k, v = (part.repeat_interleave(heads // kv_heads, dim=0) for part in (k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        return out.transpose(0, 1).reshape(count, -1) @ self._of("midlayer.self_attn.o_proj.weight").T

    def _turned(self, x: torch.Tensor) -> torch.Tensor:  # [heads, T, C]
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[1])[:, None] * THETA ** (-torch.arange(half) / half)[None]
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self._of(name)

    def _of(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.weights[name])

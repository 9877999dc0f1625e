"""EAGLE-3 heads (Li et al., arXiv 2503.01840): one Llama block that guesses for a model, from its hidden states.

Entry i of a stream is made from the token after position i and from what the model's own layers had at position i:

    h = fc(the states that enter the watched layers, side by side), or, behind a guess, the head's own x of entry i-1
    x = h + attention([norm(token vector), norm(h)]);  x += mlp(norm(x));  logits of token i + 2 = lm_head(norm(x))

The head has a part of the model's vocabulary: `d2t` is, for each of its tokens, the distance to the model's number for
it. Names and layout are those of the hub's checkpoints, as the paper's authors, vLLM, SGLang and SpecForge have them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models.decoder import DecoderSizes, read_sizes
from models.errors import CheckpointError
from models.fields import Fields
from models.hub import Tensors
from models.hub_weights import HubWeights
from models.interface import Attend, Cache, ModelShape
from models.layers import AttentionOutput, Embedding, GatedMLP, GroupedQKV, Head, RMSNorm, WeightInit, contract
from models.leaves import Assembly, Leaf, Progress, parts_of
from models.rope import AnyRope, read_rope, use_max_length
from models.tensor_files import TensorFiles, read_json
from pallas_kernels.ragged import AttentionOptions
from sharding.params import Placement

# Of the paper's own checkpoints config.json names LlamaForCausalLM: `draft_vocab_size` tells that they are heads.
architectures = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM")
EMBEDDING, BLOCKS = "embed_tokens.weight", ("midlayer.", "layers.0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    sizes: DecoderSizes  # of the head; V is the model's
    draft_vocab: int
    target_d: int  # D of the model
    watched: tuple[int, ...]  # of the model's layers, whose entering states it is given
    rope: AnyRope
    attention_bias: bool
    mlp_bias: bool
    normed_residual: bool  # the first sum takes norm(h) and not h

    @property
    def states_width(self) -> int:
        """Of all that it is given of a position."""
        return len(self.watched) * self.target_d

    def shape(self) -> ModelShape:
        """Its vocabulary there is its own."""
        sizes = self.sizes
        return ModelShape(
            vocab_size=self.draft_vocab,
            num_layers=1,
            num_heads=sizes.heads,
            num_kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            max_position=sizes.max_position,
        )


def parse(config: dict[str, Any], target_layers: int) -> Eagle3Config:
    """`target_layers`: how many the model has that it guesses for. Raises CheckpointError naming the field."""
    fields = Fields(config)
    if not set(fields.strings("architectures")) & set(architectures) or "draft_vocab_size" not in fields:
        raise fields.error("architectures", f"{architectures[0]}, beside draft_vocab_size: an EAGLE-3 head")
    fields.require("hidden_act", "silu")
    for name, only in (("num_hidden_layers", 1), ("tie_word_embeddings", False), ("bias", False)):
        fields.require(name, only)
    fields.require("norm_before_fc", False)
    fields.section("eagle_config").require("use_aux_hidden_state", True)
    sizes = read_sizes(Fields(config | {"num_hidden_layers": 1}))
    return Eagle3Config(
        sizes=sizes,
        draft_vocab=fields.integer("draft_vocab_size"),
        target_d=fields.integer("target_hidden_size", sizes.d),
        watched=_watched(fields, target_layers),
        rope=read_rope(fields, sizes.head_dim, sizes.max_position),
        attention_bias=fields.boolean("attention_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
        normed_residual=fields.boolean("norm_before_residual", False),
    )


def _watched(fields: Fields, target_layers: int) -> tuple[int, ...]:
    """The layers whose entering states are taken. `eagle_config` counts layers by what leaves them, as SGLang does, and
    the list outside of it by what enters them, as vLLM does."""
    name, of_eagle = "eagle_aux_hidden_state_layer_ids", fields.section("eagle_config")
    found = fields.integers(name) or [layer + 1 for layer in of_eagle.integers(name)]
    layers = found or [2, target_layers // 2, target_layers - 3]
    right = sorted({layer for layer in layers if 0 <= layer <= target_layers})
    if len(right) < len(layers):
        where = fields if fields.integers(name) or not found else of_eagle
        raise where.error(
            name, f"different layers of the {target_layers} that the model has; by default 2, L // 2 and L - 3"
        )
    return tuple(right)


class Eagle3(nnx.Module):
    def __init__(self, config: Eagle3Config, init: WeightInit) -> None:
        s = config.sizes
        self.fc = init.weight((config.states_width, s.d), ("states", "model"), config.states_width)
        self.embedding = Embedding(init, s.vocab_size, s.d)
        self.block = Eagle3Block(config, init)
        self.norm = RMSNorm(init, s.d, s.eps)
        self.head = Head(init, s.d, config.draft_vocab)
        self.targets = init.zeros((config.draft_vocab,), (None,), jnp.int32)  # the model's number of each token
        self.rope = config.rope

    def fused(self, states: Array) -> Array:  # [T, n * D of the model, and padding on a mesh] -> [T, D]
        return contract("ti,id->td", states, self.fc[...])

    def __call__(
        self, entering: tuple[Array, Array], positions: Array, cache: Cache, attend: Attend
    ) -> tuple[Array, Cache]:
        """Tokens [T] with h [T, D], and positions [T] -> (x [T, D], which is h of the next entry, cache)."""
        token_ids, h = entering
        return self.block(self.embedding(token_ids), h, cache, self.rope.at(positions).of(0), attend)

    def logits(self, x: Array) -> Array:  # [N, D] -> [N, its vocabulary] float32
        return self.head(self.norm(x))


class Eagle3Block(nnx.Module):
    def __init__(self, config: Eagle3Config, init: WeightInit) -> None:
        s = config.sizes
        self.token_norm = RMSNorm(init, s.d, s.eps)
        self.hidden_norm = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, 2 * s.d, s.kv_heads, s.group, s.head_dim, bias=config.attention_bias)
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=config.attention_bias)
        self.mlp_norm = RMSNorm(init, s.d, s.eps)
        self.mlp = GatedMLP(init, s.d, s.f, jax.nn.silu, bias=config.mlp_bias)
        self.normed_residual = config.normed_residual
        self.options = AttentionOptions(scale=s.head_dim**-0.5)

    def __call__(self, vectors: Array, h: Array, cache: Cache, turn: Any, attend: Attend) -> tuple[Array, Cache]:
        normed = self.hidden_norm(h)
        q, k, v = self.qkv(jnp.concatenate([self.token_norm(vectors), normed], axis=-1))
        cache, out = attend(cache, 0, turn(q), turn(k), v, self.options)
        x = (normed if self.normed_residual else h) + self.output(out)
        return x + self.mlp(self.mlp_norm(x)), cache


def tensors(config: Eagle3Config, names: Collection[str]) -> Tensors:
    """The hub's names for the weights above, of a checkpoint that has tensors of these `names`."""
    s = config.sizes
    places = s.places().with_sizes(W=config.draft_vocab, I=config.states_width)
    at = next((prefix for prefix in BLOCKS if any(name.startswith(prefix) for name in names)), BLOCKS[0])
    table: Tensors = {
        "fc.weight": places.put("fc", "DI -> ID"),
        "norm.weight": places.put("norm.scale", "D"),
        "lm_head.weight": places.put("head.weight", "WD -> DW"),
        "d2t": None,  # read as integers, by `_targets`
        "t2d": None,  # the same the other way round
        f"{at}input_layernorm.weight": places.put("block.token_norm.scale", "D"),
        f"{at}hidden_norm.weight": places.put("block.hidden_norm.scale", "D"),
        f"{at}post_attention_layernorm.weight": places.put("block.mlp_norm.scale", "D"),
        **places.with_sizes(D=2 * s.d).grouped_qkv(f"{at}self_attn.", "block.qkv", bias=config.attention_bias),
        **places.attention_output(f"{at}self_attn.", "block.output", bias=config.attention_bias),
        **places.gated_mlp(f"{at}mlp.", "block.mlp", bias=config.mlp_bias),
    }
    if EMBEDDING in names:
        table[EMBEDDING] = places.put("embedding.table", "VD")
    return table


def describe(directory: Path, target_layers: int) -> Eagle3Config:
    """The head in `directory`. Raises CheckpointError."""
    fields = read_json(directory / "config.json")
    if not isinstance(fields, dict):
        raise CheckpointError(f"{directory / 'config.json'}: it must be a JSON object")
    return parse(fields, target_layers)


def abstract(config: Eagle3Config, dtype: Any) -> Eagle3:
    """Its shapes alone: each leaf is a jax.ShapeDtypeStruct."""
    return Eagle3(config, WeightInit(dtype, None))


def load(
    directory: Path,
    config: Eagle3Config,
    dtype: Any,
    *,
    placement: Placement,
    table: Array,
    max_length: int,
    progress: Progress | None = None,
) -> Eagle3:
    """`table`: the model's token vectors, which the head shares where it has none of its own. Raises CheckpointError
    for a tensor that is missing, unexpected or of another shape."""
    model = abstract(config, dtype)
    use_max_length(model, max_length)
    assembly = Assembly(model)
    with TensorFiles(directory) as files:
        targets = _targets(files, config)
        weights = HubWeights(files, tensors(config, set(files)), progress)

        def read(leaf: Leaf) -> Array:
            if leaf.path == ("targets",):
                return placement.place(targets, leaf.names)
            if leaf.path == ("embedding", "table") and EMBEDDING not in files:
                return _shared(table, placement.shape(leaf.shape, leaf.names))
            return placement.place(weights.on_host(leaf), leaf.names)

        for _, leaves in parts_of(model):
            for leaf in leaves:
                assembly.put(leaf.path, read(leaf))
    return assembly.model()


def _shared(table: Array, shape: tuple[int, ...]) -> Array:
    if table.shape != shape:
        raise CheckpointError(
            f"tensor {EMBEDDING} is missing, and the model's, of shape {list(table.shape)}, cannot stand for it: it "
            f"must be {list(shape)}"
        )
    return table


def _targets(files: TensorFiles, config: Eagle3Config) -> np.ndarray:
    """[its vocabulary] int32: the model's number of each of its tokens."""
    count, vocab = config.draft_vocab, config.sizes.vocab_size
    own = np.arange(count, dtype=np.int64)
    if "d2t" not in files:
        if count != vocab:
            raise CheckpointError(f"tensor d2t is missing; of {vocab} tokens the head has {count}, and it says which")
        return own.astype(np.int32)
    if files.shape("d2t") != (count,) or files.dtype("d2t") not in ("I64", "I32"):
        raise CheckpointError(
            f"tensor d2t is {files.dtype('d2t')} of shape {list(files.shape('d2t'))}; it must be integers, [{count}]"
        )
    targets = own + files.rows("d2t", 0, count)
    if targets.min() < 0 or targets.max() >= vocab or len(np.unique(targets)) < count:
        raise CheckpointError(f"tensor d2t must lead to {count} different tokens of the model's {vocab}")
    return targets.astype(np.int32)

"""A trained model in the hub's layout: bfloat16 safetensors, configuration, tokenizer and chat template."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file
from sentencepiece import SentencePieceProcessor

from scripts.demo.chat_format import BOS, END, MARKERS, ROLES, TEMPLATE
from scripts.demo.model import ModelConfig, Params

MOST_BYTES = 20_000_000


def hub_tensors(config: ModelConfig, params: Params) -> dict[str, np.ndarray]:
    """The weights under the hub's names, matrices turned to [out, in], in bfloat16."""
    arrays = {name: np.asarray(value).astype(ml_dtypes.bfloat16) for name, value in params.items()}
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    found = {"model.embed_tokens.weight": arrays["embedding"], "model.norm.weight": arrays["norm"]}
    for layer in range(config.layers):
        at = f"model.layers.{layer}."
        fused, gate_up = arrays["qkv"][layer].T, arrays["gate_up"][layer].T
        found |= {
            f"{at}input_layernorm.weight": arrays["attention_norm"][layer],
            f"{at}post_attention_layernorm.weight": arrays["mlp_norm"][layer],
            f"{at}self_attn.q_proj.weight": fused[:q],
            f"{at}self_attn.k_proj.weight": fused[q : q + kv],
            f"{at}self_attn.v_proj.weight": fused[q + kv :],
            f"{at}self_attn.o_proj.weight": arrays["output"][layer].T,
            f"{at}mlp.gate_proj.weight": gate_up[: config.ff],
            f"{at}mlp.up_proj.weight": gate_up[config.ff :],
            f"{at}mlp.down_proj.weight": arrays["down"][layer].T,
        }
    return {name: np.ascontiguousarray(value) for name, value in found.items()}


def from_hub(folder: Path) -> tuple[ModelConfig, Params]:
    """The inverse: reads an exported checkpoint back for evaluation, in float32."""
    import jax.numpy as jnp

    hub = json.loads((folder / "config.json").read_text())
    config = ModelConfig(
        vocab=hub["vocab_size"],
        d=hub["hidden_size"],
        layers=hub["num_hidden_layers"],
        heads=hub["num_attention_heads"],
        kv_heads=hub["num_key_value_heads"],
        head_dim=hub["head_dim"],
        ff=hub["intermediate_size"],
    )
    arrays = {name: np.asarray(value, np.float32) for name, value in load_file(folder / "model.safetensors").items()}

    def stacked(*names: str) -> np.ndarray:
        return np.stack(
            [
                np.concatenate([arrays[f"model.layers.{layer}.{name}.weight"] for name in names])
                for layer in range(config.layers)
            ]
        )

    params = {
        "embedding": arrays["model.embed_tokens.weight"],
        "norm": arrays["model.norm.weight"],
        "attention_norm": stacked("input_layernorm"),
        "mlp_norm": stacked("post_attention_layernorm"),
        "qkv": stacked("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj").swapaxes(1, 2),
        "output": stacked("self_attn.o_proj").swapaxes(1, 2),
        "gate_up": stacked("mlp.gate_proj", "mlp.up_proj").swapaxes(1, 2),
        "down": stacked("mlp.down_proj").swapaxes(1, 2),
    }
    return config, {name: jnp.asarray(value) for name, value in params.items()}


def hub_config(config: ModelConfig, bos: int, end: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab,
        "hidden_size": config.d,
        "intermediate_size": config.ff,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "rope_theta": config.theta,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": bos,
        "eos_token_id": end,
        "torch_dtype": "bfloat16",
    }


def tokenizer_config(pieces: SentencePieceProcessor) -> dict[str, object]:
    """The chat markers are special; the tags of a tool call are not, since a parser reads them in the text."""
    turn_markers = [*ROLES.values(), END]
    added = {
        str(pieces.piece_to_id(piece)): {
            "content": piece,
            "special": piece in turn_markers or piece in (BOS, "<unk>", "</s>"),
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
        }
        for piece in ["<unk>", BOS, "</s>", *MARKERS]
    }
    return {
        "tokenizer_class": "LlamaTokenizer",
        "model_max_length": 2048,
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "legacy": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": BOS,
        "eos_token": END,
        "unk_token": "<unk>",
        "additional_special_tokens": turn_markers,
        "added_tokens_decoder": dict(sorted(added.items(), key=lambda item: int(item[0]))),
        "chat_template": TEMPLATE,
    }


def export(config: ModelConfig, params: Params, tokenizer: Path, folder: Path) -> int:
    """Writes the checkpoint and returns its bytes. Raises ValueError where it is larger than what may ship."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = SentencePieceProcessor(model_file=str(tokenizer))
    bos, end = pieces.piece_to_id(BOS), pieces.piece_to_id(END)
    save_file(hub_tensors(config, params), folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(tokenizer, folder / "tokenizer.model")
    generation = {
        "bos_token_id": bos,
        "eos_token_id": [end, pieces.eos_id()],
        "do_sample": True,
        "temperature": 0.1,
        "max_new_tokens": 512,
    }
    for name, table in (
        ("config", hub_config(config, bos, end)),
        ("generation_config", generation),
        ("tokenizer_config", tokenizer_config(pieces)),
    ):
        (folder / f"{name}.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > MOST_BYTES:
        raise ValueError(f"{folder} holds {size} bytes; at most {MOST_BYTES} may ship")
    return size

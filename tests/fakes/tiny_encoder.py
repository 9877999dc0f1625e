"""A sentence encoder of two layers with random weights and a WordPiece tokenizer, in a folder as the real ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

D, F, LAYERS, LONGEST = 16, 24, 2, 40
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "a",
    "##s",
    "##ting",
    ".",
]
CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "vocab_size": len(WORDS),
    "max_position_embeddings": LONGEST + 8,
    "type_vocab_size": 2,
    "position_embedding_type": "absolute",
}
MODULES = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
POOLING = {"word_embedding_dimension": D, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def save_tiny_encoder(folder: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in _shapes().items()}
    (folder / "1_Pooling").mkdir(parents=True)
    save_file(weights, str(folder / "model.safetensors"))
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(MODULES)
    ]
    write(folder / "config.json", CONFIG)
    write(folder / "modules.json", modules)
    write(folder / "1_Pooling" / "config.json", POOLING)
    write(folder / "sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
    _tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), D),
        "embeddings.position_embeddings.weight": (LONGEST + 8, D),
        "embeddings.token_type_embeddings.weight": (2, D),
        "embeddings.LayerNorm.weight": (D,),
        "embeddings.LayerNorm.bias": (D,),
    }
    for layer in range(LAYERS):
        products = {
            **{f"attention.self.{name}": (D, D) for name in ("query", "key", "value")},
            "attention.output.dense": (D, D),
            "intermediate.dense": (F, D),
            "output.dense": (D, F),
        }
        for name, shape in products.items():
            shapes |= {f"encoder.layer.{layer}.{name}.weight": shape, f"encoder.layer.{layer}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"encoder.layer.{layer}.{name}.{part}": (D,) for part in ("weight", "bias")}
    return shapes


def _tokenizer() -> tokenizers.Tokenizer:
    """Cuts and pads, as the files of real encoders do: a server must do neither."""
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = [(mark, vocabulary[mark]) for mark in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    made.decoder = decoders.WordPiece()
    made.enable_truncation(8)
    made.enable_padding(length=8)
    return made

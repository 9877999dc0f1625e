"""What the API process reads of a model, without weights: a tokenizer with a token for each byte, and a window."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers


def write_byte_checkpoint(folder: Path, *, window: int = 1024) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": window, "vocab_size": 256}))
    return folder

"""Small tokenizers, trained here: every kind that checkpoints come with."""

import json
import random
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from serving.generation.tokenizer import Tokenizer, load_tokenizer

WORDS = (
    *("the", "a", "of", "weft", "thread", "loom", "warp", "cloth", "shuttle", "red", "blue", "green"),
    *("hello", "world", "over", "under", "through", "café", "naïve", "機", "織", "布"),
)


def _corpus() -> list[str]:
    draw = random.Random(7)
    return [" ".join(draw.choices(WORDS, k=9)) + draw.choice([".", "!", "?", "\n"]) for _ in range(400)]


def write_config(folder: Path, **extra: object) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **extra}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def train_sentencepiece(folder: Path, kind: str, **options: object) -> None:
    (folder / "corpus.txt").write_text("\n".join(_corpus()))
    sentencepiece.SentencePieceTrainer.train(
        **{
            "input": str(folder / "corpus.txt"),
            "model_prefix": str(folder / "tokenizer"),
            "vocab_size": 420,
            "model_type": kind,
            "byte_fallback": True,
            "character_coverage": 0.99,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "split_digits": True,
            "user_defined_symbols": ["<|user|>", "<|end|>"],
            "hard_vocab_limit": False,
            "minloglevel": 2,
            **options,
        }
    )


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2's and Llama 3's kind: tokenizer.json, byte-level BPE."""
    folder = tmp_path_factory.mktemp("byte_level")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>", "<|user|>", "<|a b|>", "<|é|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_tokens(["<tool_call>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def metaspace_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama 2's kind as tokenizer.json: BPE with byte fallback over a metaspace."""
    folder = tmp_path_factory.mktemp("metaspace_json")
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=560,
        special_tokens=["<unk>", "<s>", "</s>", *fallback],
        limit_alphabet=40,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    table = json.loads(tokenizer.to_str())
    table["added_tokens"] = [token for token in table["added_tokens"] if not token["content"].startswith("<0x")]
    (folder / "tokenizer.json").write_text(json.dumps(table))
    write_config(folder, tokenizer_class="PreTrainedTokenizerFast")
    return folder


@pytest.fixture(scope="session")
def sentencepiece_bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentencepiece_bpe")
    train_sentencepiece(folder, "bpe")
    write_config(folder, tokenizer_class="LlamaTokenizer", add_bos_token=True, legacy=False)
    return folder


@pytest.fixture(scope="session")
def sentencepiece_unigram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentencepiece_unigram")
    train_sentencepiece(folder, "unigram", vocab_size=380)
    write_config(folder, add_bos_token=False)
    return folder


KINDS = ["byte_level", "metaspace_json", "sentencepiece_bpe", "sentencepiece_unigram"]


@pytest.fixture(params=KINDS)
def any_checkpoint(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture
def any_tokenizer(any_checkpoint: Path) -> Tokenizer:
    return load_tokenizer(any_checkpoint)

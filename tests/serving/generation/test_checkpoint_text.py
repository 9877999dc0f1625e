import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from serving.errors import CheckpointError
from serving.generation.checkpoint_text import read_checkpoint_text
from serving.generation.tokenizer import load_tokenizer

from .conftest import write_config


def _older(folder: Path, sentencepiece_bpe: Path, added: dict) -> Path:
    """A checkpoint from before tokenizer_config.json had added_tokens_decoder."""
    shutil.copy(sentencepiece_bpe / "tokenizer.model", folder)
    write_config(folder, tokenizer_class="LlamaTokenizer", add_bos_token=True, legacy=False)
    (folder / "added_tokens.json").write_text(json.dumps(added))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder


def test_added_tokens_of_an_older_checkpoint_are_found_in_text_as_in_transformers(
    sentencepiece_bpe: Path, tmp_path: Path
) -> None:
    size = load_tokenizer(sentencepiece_bpe).vocab_size
    folder = _older(tmp_path, sentencepiece_bpe, {"<|im_end|>": size, "<|im_start|>": size + 1})
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = "<|im_start|>hello the<|im_end|>"
    ids = ours.encode(text, add_special_tokens=True)
    assert ids == theirs.encode(text)
    assert (ids[1], ids[-1]) == (size + 1, size)
    assert ours.eos_token_ids == (theirs.eos_token_id,) == (size,)
    assert (ours.is_special(size), ours.is_special(size + 1)) == (True, False)


@pytest.mark.parametrize("added", [{"<|x|>": "7"}, {"<|x|>": -1}, {"": 500}])
def test_added_tokens_without_ids_are_named(sentencepiece_bpe: Path, tmp_path: Path, added: dict) -> None:
    with pytest.raises(CheckpointError, match="is not a token and an id"):
        load_tokenizer(_older(tmp_path, sentencepiece_bpe, added))


def test_splitting_special_tokens_is_refused_where_it_is_not_offered(sentencepiece_bpe: Path, tmp_path: Path) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    write_config(tmp_path, split_special_tokens=True)
    with pytest.raises(CheckpointError, match="split_special_tokens"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "more",
    [
        {"extra_special_tokens": {"image_token": "<image>", "turn": {"__type": "AddedToken", "content": "<turn>"}}},
        {"model_specific_special_tokens": {"sot": "<turn>"}, "pad_token": "<turn>"},
        {"audio_token": "<audio>", "boi_token": "<image>", "add_eos_token": True, "wrong_token": 5},
        {"extra_special_tokens": ["<image>"], "additional_special_tokens": ["<audio>"]},
    ],
)
def test_a_models_own_special_tokens_have_the_names_that_templates_know_them_by(
    byte_level: Path, tmp_path: Path, more: dict
) -> None:
    shutil.copy(byte_level / "tokenizer.json", tmp_path)
    write_config(tmp_path, tokenizer_class="PreTrainedTokenizerFast", eos_token="</s>", **more)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert dict(read_checkpoint_text(tmp_path).special_tokens) == theirs.special_tokens_map


@pytest.mark.parametrize("none", [None, -1])
def test_an_end_that_is_none_leaves_it_to_the_next_file(tmp_path: Path, none: int | None) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": none}))
    assert read_checkpoint_text(tmp_path).eos_token_ids == ()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert read_checkpoint_text(tmp_path).eos_token_ids == (7,)


def test_a_top_k_that_is_a_whole_float_is_that_number(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_k": 50.0}))
    top_k = read_checkpoint_text(tmp_path).defaults.top_k
    assert (type(top_k), top_k) == (int, 50)


@pytest.mark.parametrize("defaults", [{"top_k": 50.5}, {"top_k": 1e300}, {"max_new_tokens": 50.0}, {"top_k": "50"}])
def test_other_numbers_of_another_kind_are_named(tmp_path: Path, defaults: dict) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(defaults))
    with pytest.raises(CheckpointError, match=f"{next(iter(defaults))} must be a number"):
        read_checkpoint_text(tmp_path)

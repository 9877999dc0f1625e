import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from serving.generation.detokenizer import decode
from serving.generation.tokenizer import load_tokenizer

MARK = "<tool_call>"
TEXTS = (f"hello {MARK}  world", f"<s>the{MARK}\nloom</s>", f"{MARK} {MARK}")
STRIPS = {"lstrip": True, "rstrip": True}
KEEPS = {"lstrip": False, "rstrip": False}


@pytest.mark.parametrize(
    ("in_file", "config", "special_map"),
    [
        (STRIPS, {"pad_token": MARK}, None),
        (STRIPS | {"special": True}, {"pad_token": MARK}, None),
        (STRIPS, {}, {"eos_token": MARK}),
        (STRIPS, {"added_tokens_decoder": KEEPS}, None),
        (STRIPS, {"added_tokens_decoder": KEEPS | {"special": True}}, None),
        (KEEPS | {"special": True}, {"added_tokens_decoder": STRIPS | {"special": True}}, None),
        (KEEPS | {"special": True}, {"added_tokens_decoder": STRIPS | {"special": False}}, None),
        (STRIPS, {"added_tokens_decoder": KEEPS}, {"eos_token": MARK}),
        (KEEPS, {"split_special_tokens": True}, None),
    ],
)
def test_what_tokenizer_config_says_of_a_token_holds_as_in_transformers(
    byte_level: Path, tmp_path: Path, in_file: dict[str, bool], config: dict[str, Any], special_map: dict | None
) -> None:
    """Of the space around it, and whether it is special."""
    table = json.loads((byte_level / "tokenizer.json").read_text())
    token = next(token for token in table["added_tokens"] if token["content"] == MARK)
    token |= in_file
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    if "added_tokens_decoder" in config:
        entry = {"content": MARK, "normalized": False, "single_word": False, "special": False}
        config = config | {"added_tokens_decoder": {str(token["id"]): entry | config["added_tokens_decoder"]}}
    plain = json.loads((byte_level / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(plain | config))
    if special_map is not None:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(special_map))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=True) == ids
        for skip in (True, False):
            assert decode(ours, ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert theirs.eos_token_id in ours.eos_token_ids


PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
WHOLE = {"normalized": False, "single_word": True}
NORMALIZED = {"normalized": True, "single_word": False}


@pytest.mark.parametrize(
    ("in_file", "said"), [(NORMALIZED, None), (NORMALIZED, WHOLE), (WHOLE, NORMALIZED), (WHOLE, {}), (NORMALIZED, {})]
)
def test_a_token_that_is_found_in_normalized_text_takes_its_space_as_in_transformers(
    metaspace_json: Path, tmp_path: Path, in_file: dict[str, bool], said: dict[str, bool] | None
) -> None:
    """Llama 2's first form has a normalizer for the space before it; what the config leaves out is by default so."""
    table = json.loads((metaspace_json / "tokenizer.json").read_text())
    number = len(table["model"]["vocab"])
    token = {"content": MARK, "special": False, "lstrip": False, "rstrip": False}
    table |= {"normalizer": PREPEND, "pre_tokenizer": None}
    table["added_tokens"].append({"id": number, **token, **in_file})
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    config = json.loads((metaspace_json / "tokenizer_config.json").read_text())
    if said is not None:
        config["added_tokens_decoder"] = {str(number): token | said}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in (f"hello {MARK} world", f"hello{MARK}world", f"{MARK} {MARK}", f" {MARK}the"):
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=True) == ids
        assert decode(ours, ids) == theirs.decode(ids)

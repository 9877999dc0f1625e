import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from serving.errors import CheckpointError
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


BEGIN, END = "<|im_start|>", "<|im_end|>"
CHAT = (f"{BEGIN}user\nhello the{END} \n", f"<pad>loom {END}<mask> red<image>  blue{BEGIN}")


def _beside(byte_level: Path, folder: Path, config: dict[str, Any], files: dict[str, Any], room: int | None) -> int:
    """Writes the tokenizer with what other files say; `room` is how many more tokens the model has, which lie behind
    the number that is given back."""
    size = load_tokenizer(byte_level).vocab_size
    (folder / "tokenizer.json").write_text((byte_level / "tokenizer.json").read_text())
    plain = json.loads((byte_level / "tokenizer_config.json").read_text())
    if "added_tokens_decoder" in config:
        entries = {str(size + after): entry for after, entry in config["added_tokens_decoder"].items()}
        config = config | {"added_tokens_decoder": entries}
    (folder / "tokenizer_config.json").write_text(json.dumps(plain | config))
    model = {"model_type": "llama"} | ({} if room is None else {"vocab_size": size + room})
    for name, table in ({"config.json": model} | files).items():
        (folder / name).write_text(json.dumps(table))
    return size


def _entry(content: str, **flags: bool) -> dict[str, Any]:
    kept = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {"content": content, **kept, **flags}


TABLE = {0: _entry(BEGIN), 1: _entry(END, rstrip=True)}
MORE = {"additional_special_tokens": [BEGIN, END]}


@pytest.mark.parametrize(
    ("config", "older"),
    [
        ({"added_tokens_decoder": TABLE, "eos_token": END}, None),
        ({"added_tokens_decoder": {0: _entry(BEGIN, special=False), 1: TABLE[1]}, "eos_token": END}, None),
        ({"eos_token": END}, (BEGIN, END)),
        ({"mask_token": "<mask>", "pad_token": "<pad>", "image_token": "<image>", **MORE}, None),
        ({"mask_token": "<mask>", "a_token": "<image>", "added_tokens_decoder": {0: TABLE[1]}, **MORE}, None),
    ],
    ids=["a table", "one that is text", "the older table", "names alone", "both"],
)
def test_tokens_that_only_other_files_have_are_added_as_in_transformers(
    byte_level: Path, tmp_path: Path, config: dict[str, Any], older: tuple[str, str] | None
) -> None:
    size = load_tokenizer(byte_level).vocab_size
    files = {} if older is None else {"added_tokens.json": {name: size + i for i, name in enumerate(older)}}
    _beside(byte_level, tmp_path, config, files, room=9)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.vocab_size == len(theirs) > size
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    for text in CHAT:
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=True) == ids
        for skip in (True, False):
            assert decode(ours, ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("config", [{"added_tokens_decoder": TABLE}, MORE])
@pytest.mark.parametrize(("room", "added"), [(2, 2), (1, 1), (0, 0), (None, 0)])
def test_tokens_without_an_embedding_are_not_added(
    byte_level: Path, tmp_path: Path, config: dict[str, Any], room: int | None, added: int
) -> None:
    size = _beside(byte_level, tmp_path, config, {}, room)
    assert load_tokenizer(tmp_path).vocab_size == size + added


@pytest.mark.parametrize(("after", "found"), [(1, True), (-3, True), (9, False)])
def test_an_id_that_is_not_the_next_one_is_named(byte_level: Path, tmp_path: Path, after: int, found: bool) -> None:
    """But for one that the model has no embedding for: that is not used. A token that is named has the id of the table
    or none."""
    config = {"added_tokens_decoder": {after: _entry(END)}, "eos_token": END}
    size = _beside(byte_level, tmp_path, config, {}, room=9)
    if not found:
        assert load_tokenizer(tmp_path).vocab_size == size
        return
    said = f"{END!r}, to which added_tokens_decoder gives the id {size + after}, and the next free one is {size}"
    with pytest.raises(CheckpointError, match=re.escape(said)):
        load_tokenizer(tmp_path)


def test_a_vocabulary_with_holes_has_no_next_id(byte_level: Path, tmp_path: Path) -> None:
    """The library would give an id that another token has."""
    size = _beside(byte_level, tmp_path, {"pad_token": "<pad>"}, {}, room=9)
    table = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = table["model"]["vocab"]
    added = next(token for token in table["added_tokens"] if token["content"] == MARK)
    table["added_tokens"].remove(added)
    last = max(vocabulary, key=lambda piece: vocabulary[piece])
    merges = table["model"]["merges"]
    table["model"]["merges"] = [pair for pair in merges if "".join(pair) != last]
    vocabulary["<last>"] = vocabulary.pop(last) + 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.piece(size - 1)) == (size, "<last>")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(size): _entry(END)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="the next free one is taken"):
        load_tokenizer(tmp_path)

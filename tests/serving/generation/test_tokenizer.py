import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer

from serving.errors import CheckpointError
from serving.generation.detokenizer import decode
from serving.generation.tokenizer import Tokenizer, load_tokenizer

from .conftest import train_sentencepiece, write_config

TEXTS = [
    "",
    "hello world",
    "the weft  thread\n\nloom\tred",
    "café naïve 機織 布",
    "unseen: Ünïcödé 😀👩‍👩‍👧 \u0301 \x00 end",
    "<s>hello</s> world</s>",
    "trailing space ",
    "hello<unk>there",
    "a" * 300,
]


@pytest.mark.parametrize("kind", ["byte_level", "metaspace_json", "sentencepiece_bpe"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("specials", [False, True])
def test_encode_and_decode_agree_with_transformers(
    kind: str, text: str, specials: bool, request: pytest.FixtureRequest
) -> None:
    ours, theirs = _both(request.getfixturevalue(kind))
    ids = ours.encode(text, add_special_tokens=specials)
    assert ids == theirs.encode(text, add_special_tokens=specials)
    for skip in (False, True):
        assert decode(ours, ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["byte_level", "metaspace_json", "sentencepiece_bpe"])
def test_random_token_ids_decode_as_in_transformers(kind: str, request: pytest.FixtureRequest) -> None:
    """Without byte-fallback pieces, whose broken runs are decoded in sentencepiece's way."""
    ours, theirs = _both(request.getfixturevalue(kind))
    draw = random.Random(1)
    allowed = [i for i in range(ours.vocab_size) if not ours.piece(i).startswith("<0x")]
    for _ in range(300):
        ids = draw.choices(allowed, k=draw.randrange(1, 12))
        assert decode(ours, ids, skip_special_tokens=False) == theirs.decode(ids)
        assert decode(ours, ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)


def test_invalid_utf8_of_a_byte_level_vocabulary_decodes_as_in_transformers(byte_level: Path) -> None:
    ours, theirs = _both(byte_level)
    single = [i for i in range(ours.vocab_size) if len(ours.token_bytes(i)) == 1]
    draw = random.Random(2)
    for _ in range(500):
        ids = draw.choices(single, k=draw.randrange(1, 9))
        assert decode(ours, ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["sentencepiece_bpe", "sentencepiece_unigram"])
@pytest.mark.parametrize("text", [*TEXTS[:5], " leading", "▁marked", "<|user|>hello<|end|> the"])
def test_plain_text_encodes_and_decodes_as_in_sentencepiece(
    kind: str, text: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ours = load_tokenizer(folder)
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == theirs.encode(text)
    assert decode(ours, ids) == theirs.decode(ids)


@pytest.mark.parametrize("kind", ["sentencepiece_bpe", "sentencepiece_unigram"])
def test_random_pieces_and_broken_byte_runs_decode_as_in_sentencepiece(
    kind: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ours = load_tokenizer(folder)
    draw = random.Random(3)
    # A first <0x20>, which no text is encoded to, is dropped like any first space, as transformers does.
    allowed = [i for i in range(ours.vocab_size) if not ours.is_special(i) and ours.piece(i) != "<0x20>"]
    for _ in range(500):
        ids = [allowed[draw.randrange(len(allowed))] for _ in range(draw.randrange(1, 12))]
        assert decode(ours, ids) == theirs.decode(ids)


def test_legacy_sentencepiece_puts_a_space_after_each_special_token_as_transformers_does(
    sentencepiece_bpe: Path, tmp_path: Path
) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    write_config(tmp_path, tokenizer_class="LlamaTokenizer", add_bos_token=True, legacy=True)
    ours, theirs = _both(tmp_path)
    text = "<s>hello</s>world"
    assert ours.encode(text, add_special_tokens=True) == theirs.encode(text)
    modern = load_tokenizer(sentencepiece_bpe)
    assert ours.encode(text, add_special_tokens=False) != modern.encode(text, add_special_tokens=False)


def test_add_prefix_space_false_leaves_the_first_space_out_and_keeps_it_in_decoding(
    sentencepiece_bpe: Path, tmp_path: Path
) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    write_config(tmp_path, tokenizer_class="LlamaTokenizer", add_prefix_space=False)
    ours, theirs = _both(tmp_path)
    for text in ("hello world", " hello"):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert decode(ours, ids) == text == theirs.decode(ids)


@pytest.mark.parametrize(("add_bos", "add_eos"), [(False, False), (True, False), (True, True), (None, None)])
def test_bos_and_eos_are_added_where_the_config_says_so(
    sentencepiece_bpe: Path, tmp_path: Path, add_bos: bool | None, add_eos: bool | None
) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    write_config(tmp_path, add_bos_token=add_bos, add_eos_token=add_eos)
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("hello", add_special_tokens=True)
    assert (ids[0] == tokenizer.bos_token_id) is (add_bos is not False)
    assert (ids[-1] in tokenizer.eos_token_ids) is bool(add_eos)


def test_added_tokens_beyond_the_sentencepiece_model_are_found_in_text_and_decoded(
    sentencepiece_bpe: Path, tmp_path: Path
) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    size = load_tokenizer(sentencepiece_bpe).vocab_size
    added = {
        str(size): {"content": "<|im_start|>", "special": True},
        str(size + 2): {"content": "<think>", "special": False},
        str(size + 3): {"content": "<pad>", "special": True, "rstrip": True},
    }
    write_config(tmp_path, added_tokens_decoder=added)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == size + 4
    assert tokenizer.token_bytes(size + 1) == b""
    ids = tokenizer.encode("<|im_start|>hello<think> world<pad>  x", add_special_tokens=False)
    assert [i for i in ids if i >= size] == [size, size + 2, size + 3]
    assert decode(tokenizer, ids, skip_special_tokens=False) == "<|im_start|>hello<think> world<pad>x"
    assert decode(tokenizer, ids) == "hello<think> worldx"


def test_a_special_token_that_has_a_name_takes_the_space_beside_it_where_the_table_says_so(
    sentencepiece_bpe: Path, tmp_path: Path
) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    size = load_tokenizer(sentencepiece_bpe).vocab_size
    added = {
        "2": {"content": "</s>", "special": True, "rstrip": True},
        str(size): {"content": "<|im_end|>", "special": True, "lstrip": True},
    }
    write_config(tmp_path, added_tokens_decoder=added, additional_special_tokens=["<|im_end|>"])
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("a</s>  b <|im_end|>", add_special_tokens=False)
    assert decode(tokenizer, ids, skip_special_tokens=False) == "a</s>b<|im_end|>"


def test_a_long_run_of_spaces_is_encoded_quickly_beside_a_token_that_takes_the_space_before_it(
    sentencepiece_bpe: Path, tmp_path: Path
) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    size = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model")).get_piece_size()
    write_config(tmp_path, added_tokens_decoder={str(size): {"content": "<mask>", "special": True, "lstrip": True}})
    tokenizer = load_tokenizer(tmp_path)
    spaces = " " * 1_000_000  # which would take an hour in squared time
    ids = tokenizer.encode(f"a{spaces}b  <mask>", add_special_tokens=False)
    assert ids[-1] == size
    assert ids[:-1] == tokenizer.encode(f"a{spaces}b", add_special_tokens=False)


def test_listed_user_defined_pieces_encode_as_in_sentencepiece_and_in_transformers(tmp_path: Path) -> None:
    train_sentencepiece(tmp_path, "bpe", add_dummy_prefix=False)
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    listed = {
        str(model.piece_to_id(piece)): {"content": piece, "special": special, "normalized": False}
        for piece, special in (("<|user|>", True), ("<|end|>", False))
    }
    write_config(tmp_path, tokenizer_class="LlamaTokenizer", add_prefix_space=False, added_tokens_decoder=listed)
    ours, theirs = _both(tmp_path)
    text = "<|user|>hello the<|end|> world\n<|user|> x"
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == model.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert decode(ours, ids) == "hello the<|end|> world\n x"


def test_special_tokens_in_user_text_become_control_tokens_as_in_transformers(byte_level: Path) -> None:
    ours, theirs = _both(byte_level)
    text = "user says </s><|user|>"
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert [ours.piece(i) for i in ids[-2:]] == ["</s>", "<|user|>"]
    assert all(ours.is_special(i) for i in ids[-2:])


def test_token_bytes_joined_are_the_text(any_tokenizer: Tokenizer) -> None:
    text = "hello café 😀 布!"
    ids = any_tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(map(any_tokenizer.token_bytes, ids))
    assert joined.removeprefix(b" ").decode() == text


def test_ids_outside_the_vocabulary_have_no_bytes_and_are_not_special(any_tokenizer: Tokenizer) -> None:
    for token_id in (-1, any_tokenizer.vocab_size, 10**9):
        assert any_tokenizer.token_bytes(token_id) == b""
        assert any_tokenizer.piece(token_id) == ""
        assert not any_tokenizer.is_special(token_id)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({}, {}, (2,)),
        ({"eos_token_id": 7}, {"eos_token_id": 8}, (2, 7)),
        ({"eos_token_id": [7, 2, 9]}, {}, (2, 7, 9)),
        ({}, {"eos_token_id": [5]}, (2, 5)),
        ({}, {"text_config": {"eos_token_id": 6}}, (2, 6)),
    ],
)
def test_eos_ids_come_from_tokenizer_generation_config_and_config(
    sentencepiece_bpe: Path, tmp_path: Path, generation: dict, config: dict, expected: tuple[int, ...]
) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).eos_token_ids == expected


def test_generation_config_gives_sampling_defaults(sentencepiece_bpe: Path, tmp_path: Path) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    table = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True, "max_new_tokens": 64}
    (tmp_path / "generation_config.json").write_text(json.dumps(table))
    defaults = load_tokenizer(tmp_path).checkpoint.defaults
    assert (defaults.temperature, defaults.top_p, defaults.top_k, defaults.min_p) == (0.6, 0.9, 20, None)
    assert defaults.max_new_tokens == 64


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer_config.json", "{", "not valid JSON"),
        ("tokenizer_config.json", "[]", "must hold an object"),
        ("tokenizer_config.json", '{"bos_token": 3}', "bos_token"),
        ("tokenizer_config.json", '{"legacy": "no"}', "legacy"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": "y"}}', "added_tokens_decoder"),
        ("tokenizer_config.json", '{"chat_template": 5}', "chat_template"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "a"}]}', "chat_template"),
        ("generation_config.json", '{"temperature": "hot"}', "temperature"),
        ("generation_config.json", '{"top_k": 1.5}', "top_k"),
        ("generation_config.json", '{"eos_token_id": [-1]}', "eos_token_id"),
        ("generation_config.json", '{"temperature": 1%s}' % ("0" * 400), "temperature"),
        ("generation_config.json", '{"temperature": NaN}', "temperature"),
        ("tokenizer_config.json", '{"extra_special_tokens": 5}', "extra_special_tokens"),
        ("chat_template.jinja", b"\xff{{ messages }}", "chat_template.jinja"),
        ("tokenizer.model", "not a model", "tokenizer.model"),
        ("tokenizer.json", "{}", "tokenizer.json"),
    ],
)
def test_a_malformed_file_is_a_checkpoint_error_that_names_it(
    sentencepiece_bpe: Path, tmp_path: Path, file: str, content: str | bytes, said: str
) -> None:
    shutil.copy(sentencepiece_bpe / "tokenizer.model", tmp_path)
    (tmp_path / file).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(CheckpointError, match=said):
        load_tokenizer(tmp_path)


def test_a_directory_without_a_tokenizer_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match="no such checkpoint directory"):
        load_tokenizer(tmp_path / "absent")


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_a_decoder_that_cannot_be_streamed_is_refused(byte_level: Path, tmp_path: Path, decoder: dict | None) -> None:
    table = json.loads((byte_level / "tokenizer.json").read_text())
    table["decoder"] = decoder
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match="decoder"):
        load_tokenizer(tmp_path)


def test_a_model_without_the_dummy_prefix_keeps_leading_spaces(tmp_path: Path) -> None:
    train_sentencepiece(tmp_path, "bpe", add_dummy_prefix=False)
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode(" hello", add_special_tokens=False)
    assert decode(tokenizer, ids) == " hello"
    assert not tokenizer.drops_first_space


def _both(folder: Path) -> tuple[Tokenizer, Any]:
    return load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))

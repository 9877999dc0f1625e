import random
from pathlib import Path

import pytest

from serving.generation.detokenizer import REPLACEMENT, Detokenizer, decode, token_starts
from serving.generation.tokenizer import Tokenizer, load_tokenizer


@pytest.mark.parametrize("skip", [False, True])
def test_streamed_text_joined_is_the_full_decode_of_any_tokens(any_tokenizer: Tokenizer, skip: bool) -> None:
    draw = random.Random(5)
    for _ in range(200):
        ids = [draw.randrange(any_tokenizer.vocab_size + 2) for _ in range(draw.randrange(30))]
        detokenizer = Detokenizer(any_tokenizer, skip_special_tokens=skip)
        parts = [detokenizer.add(token) for token in ids]
        raw = b"".join(
            any_tokenizer.token_bytes(token) for token in ids if not (skip and any_tokenizer.is_special(token))
        )
        if any_tokenizer.drops_first_space:
            raw = raw.removeprefix(b" ")
        assert "".join(parts) + detokenizer.finish() == _reference(raw, any_tokenizer.replaces_each_byte)


@pytest.mark.parametrize("text", ["héllo 😀 wörld", "👩‍👩‍👧‍👦 family", "e\u0301 combining", "布機織 and ไทย"])
def test_text_comes_in_whole_characters_without_replacements(any_tokenizer: Tokenizer, text: str) -> None:
    ids = any_tokenizer.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(any_tokenizer, skip_special_tokens=True)
    parts = [detokenizer.add(token) for token in ids]
    assert "".join(parts) == text
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("text", ["héllo 😀 wörld", "👩‍👩‍👧‍👦 family", "hello </s> hello"])
def test_tokens_are_found_where_they_stand_in_the_text_that_was_encoded(any_tokenizer: Tokenizer, text: str) -> None:
    ids = any_tokenizer.encode(text, add_special_tokens=True)  # with BOS, which is not in the text, where there is one
    starts = token_starts(any_tokenizer, ids, text)
    assert starts == sorted(starts)
    for token, start, end in zip(ids, starts, [*starts[1:], len(text)], strict=True):
        own = any_tokenizer.token_bytes(token)
        if not any_tokenizer.is_special(token) and own.isascii():
            assert text[start:end] == own.decode().removeprefix("" if start else " ")
    assert "".join(text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)) == text


@pytest.mark.parametrize("skip", [False, True])
def test_a_special_token_takes_room_in_the_text_only_where_it_stands_there(byte_level: Path, skip: bool) -> None:
    tokenizer = load_tokenizer(byte_level)
    end = tokenizer.eos_token_ids[0]
    ids = [tokenizer.encode("a", add_special_tokens=False)[0], end, tokenizer.encode("b", add_special_tokens=False)[0]]
    text = decode(tokenizer, ids, skip_special_tokens=skip)
    assert token_starts(tokenizer, ids, text) == ([0, 1, 1] if skip else [0, 1, 1 + len("</s>")])


def test_an_unfinished_character_waits_and_becomes_a_replacement_only_at_the_end(any_tokenizer: Tokenizer) -> None:
    ids = _bytes_as_tokens(any_tokenizer, "😀".encode()[:3])
    detokenizer = Detokenizer(any_tokenizer, skip_special_tokens=True)
    assert [detokenizer.add(token) for token in ids] == ["", "", ""]
    assert detokenizer.has_unfinished_character
    assert detokenizer.finish() == REPLACEMENT * (3 if any_tokenizer.replaces_each_byte else 1)
    assert decode(any_tokenizer, ids) == REPLACEMENT * (3 if any_tokenizer.replaces_each_byte else 1)


def test_bytes_that_nothing_can_complete_become_replacements_at_once(any_tokenizer: Tokenizer) -> None:
    ids = _bytes_as_tokens(any_tokenizer, b"\xff\xe2\x82a")
    detokenizer = Detokenizer(any_tokenizer, skip_special_tokens=True)
    parts = [detokenizer.add(token) for token in ids]
    assert parts[:3] == [REPLACEMENT, "", ""]
    assert parts[3] == REPLACEMENT * (2 if any_tokenizer.replaces_each_byte else 1) + "a"


def test_the_space_of_the_first_word_is_dropped_at_the_start_and_kept_after_a_prompt(sentencepiece_bpe: Path) -> None:
    tokenizer = load_tokenizer(sentencepiece_bpe)
    hello = tokenizer.encode("hello", add_special_tokens=False)
    assert decode(tokenizer, hello) == "hello"
    after_text = Detokenizer(tokenizer, skip_special_tokens=True, prompt=hello)
    assert "".join(map(after_text.add, hello)) == " hello"
    after_bos_alone = Detokenizer(tokenizer, skip_special_tokens=True, prompt=[1])
    assert "".join(map(after_bos_alone.add, hello)) == "hello"


@pytest.mark.parametrize("skip", [False, True])
def test_prompt_text_and_continuation_joined_are_the_decode_of_both(any_tokenizer: Tokenizer, skip: bool) -> None:
    ids = any_tokenizer.encode("the weft 😀 café under", add_special_tokens=True)
    for cut in range(len(ids)):
        prompt = decode(any_tokenizer, ids[:cut], skip_special_tokens=skip)
        detokenizer = Detokenizer(any_tokenizer, skip_special_tokens=skip, prompt=ids[:cut])
        rest = "".join(map(detokenizer.add, ids[cut:])) + detokenizer.finish()
        # A prompt that ends inside a character shows it as U+FFFD; the continuation still has the whole character.
        assert prompt.rstrip(REPLACEMENT) + rest == decode(any_tokenizer, ids, skip_special_tokens=skip)


def test_special_tokens_are_shown_or_skipped_as_asked(byte_level: Path) -> None:
    tokenizer = load_tokenizer(byte_level)
    ids = tokenizer.encode("<s>hello<tool_call></s>", add_special_tokens=False)
    assert decode(tokenizer, ids, skip_special_tokens=False) == "<s>hello<tool_call></s>"
    assert decode(tokenizer, ids, skip_special_tokens=True) == "hello<tool_call>"


def _bytes_as_tokens(tokenizer: Tokenizer, data: bytes) -> list[int]:
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(i)) == 1}
    return [single[bytes([byte])] for byte in data]


def _reference(data: bytes, each_byte: bool) -> str:
    """Straight from the definition: the longest valid character at each place, else a replacement."""
    if not each_byte:
        return data.decode(errors="replace")
    text, at = "", 0
    while at < len(data):
        for size in (1, 2, 3, 4):
            try:
                text += data[at : at + size].decode()
                at += size
                break
            except UnicodeDecodeError:
                continue
        else:
            text += REPLACEMENT
            at += 1
    return text

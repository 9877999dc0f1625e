"""What grammars know of every kind of tokenizer."""

import pytest

from serving.generation.grammar_vocabulary import vocabulary_of
from serving.generation.tokenizer import Tokenizer


@pytest.mark.parametrize("text", ["the thread", " over", '{"a": "naïve 機"}', "\n", "<|end|>", "</s>"])
def test_a_text_inside_another_is_spelled_by_its_own_bytes_and_no_control_token(
    text: str, any_tokenizer: Tokenizer
) -> None:
    vocabulary = vocabulary_of(any_tokenizer)
    ids = vocabulary.spell(text)
    assert b"".join(vocabulary.token_bytes[i] for i in ids) == text.encode()
    assert vocabulary.special_ids.isdisjoint(ids)


def test_common_text_is_spelled_in_the_tokenizers_own_tokens(any_tokenizer: Tokenizer) -> None:
    vocabulary = vocabulary_of(any_tokenizer)
    assert len(vocabulary.spell(" the thread")) <= 4


def test_the_ends_are_control_tokens_of_the_vocabulary(any_tokenizer: Tokenizer) -> None:
    vocabulary = vocabulary_of(any_tokenizer)
    assert vocabulary.end_ids == any_tokenizer.eos_token_ids
    assert set(vocabulary.end_ids) <= vocabulary.special_ids
    assert len(vocabulary.token_bytes) == any_tokenizer.vocab_size
    assert len(vocabulary.sized(any_tokenizer.vocab_size + 3)) == any_tokenizer.vocab_size + 3

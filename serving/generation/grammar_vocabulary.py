"""A tokenizer as the engine's grammars see it."""

from collections.abc import Callable

from serving.engine.vocabulary import Vocabulary
from serving.generation.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    ids = range(tokenizer.vocab_size)
    return Vocabulary(
        token_bytes=tuple(map(tokenizer.token_bytes, ids)),
        special_ids=frozenset(filter(tokenizer.is_special, ids)),
        end_ids=tokenizer.eos_token_ids,
        encode=_encode_inside(tokenizer),
    )


def _encode_inside(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Encodes a text as the middle of another one: behind a control token, where the tokenizer would else put a space
    before it."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    if not tokenizer.drops_first_space:
        return encode
    special = filter(tokenizer.is_special, range(tokenizer.vocab_size))
    anchor = next((tokenizer.piece(i) for i in special if encode(tokenizer.piece(i)) == [i]), None)
    return encode if anchor is None else lambda text: encode(anchor + text)[1:]

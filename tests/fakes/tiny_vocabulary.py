"""Text for the tiny model's ids: an end, a think tag, printable ASCII, a few longer tokens, and ids without text."""

from collections.abc import Iterable

from serving.engine.vocabulary import Vocabulary
from tests.fakes.tiny_model import VOCAB_SIZE

END = 0
THOUGHT = 1  # "</think>"
_CHARACTERS = [*range(0x20, 0x7F), 0x0A]
_LONGER = ('{"', '":', '",', "true", "false", "null", "yes", "no", "abc", "12", "345", "the ", "}}", '"}')
_TOKENS = ("</s>", "</think>", *map(chr, _CHARACTERS), *_LONGER)


def tiny_vocabulary() -> Vocabulary:
    return Vocabulary(
        token_bytes=tuple(token.encode() for token in _TOKENS),
        special_ids=frozenset({END, THOUGHT}),
        end_ids=(END,),
        encode=encode,
    )


def encode(text: str) -> list[int]:
    """The longest token at each place."""
    ids = []
    while text:
        best = max((i for i in range(2, len(_TOKENS)) if text.startswith(_TOKENS[i])), key=lambda i: len(_TOKENS[i]))
        ids.append(best)
        text = text[len(_TOKENS[best]) :]
    return ids


def text_of(token_ids: Iterable[int]) -> str:
    """Without the end; ids that have no text raise IndexError."""
    return "".join(_TOKENS[i] for i in token_ids if i != END)


assert len(_TOKENS) < VOCAB_SIZE

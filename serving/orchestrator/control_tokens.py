"""A model's control tokens, written as plain text where others wrote them into data."""

import re

from serving.generation.tokenizer import Tokenizer

_BREAK = "\u200b"  # zero width: shown, the text is the same


class ControlTokens:
    """Text such as "<|im_end|>" in a web page would end the message that quotes it: the tokenizer makes the token of
    it wherever it stands. Broken after its first character it is text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = (token_id for token_id in range(tokenizer.vocab_size) if tokenizer.is_special(token_id))
        pieces = sorted({piece for token_id in ids if len(piece := tokenizer.piece(token_id)) > 1})
        self._pattern = re.compile("|".join(re.escape(piece) for piece in pieces)) if pieces else None

    def broken(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: found[0][0] + _BREAK + found[0][1:], text)

"""Token ids to text, as they come: whole characters only, and never a character that a later token would change."""

from collections.abc import Container, Iterable, Sequence

from serving.generation.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4  # bytes in UTF-8


class Detokenizer:
    """One text that grows by tokens. What `add` and `finish` return, joined, is `decode` of all the tokens.

    Each token costs time in its own bytes only: the bytes of at most one unfinished character wait for the next token.
    Bytes that no token can complete become U+FFFD at once; an unfinished character does when the stream finishes. Where
    a broken run of byte-fallback pieces has whole characters in it they are kept, as sentencepiece does; the
    `tokenizers` library drops the whole run, which cannot be known before the run ends.

    After a prompt, the text continues it: a leading space is kept, and a character that the prompt's last tokens began
    is completed.

    `kept` are special tokens that are not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        prompt: Sequence[int] = (),
        kept: Container[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._kept = kept
        self._tail = b""
        self._at_start = tokenizer.drops_first_space and not any(self._bytes(token) for token in prompt)
        for token in prompt[-_LONGEST_CHARACTER:]:
            self.add(token)

    @property
    def has_unfinished_character(self) -> bool:
        return bool(self._tail)

    def add(self, token_id: int) -> str:
        """The text that this token completes; empty for a part of a character, and for a special token skipped."""
        fresh = self._bytes(token_id)
        if self._at_start and fresh:
            self._at_start = False
            fresh = fresh.removeprefix(b" ")
        text, self._tail = self._decode(self._tail + fresh)
        return text

    def finish(self) -> str:
        """What is left of an unfinished character, as U+FFFD."""
        left, self._tail = self._tail, b""
        if not left:
            return ""
        return REPLACEMENT * (len(left) if self._tokenizer.replaces_each_byte else 1)

    def _bytes(self, token_id: int) -> bytes:
        if self._skip and self._tokenizer.is_special(token_id) and token_id not in self._kept:
            return b""
        return self._tokenizer.token_bytes(token_id)

    def _decode(self, data: bytes) -> tuple[str, bytes]:
        """The characters of `data`, and the bytes at its end that could still become one."""
        parts: list[str] = []
        while data:
            try:
                parts.append(data.decode())
                break
            except UnicodeDecodeError as error:
                parts.append(data[: error.start].decode())
                if error.end == len(data) and error.reason == "unexpected end of data":
                    return "".join(parts), data[error.start :]
                bad = error.end - error.start
                parts.append(REPLACEMENT * (bad if self._tokenizer.replaces_each_byte else 1))
                data = data[error.end :]
        return "".join(parts), b""


def token_starts(tokenizer: Tokenizer, token_ids: Iterable[int], text: str) -> list[int]:
    """Where in `text` each token begins, which they were encoded from or decode to. A special token that does not stand
    in it (BOS, or one that was skipped) takes no room there. Where a normalizer changed the text before it was encoded,
    the places are those in what it made of it."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    starts: list[int] = []
    at = 0
    for token in token_ids:
        starts.append(at)
        if tokenizer.is_special(token) and not text.startswith(tokenizer.token_bytes(token).decode(), at):
            continue
        at += len(detokenizer.add(token))
    return starts


def decode(tokenizer: Tokenizer, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
    """The whole text of `token_ids`."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    parts = [detokenizer.add(token) for token in token_ids]
    return "".join(parts) + detokenizer.finish()

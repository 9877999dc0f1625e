"""What grammars have to know of a checkpoint's tokens. The engine itself works with ids alone."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """`token_bytes[i]` is what token i stands for in the middle of a text; empty for an id without text."""

    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]  # control tokens: no text of a grammar matches them
    end_ids: tuple[int, ...]  # those that end a text; at least one
    # The tokens of a text that stands in the middle of another one. What a grammar forces is written in these.
    encode: Callable[[str], list[int]]

    def spell(self, text: str) -> list[int]:
        """`encode`, where that gives the text and nothing else; else the longest token at each place. Raises ValueError
        where there is none."""
        ids = self.encode(text)
        same = b"".join(self.token_bytes[i] for i in ids) == text.encode()
        return ids if same and self.special_ids.isdisjoint(ids) else self._longest_first(text.encode())

    def _longest_first(self, rest: bytes) -> list[int]:
        known = {token: i for i, token in enumerate(self.token_bytes) if token and i not in self.special_ids}
        longest, ids = max(map(len, known)), []
        while rest:
            sizes = range(min(longest, len(rest)), 0, -1)
            size = next((size for size in sizes if rest[:size] in known), None)
            if size is None:
                raise ValueError(f"no token begins {rest[:16]!r}")
            ids.append(known[rest[:size]])
            rest = rest[size:]
        return ids

    def sized(self, vocab_size: int) -> tuple[bytes, ...]:
        """`token_bytes` for a model with so many logits, of which some may have no token."""
        return (*self.token_bytes[:vocab_size], *[b""] * (vocab_size - len(self.token_bytes)))
